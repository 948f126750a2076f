"""Collection of chunks that nothing names any more. `perdure.log.chunks` says why the order is this one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Set

import apsw

from perdure.log.database import Database
from perdure.record.parts import Digest

ROWS = 5000
"""Looked at in one job, so that commits are never kept waiting for long."""

VACUUM_PAGES = 1024


async def sweep(log: Database, bulk: Database, live: Set[Digest], *, before: float, clock: Callable[[], float]) -> int:
    """Presence rows first, then the bytes of every large chunk that has none; how many chunks went."""
    now = clock()
    await log.write(lambda connection: connection.execute("DELETE FROM pin WHERE until <= ?", (now,)))
    gone, last = 0, 0
    while (found := await log.read(lambda connection: _old(connection, last, before))) is not None:  # noqa: B023
        candidates, last = found
        doomed = [digest for digest in candidates if digest.hex() not in live]
        if doomed:
            gone += await log.write(lambda connection: _vanish(connection, doomed, before))  # noqa: B023
    await _drop_litter(log, bulk)
    return gone


def _old(connection: apsw.Connection, after: int, before: float) -> tuple[list[bytes], int] | None:
    """Digests stored before that time among the next rows, and the last row looked at; None at the end."""
    rows = list(connection.execute("SELECT id, digest, stored_at FROM chunk WHERE id > ? ORDER BY id LIMIT ?", (after, ROWS)))
    return ([digest for _, digest, stored_at in rows if stored_at < before], rows[-1][0]) if rows else None


def _vanish(connection: apsw.Connection, doomed: list[bytes], before: float) -> int:
    pinned = _pinned(connection)
    vanished = 0
    for digest in doomed:
        if digest not in pinned:
            connection.execute("DELETE FROM chunk WHERE digest = ? AND stored_at < ?", (digest, before))
            vanished += connection.changes()
    return vanished


async def _drop_litter(log: Database, bulk: Database) -> None:
    last = b""
    while digests := await bulk.read(lambda connection: _next(connection, last)):  # noqa: B023
        last = digests[-1]
        litter = await log.read(lambda connection: _unwanted(connection, digests))
        if litter:
            await bulk.write(lambda connection: _drop(connection, log, litter))  # noqa: B023
            while await bulk.read(_vacuum):
                pass


def _next(connection: apsw.Connection, after: bytes) -> list[bytes]:
    return [d for (d,) in connection.execute("SELECT digest FROM chunk WHERE digest > ? ORDER BY digest LIMIT ?", (after, ROWS))]


def _drop(connection: apsw.Connection, log: Database, litter: list[bytes]) -> None:
    """Looks at the log again, now that the lock is held: whoever pins later writes the bytes after us."""
    still = log.read_from_thread(lambda other: _unwanted(other, litter))
    connection.executemany("DELETE FROM chunk WHERE digest = ?", [(digest,) for digest in still])


def _unwanted(connection: apsw.Connection, digests: Iterable[bytes]) -> list[bytes]:
    """Those with neither a presence row nor a pin, expired or not: an expired one may still be honoured by the put that set it."""
    pinned = _pinned(connection)
    absent = (d for d in digests if not connection.execute("SELECT 1 FROM chunk WHERE digest = ?", (d,)).fetchone())
    return [digest for digest in absent if digest not in pinned]


def _pinned(connection: apsw.Connection) -> set[bytes]:
    return {digest for (digest,) in connection.execute("SELECT digest FROM pin")}


def _vacuum(connection: apsw.Connection) -> bool:
    """Give some free pages back to the file system; whether there may be more."""
    before = connection.pragma("freelist_count")
    for _ in connection.execute(f"PRAGMA incremental_vacuum({VACUUM_PAGES})"):
        pass
    after = connection.pragma("freelist_count")
    assert isinstance(before, int) and isinstance(after, int)
    return 0 < after < before
