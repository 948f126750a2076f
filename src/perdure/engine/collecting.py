"""Housekeeping: what no session names any more goes, and old sessions go where somebody asks for that.

    records of removed sessions → sweep begins → every record of every session marks what it names → sweep

A driver may commit at any instant of it: what its commit names is spared by the sweep that runs (`perdure.log.naming`), and chunks that were gone
before it named them it sends again. Killed at any instant a collection has removed only what nobody names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Set
from pathlib import Path

from msgspec import Struct

from perdure.engine import removing
from perdure.engine.home import Home
from perdure.engine.marking import Marks, Met, mark
from perdure.log.store import SessionId, SessionRow
from perdure.record.errors import PerdureError
from perdure.record.parts import Digest
from perdure.space import ending
from perdure.spaced.steps import step

STORE = ("log.db", "log.db-wal", "chunks.db", "chunks.db-wal", "live.db", "live.db-wal")


class Collected(Struct, frozen=True):
    """What went, or would go: `bytes` are those of the chunks as they were stored. `freed_bytes` is what the file system got back."""

    chunks: int
    bytes: int
    records: int = 0
    freed_bytes: int = 0


class Old(Struct, frozen=True):
    """A settled session that may go, since it is `older` than asked for or one of those that are too much."""

    row: SessionRow
    bytes: int | None = None


async def collect(home: Home, *, dry_run: bool = False) -> Collected:
    """Raises CorruptLogError where a chunk is missing that leads on to others: then nothing is collected."""
    before = store_bytes(home.path)
    if dry_run:
        async with Marks() as marks:
            await mark_all(home, marks)
            would = await home.store.blobs.sweep(0, marks.among, dry_run=True)
        return Collected(would.chunks, would.bytes)
    step("collect.purge")
    await asyncio.to_thread(ending.clear, home.path / "spaces")
    records = await home.store.purge()
    number = await home.store.blobs.begin_sweep()
    step("collect.mark")
    async with Marks() as marks:
        await mark_all(home, marks)
        step("collect.sweep")
        swept = await home.store.blobs.sweep(number, marks.among)
    step("collect.end")
    return Collected(swept.chunks, swept.bytes, records, max(0, before - store_bytes(home.path)))


async def mark_all(home: Home, marks: Marks) -> None:
    """Every session that was there when the sweep began, and forks of such as went meanwhile."""
    done: set[SessionId] = set()
    while new := [row.session for row in await home.store.rows() if row.session not in done]:
        for session in new:
            done.add(session)
            await _mark(home, session, marks)


async def _mark(home: Home, session: SessionId, marks: Marks, met: Met | None = None) -> None:
    try:
        await mark(home.store, session, marks, met)
    except PerdureError:
        if session in {row.session for row in await home.store.rows()}:
            raise


# ---- which sessions are old --------------------------------------------------------------------------------------------------


async def old(home: Home, *, older_s: float | None = None, keep_bytes: int | None = None) -> list[Old]:
    """Settled sessions that did not change for so long, and beyond the newest ones that fit: oldest first.

    A session counts with what no newer one, and none that must stay, needs too. Never one with open work, one that runs or one that waits.
    """
    rows = sorted(await home.store.rows(), key=lambda row: row.changed_at, reverse=True)
    may_go = [row for row in rows if await removing.obstacle(home, row) is None]
    found: dict[SessionId, Old] = {}
    if older_s is not None:
        found = {row.session: Old(row) for row in may_go if row.changed_at <= home.clock() - older_s}
    if keep_bytes is not None:
        names = {row.session for row in may_go}
        staying = [row for row in rows if row.session not in names]
        rest = [row for row in may_go if row.session not in found]
        found |= {each.row.session: each for each in await _beyond(home, staying, rest, keep_bytes)}
    return sorted(found.values(), key=lambda each: each.row.changed_at)


async def _beyond(home: Home, staying: list[SessionRow], may_go: list[SessionRow], keep_bytes: int) -> list[Old]:
    total = 0
    beyond: list[Old] = []
    async with Marks() as marks:
        for row in staying:
            total += await _weight(home, row.session, marks)
        for row in may_go:
            weight = await _weight(home, row.session, marks)
            total += weight
            if total > keep_bytes:
                beyond.append(Old(row, weight))
    return beyond


async def _weight(home: Home, session: SessionId, marks: Marks) -> int:
    """Bytes of records and of chunks that were not marked before."""
    total = await home.store.records_bytes(session)

    async def met(digests: Set[Digest]) -> None:
        nonlocal total
        total += await home.store.blobs.stored_bytes(digests)

    await _mark(home, session, marks, met)
    return total


def store_bytes(home: Path) -> int:
    """What the store's files take on the disk."""
    return sum(path.stat().st_size for path in (home / name for name in STORE) if path.exists())
