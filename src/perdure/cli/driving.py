"""Driving a session from a terminal: its events on a screen, signals in hand, and what its end means for the exit code."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from perdure.api import Answer, Session
from perdure.cli.screen import Careful, Screen
from perdure.cli.signals import attended
from perdure.cli.status import NEEDS_DRIVER, answers
from perdure.drive.driver import Released
from perdure.drive.events import Event, Recorded
from perdure.engine import lease, places
from perdure.history.line import plain
from perdure.record import records as r
from perdure.record.errors import PermanentError, SessionBusyError, StaleEpochError
from perdure.record.records import Seq, Stored

T = TypeVar("T")
TICK_S = 0.5
RACE_S = 0.2
FAILED = 1


async def shown(
    session: Session, work: Coroutine[Any, Any, T], screen: Screen, *, leaving: Callable[[], object] = lambda: None
) -> T:
    """The work's outcome, its screen kept moving. The first Ctrl-C aborts what the session does, and its settlement is waited for.

    `leaving` is called before a second one ends this process.
    """

    async def abort() -> None:
        Careful(sys.stderr).write("\nperdure: stopping; Ctrl-C again leaves at once\n")
        await session.abort(by="person", reason="Ctrl-C")

    ticking = asyncio.create_task(_tick(screen))
    try:
        return await attended(work, abort, leaving=leaving)
    finally:
        ticking.cancel()
        screen.close()


async def _tick(screen: Screen) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        screen.tick()


async def settle(session: Session, submission: str, after: Seq, screen: Screen, *, take: bool) -> Answer:
    """Drive until the submission settles or the session waits. Where a living driver has it, follow that one, and go on if it dies.

    The submission's record lies behind `after`; the screen knows the calls before it (`recall`). Raises StaleEpochError when overtaken.
    """
    seen = after
    while not await _settled(session, submission, after):
        released = await _drive(session, screen, take=take)
        if released is None:
            seen = await _follow(session, submission, seen, screen)
        elif not await _settled(session, submission, after):
            return Answer(submission, "waiting", waiting_for=released.rest.waiting_for, detail=released.rest.detail)
    return await session.wait(submission)


async def recall(session: Session, screen: Screen) -> None:
    """Let the screen know the calls that there were: it is told of their ends only by number."""
    started: dict[str, Stored] = {}
    async for stored in session.records():
        match stored.body:
            case r.CallProposed():
                screen(Recorded(stored))
            case r.CallStarted(call=call):
                started[call] = stored
            case r.CallFinished(call=call):
                started.pop(call, None)
            case _:
                pass
    for stored in started.values():
        screen(Recorded(stored))


async def _drive(session: Session, screen: Screen, *, take: bool) -> Released | None:
    """None where somebody else drives, or was faster to begin."""
    begun = False

    def emit(event: Event) -> None:
        nonlocal begun
        begun = True
        screen(event)

    try:
        return await session.drive(emit=emit, take=take)
    except SessionBusyError:
        return None
    except StaleEpochError:
        if begun:
            raise
        return None


async def _settled(session: Session, submission: str, after: Seq) -> bool:
    return any(
        [isinstance(s.body, r.SubmissionSettled) and s.body.submission == submission async for s in session.records(after)]
    )


async def _follow(session: Session, submission: str, seen: Seq, screen: Screen) -> Seq:
    """Show what another driver does until the submission settles or that driver is gone; the last record shown."""
    row = await session.row()
    if row.held_by is None:
        await asyncio.sleep(RACE_S)  # it has locked its epoch and acquires it right now
        return seen

    async def show() -> None:
        nonlocal seen
        async for event in session.observe(seen):
            screen(event)
            if isinstance(event, Recorded):
                seen, body = event.stored.seq, event.stored.body
                if isinstance(body, r.SubmissionSettled) and body.submission == submission:
                    return

    showing = asyncio.create_task(show())
    lapse = asyncio.create_task(lease.lapse(places.driver_lock(session.home.path, session.id), row.epoch, row.held_by))
    try:
        await asyncio.wait((showing, lapse), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (showing, lapse):
            task.cancel()
        await asyncio.gather(showing, lapse, return_exceptions=True)
    return seen


# ---- the end ---------------------------------------------------------------------------------------------------------------


async def exit_code(session: Session, submission: str, outcome: str, after: Seq) -> int:
    """0 answered or noted; 78 where the model's provider will refuse again; else 1."""
    if outcome in ("answered", "noted"):
        return 0
    failure = ""
    async for stored in session.records(after):
        match stored.body:
            case r.ModelFailed(failure=failure):
                pass
            case r.ModelResponded():
                failure = ""
            case r.SubmissionSettled(submission=id) if id == submission:
                break
            case _:
                pass
    return PermanentError.exit_code if outcome == "failed" and failure == "permanent" else FAILED


def explain_wait(session: str, waiting_for: str | None, detail: str) -> None:
    """Why the session does not go on, and what to type."""
    reason = waiting_for or NEEDS_DRIVER
    print(f"perdure: session {session} waits for {reason}{f': {plain(detail)}' if detail else ''}", file=sys.stderr)
    for line in answers(session, reason):
        print(f"    {line}", file=sys.stderr)
