"""How a session leaves its home: the Space first, the log last, so that whatever dies on the way the session is still there and can be removed again.

    acquire → supervisor ended, state folder gone → streamed text gone → lock file gone → the session is gone from the log, if nothing came in meanwhile

The directory that the session worked in is never touched; a copy in the home, which Perdure made for it, goes with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from pathlib import Path

from perdure.engine import applying, copies, embedded, lease, places
from perdure.engine.home import Home
from perdure.log.store import Admission, SessionId, SessionRow
from perdure.record import records as r
from perdure.record.errors import PerdureError, SessionBusyError
from perdure.record.records import Draft
from perdure.space import ending
from perdure.spaced.restore import QUARANTINE
from perdure.spaced.steps import step

LEAVE_S = 10.0
"""So long a living driver may take to stop what it was told to give up."""


async def remove(home: Home, session: SessionId, *, force: bool = False) -> None:
    """As `Opened.remove`."""
    row = await home.store.row(session)
    if reason := await obstacle(home, row):
        if not force:
            raise SessionBusyError(f"session {session} {reason}; remove it all the same with --force")
        await _give_up(home, session)
        row = await home.store.row(session)
    epoch = max(row.epoch, home.spaces.floor(session)) + 1
    lock = lease.DriverLock(places.driver_lock(home.path, session))
    lock.hold(epoch)
    try:
        step("remove.acquire")
        grant, _ = await home.store.acquire(session, home.owner, expected=row.epoch, at_least=epoch)
        try:
            await _dismantle(home, session, epoch)
            lock.remove(epoch)
            step("remove.log")
            await home.store.remove(grant, inbox_seen=row.inbox_seq)
        except BaseException:
            with contextlib.suppress(PerdureError):
                await home.store.release(grant, inbox_seen=row.inbox_seq, rest=row.rest)
            raise
    finally:
        lock.drop(epoch)
    step("remove.purge")
    await home.store.purge()


async def _dismantle(home: Home, session: SessionId, epoch: int) -> None:
    step("remove.space")
    await ending.end(home.spaces.folder(session), epoch)
    step("remove.copy")
    await copies.remove(home.path, session)
    step("remove.live")
    await home.live.forget(session)


async def obstacle(home: Home, row: SessionRow) -> str | None:
    """Why it should not be removed, in words that follow its name."""
    if row.held_by is not None:
        pid = lease.holder(places.driver_lock(home.path, row.session), row.epoch)
        return "has work open, whose driver is gone" if pid is None else f"is driven by process {pid}"
    if row.rest.status == "waiting":
        return f"waits for {row.rest.waiting_for}"
    if row.rest.busy or row.needs_driver or row.rest.status == "running":
        return "has work open"
    if aside := moved_aside(home, row.session):
        return f"keeps files that recovery moved out of the directory ({aside[0]}, …): take them away first"
    if kept := await applying.unapplied(home, row.session):
        return f"{kept}: bring them home with `perdure apply {row.session}` first"
    return None


def moved_aside(home: Home, session: SessionId) -> list[Path]:
    """Files that were too large to be salvaged into the log; they exist nowhere else."""
    folder = home.spaces.folder(session) / "workspace" / QUARANTINE
    return [path for path in folder.rglob("*") if not path.is_dir()]


async def _give_up(home: Home, session: SessionId) -> None:
    """In good order if that can be had: its driver, or one made for it, stops what runs. What can't be driven any more is removed as it is."""
    with contextlib.suppress(PerdureError):
        await _admit(home, session, r.AbortRequested(None, "person", "removed"))
        try:
            released = await embedded.drive(home, session)
        except SessionBusyError:
            await _rested(home, session)
            released = await embedded.drive(home, session, take=True)
        if released.rest.status == "waiting":
            await _admit(home, session, r.RecoveryAnswered("abandon", "abandon"))
            await embedded.drive(home, session)


async def _admit(home: Home, session: SessionId, body: r.AbortRequested | r.RecoveryAnswered) -> None:
    await home.store.admit(session, Admission(uuid.uuid4().hex, Draft(body, "main"), busy=False))


async def _rested(home: Home, session: SessionId) -> None:
    mark = await home.store.wait(-1, 0.0)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LEAVE_S):
            while (await home.store.row(session)).held_by is not None:
                mark = await home.store.wait(mark, LEAVE_S)
