"""`wait`: until a session has settled, whoever drives it."""

from __future__ import annotations

import asyncio
import sys

import click

from perdure.api import Opened, Session
from perdure.cli import driving
from perdure.cli.opening import named, opened, session_argument
from perdure.cli.status import NEEDS_DRIVER, Status, status_of
from perdure.history.line import plain
from perdure.record import records as r
from perdure.record.parts import text_of

LOOK_S = 1.0
"""Between two looks at whether the driver lives; everything else is told at once."""


@click.command
@session_argument
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(0), metavar="S", help="Give up after so many seconds, with exit code 1."
)
def wait(session: str | None, directory: str | None, timeout_s: float | None) -> int:
    """Wait until a session has settled, whoever drives it.

    Its newest answer is printed. A session that waits for an answer of yours ends this too, with exit code 1. One without a driver is waited for:
    `perdure resume --watch` may take it over.
    """
    return asyncio.run(_wait(session, directory, timeout_s))


async def _wait(name: str | None, directory: str | None, timeout_s: float | None) -> int:
    async with opened() as home:
        session = await named(home, name, directory)
        try:
            async with asyncio.timeout(timeout_s):
                status = await rested(home, session)
        except TimeoutError:
            print(f"perdure: session {session.id} has not settled within {timeout_s:g} s", file=sys.stderr)
            return driving.FAILED
        if status.status == "waiting":
            driving.explain_wait(session.id, status.waiting_for, status.detail)
            return driving.FAILED
        return await _outcome(session)


async def rested(home: Opened, session: Session) -> Status:
    """As soon as it neither runs nor needs a driver."""
    store, told = home.home.store, False
    mark = await store.wait(-1, 0.0)
    while True:
        status = status_of(home.home.path, await session.row())
        if status.status != "running" and status.waiting_for != NEEDS_DRIVER:
            return status
        if status.waiting_for == NEEDS_DRIVER and not told:
            driving.explain_wait(session.id, NEEDS_DRIVER, "")
            told = True
        mark = await store.wait(mark, LOOK_S)


async def _outcome(session: Session) -> int:
    """Print the newest answer; the exit code of the submission that settled last."""
    text, last = "", None
    async for stored in session.records():
        match stored.body:
            case r.ModelResponded(parts=parts):
                text = text_of(parts) or text
            case r.SubmissionSettled(outcome=outcome) as body if outcome != "noted":
                last = body
            case _:
                pass
    if last is None:
        return 0
    if last.outcome == "answered":
        print(plain(text))
    else:
        print(f"perdure: {last.outcome}: {plain(last.reason)}", file=sys.stderr)
    return await driving.exit_code(session, last.submission, last.outcome, 0)
