"""`compact`: have the conversation so far summed up, so that what the model is sent gets shorter."""

from __future__ import annotations

import asyncio
import sys

import click

from perdure.api import Session
from perdure.cli import driving
from perdure.cli.opening import named, opened, session_argument
from perdure.cli.screen import screen as fitting_screen
from perdure.history.line import plain
from perdure.record import records as r


@click.command
@session_argument
@click.option("--take", is_flag=True, help="Take the session over from a living driver.")
def compact(session: str | None, directory: str | None, take: bool) -> int:
    """Have the conversation so far summed up.

    The model is sent less from then on. It is done between two turns of what runs, or at once if nobody drives. Nothing is lost: records and outputs
    stay, and the model can still read each output. Perdure does this by itself before a conversation becomes too long for its model.
    """
    return asyncio.run(_compact(session, directory, take))


async def _compact(name: str | None, directory: str | None, take: bool) -> int:
    async with opened() as home:
        session = await named(home, name, directory)
        before = await session.row()
        tokens = await _tokens(session)
        id = await session.compact()
        screen = fitting_screen()
        await driving.recall(session, screen)
        ended = await driving.shown(session, driving.settle(session, id, before.last_seq, screen, take=take), screen)
        if ended.outcome == "waiting":
            driving.explain_wait(session.id, ended.waiting_for, ended.detail)
            return driving.FAILED
        if ended.outcome != "noted":
            print(f"perdure: {ended.outcome}: {plain(ended.reason)}", file=sys.stderr)
            return await driving.exit_code(session, id, ended.outcome, before.last_seq)
        done = [s async for s in session.records(before.last_seq) if isinstance(s.body, r.Compacted)]
        if not done:
            print(f"session {session.id}: {ended.reason}")
            return 0
        print(f"session {session.id}: about {tokens:,} tokens before, {await _tokens(session):,} now")
        return 0


async def _tokens(session: Session) -> int:
    thread = (await session.state()).threads.get("main")
    return thread.tokens if thread else 0
