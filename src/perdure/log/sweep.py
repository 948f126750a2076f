"""Collection of chunks that nothing names any more. `perdure.log.chunks` says why the order is this one.

A sweep walks the digests in order, through an index and not through the bytes, a few thousand at a time: its memory does not grow with the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import apsw

from perdure.log import naming
from perdure.log.database import Database
from perdure.log.store import Live, SweepNumber, Swept
from perdure.record.parts import Digest

ROWS = 5000
"""Digests looked at in one job."""

GOING = 100
VACUUM_PAGES = 64
PAUSE_S = 0.005
"""Removed, and given back, in one transaction; and a pause behind each in which those get the lock who only look for it now and then."""


class Sweeping:
    """One sweep of both files."""

    def __init__(self, log: Database, bulk: Database, number: SweepNumber, live: Live, clock: Callable[[], float]) -> None:
        self._log, self._bulk, self._number, self._live, self._clock = log, bulk, number, live, clock

    async def run(self, *, dry_run: bool) -> Swept:
        """Presence rows first, then the bytes of every large chunk that has none."""
        now = self._clock()
        if not dry_run:
            await self._log.write(lambda connection: connection.execute("DELETE FROM pin WHERE until <= ?", (now,)))
        chunks, size_bytes, last = 0, 0, b""
        while digests := await self._log.read(lambda connection: _next(connection, last)):  # noqa: B023
            last = digests[-1]
            names = [digest.hex() for digest in digests]
            doomed = sorted(set(names) - await self._live(names))
            for part in naming.batches(doomed, GOING):
                found = await self._vanish(part, now, dry_run=dry_run)
                chunks += len(found)
                size_bytes += sum(size for _, size in found if size is not None)
                if dry_run:
                    without = [digest for digest, size in found if size is None]
                    size_bytes += await self._bulk.read(lambda connection: naming.stored_bytes(connection, without))  # noqa: B023
                elif found:
                    await _pause()
        if not dry_run:
            size_bytes += await self._drop_litter()
            await self._log.write(lambda connection: naming.end_sweep(connection, self._number))
            await _shrink(self._log)
        return Swept(chunks, size_bytes)

    async def _vanish(self, doomed: Sequence[Digest], now: float, *, dry_run: bool) -> list[tuple[Digest, int | None]]:
        """Those of them that nobody spares, with their size where they lie in the log; gone unless this is only a rehearsal."""
        wanted = naming.listed(doomed)
        if dry_run:
            return await self._log.read(lambda connection: _loose(connection, wanted, now, now))

        def vanish(connection: apsw.Connection) -> list[tuple[Digest, int | None]]:
            found = _loose(connection, wanted, now, naming.running_sweep(connection, self._number).began_at)
            gone = naming.listed(digest for digest, _ in found)
            connection.execute("DELETE FROM chunk WHERE digest IN (SELECT unhex(value) FROM json_each(?))", (gone,))
            return found

        return await self._log.write(vanish)

    async def _drop_litter(self) -> int:
        """The bytes of chunks that have neither a presence row nor a pin; how many."""
        last, dropped_bytes = b"", 0
        while digests := await self._bulk.read(lambda connection: _next(connection, last)):  # noqa: B023
            last = digests[-1]
            litter = await self._log.read(lambda connection: _unwanted(connection, digests))
            for part in naming.batches(litter):
                dropped_bytes += await self._bulk.write(lambda connection: _drop(connection, self._log, part))  # noqa: B023
        await _shrink(self._bulk)
        return dropped_bytes


def _next(connection: apsw.Connection, after: bytes) -> list[bytes]:
    return [d for (d,) in connection.execute("SELECT digest FROM chunk WHERE digest > ? ORDER BY digest LIMIT ?", (after, ROWS))]


def _loose(connection: apsw.Connection, wanted: str, now: float, began_at: float) -> list[tuple[Digest, int | None]]:
    """`stored_at` is looked at for those who still run a Perdure that knew no other way to spare a chunk."""
    rows = connection.execute(
        "SELECT lower(hex(digest)), length(data) FROM chunk WHERE digest IN (SELECT unhex(value) FROM json_each(?)) AND stored_at <= ?"
        " AND digest NOT IN (SELECT digest FROM spared)"
        " AND NOT EXISTS (SELECT 1 FROM pin WHERE pin.digest = chunk.digest AND until > ?)",
        (wanted, began_at, now),
    )
    return [(digest, size) for digest, size in rows]


def _drop(connection: apsw.Connection, log: Database, litter: Sequence[Digest]) -> int:
    """Looks at the log again, now that the lock is held: whoever pins later writes the bytes after us."""
    still = log.read_from_thread(lambda other: _unwanted(other, [bytes.fromhex(digest) for digest in litter]))
    size_bytes = naming.stored_bytes(connection, still)
    connection.execute("DELETE FROM chunk WHERE digest IN (SELECT unhex(value) FROM json_each(?))", (naming.listed(still),))
    return size_bytes


def _unwanted(connection: apsw.Connection, digests: Sequence[bytes]) -> list[Digest]:
    """Those with neither a presence row nor a pin, expired or not: an expired one may still be honoured by the put that set it."""
    rows = connection.execute(
        "SELECT value FROM json_each(?) WHERE NOT EXISTS (SELECT 1 FROM chunk WHERE digest = unhex(value))"
        " AND unhex(value) NOT IN (SELECT digest FROM pin)",
        (naming.listed(digest.hex() for digest in digests),),
    )
    return [digest for (digest,) in rows]


async def _shrink(database: Database) -> None:
    """Give free pages back to the file system, a few at a time; in a file made before that was possible they are used again instead."""
    while await database.read(_vacuum):
        await _pause()
    await database.write_back()


async def _pause() -> None:
    await asyncio.sleep(PAUSE_S)


def _vacuum(connection: apsw.Connection) -> bool:
    """Whether there may be more."""
    before = connection.pragma("freelist_count")
    for _ in connection.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})"):
        pass
    after = connection.pragma("freelist_count")
    assert isinstance(before, int) and isinstance(after, int)
    return 0 < after < before
