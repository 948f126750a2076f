"""`rm`: sessions that nobody needs any more."""

from __future__ import annotations

import asyncio

import click

from perdure.cli.opening import opened, spelled


@click.command
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION…")
@click.option("--force", is_flag=True, help="Also where work is open or a driver lives: that is given up first.")
def rm(sessions: tuple[str, ...], force: bool) -> None:
    """Remove sessions that nobody needs any more.

    Their logs go, and what recovery salvaged in them. A session must be settled. The directories they worked in stay as they are, and what a fork
    begins with stays with the fork. `gc` gives the room back.
    """
    asyncio.run(_rm(sessions, force))


async def _rm(names: tuple[str, ...], force: bool) -> None:
    async with opened() as home:
        for session in [(await home.home.find(name)).session for name in dict.fromkeys(names)]:
            await home.remove(session, force=force)
            print(f"session {session} is removed")
    print(f"{spelled('gc')} frees the room that it took")
