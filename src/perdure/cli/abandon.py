"""`abandon`: the last word on a session that can't, or shall not, go on."""

from __future__ import annotations

import asyncio

import click

from perdure.api import Opened, Session
from perdure.cli import driving
from perdure.cli.opening import named, opened, session_argument
from perdure.cli.screen import Screen
from perdure.cli.screen import screen as fitting_screen
from perdure.cli.waiting import rested
from perdure.record.errors import SessionBusyError


@click.command
@session_argument
@click.option("--take", is_flag=True, help="Take the session over from a living driver.")
def abandon(session: str | None, directory: str | None, take: bool) -> int:
    """Give a session up, so that another may use its directory.

    What it does is stopped as by `abort`. Where recovery would wait for you, it does not: the open call ends `unknown`, and the files stay as they are.
    The log stays readable.
    """
    return asyncio.run(_abandon(session, directory, take))


async def _abandon(name: str | None, directory: str | None, take: bool) -> int:
    async with opened() as home:
        session = await named(home, name, directory)
        row = await session.row()
        if row.rest.busy or row.held_by is not None or row.needs_driver:
            await session.abort(reason="abandoned")
            screen = fitting_screen()
            await driving.shown(session, _give_up(home, session, screen, take), screen)
        print(f"session {session.id} is given up; {await session.directory()} is free")
        return 0


async def _give_up(home: Opened, session: Session, screen: Screen, take: bool) -> None:
    """In good order if that can be had: a command that runs is stopped. Where the session would wait, what is open is left as it is."""
    await driving.recall(session, screen)
    try:
        released = await session.drive(emit=screen, take=take)
    except SessionBusyError:
        await rested(home, session)  # its driver stops it
        return
    if released.rest.status == "waiting":
        await session.abandon()
        await session.drive(emit=screen)
