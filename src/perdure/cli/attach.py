"""`attach`: see a session at work that another process drives, and steer it."""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack

import click

from perdure.api import Opened, Session
from perdure.cli import driving
from perdure.cli.opening import named, opened, session_argument
from perdure.cli.recap import recap
from perdure.cli.screen import Careful, Plain, Screen
from perdure.cli.signals import attended
from perdure.cli.status import status_of
from perdure.cli.typist import TypingScreen, Typist
from perdure.drive.events import Event, Recorded
from perdure.history.paint import Paint
from perdure.record.errors import PerdureError
from perdure.record.records import Seq

LOOK_S = 1.0
"""Between two looks at whether the driver lives; everything else is told at once."""


@click.command
@session_argument
def attach(session: str | None, directory: str | None) -> int:
    """See a session at work, whoever drives it, until it rests.

    A line that you type steers it. Ctrl-C leaves, and the work goes on; `perdure abort` stops it.
    """
    return asyncio.run(_attach(session, directory))


async def _attach(name: str | None, directory: str | None) -> int:
    async with opened() as home:
        session = await named(home, name, directory)
        out = Careful(sys.stdout)
        paint = Paint(out)
        seen = (await session.row()).last_seq
        for line in await recap(session):
            out.write(paint.line(line) + "\n")
        typing = TypingScreen(out) if sys.stdin.isatty() and out.isatty() else None
        screen: Screen = typing or Plain(out)
        await driving.recall(session, screen)
        steering = _Steering(session, typing)
        with ExitStack() as stack:
            if typing is not None:
                stack.enter_context(Typist(steering, typing.type))
            try:
                await attended(_watched(home, session, seen, screen))
            finally:
                await steering.sent()
                screen.close()
        status = status_of(home.home.path, await session.row())
        if status.status == "waiting":
            driving.explain_wait(session.id, status.waiting_for, status.detail)
        return driving.FAILED if status.status in ("waiting", "failed") else 0


class _Steering:
    """Sends lines, and says of one that it could not be."""

    def __init__(self, session: Session, screen: TypingScreen | None) -> None:
        self._session = session
        self._screen = screen
        self._tasks: set[asyncio.Task[None]] = set()

    def __call__(self, line: str) -> None:
        task = asyncio.create_task(self._send(line))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def sent(self) -> None:
        await asyncio.gather(*self._tasks)

    async def _send(self, line: str) -> None:
        try:
            await self._session.submit(line, mode="steer")
        except PerdureError as error:
            assert self._screen is not None
            self._screen.say(f"not sent: {error}")


async def _watched(home: Opened, session: Session, seen: Seq, screen: Screen) -> None:
    """Show what happens behind `seen` until nobody drives the session any more."""
    shown = _Shown(session, seen, screen)
    following = asyncio.create_task(shown.follow())
    store = home.home.store
    try:
        mark = await store.wait(-1, 0.0)
        while status_of(home.home.path, await session.row()).status == "running":
            screen.tick()
            mark = await store.wait(mark, LOOK_S)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    await shown.catch_up()


class _Shown:
    """What a screen has been told of a session."""

    def __init__(self, session: Session, seen: Seq, screen: Screen) -> None:
        self._session, self._seen, self._screen = session, seen, screen

    async def follow(self) -> None:
        """For ever."""
        async for event in self._session.observe(self._seen):
            self._show(event)

    async def catch_up(self) -> None:
        async for event in self._session.observe(self._seen, follow=False):
            self._show(event)

    def _show(self, event: Event) -> None:
        self._screen(event)
        if isinstance(event, Recorded):
            self._seen = event.stored.seq
