"""The signals of whoever runs us: what Ctrl-C stops, and how we leave when told to go.

    first SIGINT       `interrupt`, if there is something to stop; we go on until that has settled
    second SIGINT      gone at once, as a crash would be; the next driver finds everything
    SIGTERM, SIGHUP    the work is cancelled: a drive commits what has ended and lets go; out within 2 s whatever happens

What a session's commands do is not touched by our leaving: they run on under the supervisor, and the next driver takes them over.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from perdure.record.errors import PerdureError

T = TypeVar("T")
LEAVE_S = 1.9
"""After so long a process that was told to go is gone, done or not. A drive takes at most 1.5 s of it."""

_LEAVING = (signal.SIGTERM, signal.SIGHUP)


class Told(PerdureError):
    """Somebody told us to go, and what we did is left in good order."""

    def __init__(self, number: int) -> None:
        super().__init__(f"left on {signal.Signals(number).name}; what runs runs on, `perdure resume` goes on with it")
        self.exit_code = 128 + number


async def attended(
    work: Coroutine[Any, Any, T],
    interrupt: Callable[[], Coroutine[Any, Any, object]] | None = None,
    *,
    leaving: Callable[[], object] = lambda: None,
) -> T:
    """The work's outcome. Without `interrupt` the first SIGINT is like SIGTERM. `leaving` is called before we are gone at once. Raises Told."""
    task = asyncio.create_task(work)
    hands = _Hands(task, interrupt, leaving)
    hands.take()
    try:
        return await task
    except asyncio.CancelledError:
        if hands.told is None:
            raise
        raise Told(hands.told) from None
    finally:
        hands.release()
        await hands.join()


class _Hands:
    def __init__(
        self,
        work: asyncio.Task[Any],
        interrupt: Callable[[], Coroutine[Any, Any, object]] | None,
        leaving: Callable[[], object],
    ) -> None:
        self.work = work
        self.told: int | None = None
        self._leaving = leaving
        self._interrupt = interrupt
        self._interrupting: asyncio.Task[object] | None = None
        self._loop = asyncio.get_running_loop()

    def take(self) -> None:
        self._loop.add_signal_handler(signal.SIGINT, self._interrupted)
        for number in _LEAVING:
            self._loop.add_signal_handler(number, self._leave, number)

    def release(self) -> None:
        for number in (signal.SIGINT, *_LEAVING):
            self._loop.remove_signal_handler(number)

    async def join(self) -> None:
        if self._interrupting is not None:
            await self._interrupting

    def _interrupted(self) -> None:
        if self._interrupting is not None or self.told is not None:
            self._go(128 + signal.SIGINT)
        if self._interrupt is None:
            self._leave(signal.SIGINT)
        else:
            self._interrupting = self._loop.create_task(self._interrupt())

    def _leave(self, number: int) -> None:
        if self.told is None:
            self.told = number
            self._loop.call_later(LEAVE_S, self._go, 128 + number)
            self.work.cancel()

    def _go(self, code: int) -> None:
        self._leaving()
        os._exit(code)
