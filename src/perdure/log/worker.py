"""A thread that owns one SQLite file: jobs go in as closures, outcomes come back to the event loop that asked.

SQLite blocks (a sync takes 0.1 to 10 ms, a lock up to seconds), so it never runs on the event loop. One thread a file, and not a pool:
transactions of one file exclude each other anyway, and a queue keeps the order in which they were asked for. A job once queued runs
to its end even if whoever asked was cancelled; the order of the queue makes that safe for everything that follows.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Settle = Callable[[Any, BaseException | None], None]


class Worker:
    """`between` runs on the thread when a job's outcome has been handed over, and every `idle_s` while there is none. It must not raise."""

    def __init__(self, name: str, between: Callable[[], None], idle_s: float | None = None) -> None:
        self._queue: SimpleQueue[tuple[Callable[[], Any], _Settle] | None] = SimpleQueue()
        self._between = between
        self._idle_s = idle_s
        self._closed = False
        # A daemon: an interpreter that ends in the middle of a transaction is a crash like any other.
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    async def run(self, job: Callable[[], T]) -> T:
        """The job's outcome. Cancelling the caller leaves the job alone."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            try:
                loop.call_soon_threadsafe(_resolve, future, result, error)
            except RuntimeError:
                assert loop.is_closed()  # nobody is left to be told

        self._put(job, settle)
        return await future

    def call(self, job: Callable[[], T]) -> T:
        """The same for a caller on another thread, which blocks. Workers call each other in one direction only (chunks → log)."""
        future: Future[T] = Future()

        def settle(result: Any, error: BaseException | None) -> None:
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self._put(job, settle)
        return future.result()

    async def close(self, last: Callable[[], None]) -> None:
        """Everything queued, then `last`, then the thread ends."""
        if self._closed:
            return
        await self.run(last)
        self._closed = True
        self._queue.put(None)
        self._thread.join()

    def _put(self, job: Callable[[], Any], settle: _Settle) -> None:
        if self._closed:
            raise RuntimeError(f"{self._thread.name} is closed")
        self._queue.put((job, settle))

    def _serve(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=self._idle_s)
            except Empty:
                self._between()
                continue
            if item is None:
                return
            _do(*item)
            del item  # a waiting thread must not keep the last job's data alive
            self._between()


def _do(job: Callable[[], Any], settle: _Settle) -> None:
    try:
        result, error = job(), None
    except BaseException as raised:
        result, error = None, raised
    settle(result, error)


def _resolve(future: asyncio.Future[T], result: T, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
        future.exception()  # retrieved: a caller that was cancelled meanwhile is no reason for a warning
