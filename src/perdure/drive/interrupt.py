"""What may stop an effect that runs: an abort that someone admits, or a deadline.

The watch reads the log, since an abort is a record like any other; it folds nothing, so the state changes only where the driver commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection, Coroutine
from typing import Any, Literal, TypeVar

from msgspec import Struct

from perdure.log.store import LogStore, SessionId
from perdure.record.records import AbortRequested, Seq

T = TypeVar("T")

WATCH_S = 3600.0
LOOK_AFTER_S = 0.05
"""Most effects are over before anybody could want to stop them; they are not looked after."""


class Stopped(Struct, frozen=True):
    """Why an effect has to end now. `reason` is for people and the model."""

    cause: Literal["abort", "deadline"]
    reason: str


async def watch(
    store: LogStore, session: SessionId, *, submissions: Collection[str], after: Seq, left_s: float | None
) -> Stopped:
    """Returns when one of the submissions is aborted by a record behind `after`, or after the seconds that are left."""
    try:
        async with asyncio.timeout(left_s):
            return await _aborted(store, session, submissions, after)
    except TimeoutError:
        return Stopped("deadline", "its time is used up")


async def _aborted(store: LogStore, session: SessionId, submissions: Collection[str], after: Seq) -> Stopped:
    mark = await store.wait(-1, 0.0)
    while True:
        async for stored in store.read(session, after):
            after = stored.seq
            body = stored.body
            if isinstance(body, AbortRequested) and (body.submission is None or body.submission in submissions):
                return Stopped("abort", body.reason or f"aborted by {body.by}")
        mark = await store.wait(mark, WATCH_S)


async def either(effect: Awaitable[T], stop: Coroutine[Any, Any, Stopped]) -> T | Stopped:
    """The effect's outcome, or why it was cancelled. A failure of the watch fails the effect."""
    running = asyncio.ensure_future(effect)
    watching: asyncio.Task[Stopped] | None = None
    try:
        await asyncio.wait((running,), timeout=LOOK_AFTER_S)
        if not running.done():
            watching = asyncio.create_task(stop)
            await asyncio.wait((running, watching), return_when=asyncio.FIRST_COMPLETED)
        return await (running if running.done() or watching is None else watching)
    finally:
        stop.close() if watching is None else watching.cancel()
        running.cancel()
        if watching is not None or not running.done():
            await asyncio.gather(running, *([] if watching is None else [watching]), return_exceptions=True)
