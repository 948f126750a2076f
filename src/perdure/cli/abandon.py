"""`abandon`: the last word on a session that can't, or shall not, go on."""

from __future__ import annotations

import asyncio

import click

from perdure.cli import driving
from perdure.cli.opening import named, opened, session_argument
from perdure.cli.screen import screen as fitting_screen
from perdure.cli.status import status_of


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
            await session.answer(status_of(home.home, row).waiting_for or "", "abandon")
            await session.abort(reason="abandoned")
            screen = fitting_screen()
            released = await driving.shown(session, session.drive(emit=screen, take=take), screen)
            if released.rest.status == "waiting":
                driving.explain_wait(session.id, released.rest.waiting_for, released.detail)
                return driving.FAILED
        print(f"session {session.id} is given up; {await session.directory()} is free")
        return 0
