"""Chunks: bytes by their SHA-256, small ones in `log.db` where a commit can carry them, larger ones in `chunks.db`.

Two files, because a bulk of chunks in the log's own file stretches everybody's commits (measured: to 100 ms, and the WAL to 1 GB; apart,
8 ms and 8 MiB). A large chunk is stored when its *presence row* in `log.db` says so. The order keeps that true whatever dies, and
whoever sweeps meanwhile:

    put     pin row (log.db) → bytes (chunks.db) → presence row (log.db); each durable before the next
    commit  finds the presence row of every digest it newly names, or fails, and tells a running sweep (`perdure.log.naming`)
    sweep   presence row → bytes; the bytes only while holding chunks.db's write lock, after a look at log.db: a pin that was there
            spares them, a pin that comes later waits for the lock and writes the bytes again

Bytes without a presence row are litter that a sweep removes.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import suppress

import apsw
from msgspec import Struct

from perdure.log import checks, naming, sweep
from perdure.log.database import Database
from perdure.log.store import SMALL_CHUNK_BYTES, Live, SweepNumber, Swept
from perdure.record.errors import BlobGoneError, PerdureError
from perdure.record.parts import Digest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BATCH_BYTES = 8 << 20
BATCH_CHUNKS = 64
BATCH_LARGE = 8
"""A put's transaction, and the chunks that one job reads: so much keeps others waiting at most."""

WORTH_BYTES = 256
"""Below this compressing is not tried."""

_RAW, _ZSTD = 0, 1


class Packed(Struct, frozen=True):
    """A chunk as it is stored; `size_bytes` is that of the raw bytes."""

    digest: bytes
    size_bytes: int
    codec: int
    data: bytes


# ---- inside a commit's transaction -------------------------------------------------------------------------------------------


def ride(connection: apsw.Connection, rows: list[Packed], at: float) -> None:
    connection.executemany(
        "INSERT INTO chunk (digest, size, stored_at, codec, data) VALUES (?,?,?,?,?) ON CONFLICT (digest) DO NOTHING",
        [(row.digest, row.size_bytes, at, row.codec, row.data) for row in rows],
    )


# ---- the store ---------------------------------------------------------------------------------------------------------------


class SqliteBlobs:
    """The BlobStore over both files. `log` is the store's own file of records, `bulk` is `chunks.db`."""

    def __init__(self, log: Database, bulk: Database, clock: Callable[[], float]) -> None:
        self._log, self._bulk, self._clock = log, bulk, clock

    async def put(self, chunks: Iterable[tuple[Digest, bytes]], *, pin: str, ttl_s: float = 3600.0) -> None:
        for batch in _batches(chunks):
            await self._put(batch, pin, ttl_s)

    async def _put(self, batch: dict[Digest, bytes], pin: str, ttl_s: float) -> None:
        rows = await self.pack(batch)
        while True:
            now = self._clock()
            large = await self._log.write(lambda connection: _begin(connection, rows, pin, now, now + ttl_s))  # noqa: B023
            if not large:
                return
            await self._bulk.write(lambda connection: _store(connection, large))  # noqa: B023
            if await self._log.write(lambda connection: _appear(connection, large, pin, now)):  # noqa: B023
                return

    async def pack(self, blobs: Mapping[Digest, bytes]) -> list[Packed]:
        """Checked against their digests and compressed; much of it on the thread of the bulk, so that no commit waits. Raises UsageError."""
        if sum(map(len, blobs.values())) <= SMALL_CHUNK_BYTES:
            return _pack(blobs)
        return await self._bulk.read(lambda connection: _pack(blobs))

    async def get(self, digests: Iterable[Digest]) -> dict[Digest, bytes]:
        found: dict[Digest, bytes] = {}
        wanted = list(dict.fromkeys(digests))
        for start in range(0, len(wanted), BATCH_CHUNKS):
            found |= await self._get(wanted[start : start + BATCH_CHUNKS])
        return found

    async def _get(self, digests: list[Digest]) -> dict[Digest, bytes]:
        found, large, damaged = await self._log.read(lambda connection: _fetch_small(connection, digests))
        for start in range(0, len(large), BATCH_LARGE):
            part = large[start : start + BATCH_LARGE]
            found |= await self._bulk.read(lambda connection: _fetch_large(connection, part))  # noqa: B023
        damaged |= set(large) - found.keys()
        if damaged:
            await self._log.write(lambda connection: _disown(connection, damaged))
        return found

    async def has(self, digests: Iterable[Digest]) -> set[Digest]:
        found: set[Digest] = set()
        for batch in naming.batches(digests):
            found |= await self._log.read(lambda connection: naming.present(connection, batch))  # noqa: B023
        return found

    async def stored_bytes(self, digests: Iterable[Digest]) -> int:
        total = 0
        for batch in naming.batches(set(digests)):
            for database in (self._log, self._bulk):
                total += await database.read(lambda connection: naming.stored_bytes(connection, batch))  # noqa: B023
        return total

    async def affirm(self, names: Set[Digest]) -> SweepNumber | None:
        """As `naming.touch`, before the commit and a few at a time: holds in it unless a newer sweep than this number began. None: too few."""
        if not naming.many(names):
            return None
        first = (await self._log.read(naming.sweep)).n
        for batch in naming.batches(names):
            if (await self._log.read(naming.sweep)).running:
                await self._log.write(lambda connection: naming.touch(connection, batch))  # noqa: B023
            elif gone := set(batch) - await self.has(batch):
                raise BlobGoneError(tuple(sorted(gone)))
        return first

    async def unpin(self, pin: str) -> None:
        """The rest of what a commit let go of. What is missed expires."""
        with suppress(PerdureError):
            while await self._log.write(lambda connection: naming.unpin(connection, pin)):
                pass

    async def begin_sweep(self) -> SweepNumber:
        return await self._log.write(lambda connection: naming.begin_sweep(connection, self._clock()))

    async def sweep(self, number: SweepNumber, live: Live, *, dry_run: bool = False) -> Swept:
        return await sweep.Sweeping(self._log, self._bulk, number, live, self._clock).run(dry_run=dry_run)


def _batches(chunks: Iterable[tuple[Digest, bytes]]) -> Iterator[dict[Digest, bytes]]:
    batch: dict[Digest, bytes] = {}
    size_bytes = 0
    for digest, data in chunks:
        if digest in batch:
            continue
        if batch and (size_bytes + len(data) > BATCH_BYTES or len(batch) >= BATCH_CHUNKS):
            yield batch
            batch, size_bytes = {}, 0
        batch[digest] = data
        size_bytes += len(data)
    if batch:
        yield batch


def _begin(connection: apsw.Connection, rows: list[Packed], pin: str, now: float, until: float) -> list[Packed]:
    """Pins everything and stores the small ones; what is large and has no presence row yet."""
    connection.executemany(
        "INSERT INTO pin (name, digest, until) VALUES (?,?,?) ON CONFLICT (name, digest) DO UPDATE SET until = excluded.until",
        [(pin, row.digest, until) for row in rows],
    )
    absent = [row for row in rows if not connection.execute("SELECT 1 FROM chunk WHERE digest = ?", (row.digest,)).fetchone()]
    ride(connection, [row for row in absent if row.size_bytes <= SMALL_CHUNK_BYTES], now)
    return [row for row in absent if row.size_bytes > SMALL_CHUNK_BYTES]


def _appear(connection: apsw.Connection, stored: list[Packed], pin: str, at: float) -> bool:
    """False if a pin is gone: it expired, a sweep may have taken the bytes, and they must be stored again."""
    held = {digest for (digest,) in connection.execute("SELECT digest FROM pin WHERE name = ?", (pin,))}
    if any(row.digest not in held for row in stored):
        return False
    connection.executemany(
        "INSERT INTO chunk (digest, size, stored_at, codec, data) VALUES (?,?,?,0,NULL) ON CONFLICT (digest) DO NOTHING",
        [(row.digest, row.size_bytes, at) for row in stored],
    )
    return True


def _store(connection: apsw.Connection, rows: list[Packed]) -> None:
    """Bytes that are there already are written again: without a presence row they may be damaged."""
    connection.executemany(
        "REPLACE INTO chunk (digest, codec, data) VALUES (?,?,?)", [(row.digest, row.codec, row.data) for row in rows]
    )


def _fetch_small(connection: apsw.Connection, digests: list[Digest]) -> tuple[dict[Digest, bytes], list[Digest], set[Digest]]:
    """What lies in the log itself, what lies in the other file, and what is damaged."""
    found: dict[Digest, bytes] = {}
    large: list[Digest] = []
    damaged: set[Digest] = set()
    for digest in digests:
        row = connection.execute("SELECT codec, data FROM chunk WHERE digest = ?", (bytes.fromhex(digest),)).fetchone()
        if row is None:
            continue
        if row[1] is None:
            large.append(digest)
        elif (raw := _unpack(digest, *row)) is not None:
            found[digest] = raw
        else:
            damaged.add(digest)
    return found, large, damaged


def _fetch_large(connection: apsw.Connection, digests: list[Digest]) -> dict[Digest, bytes]:
    found: dict[Digest, bytes] = {}
    for digest in digests:
        row = connection.execute("SELECT codec, data FROM chunk WHERE digest = ?", (bytes.fromhex(digest),)).fetchone()
        if row is not None and (raw := _unpack(digest, *row)) is not None:
            found[digest] = raw
    return found


def _disown(connection: apsw.Connection, damaged: Set[Digest]) -> None:
    """Whoever has the bytes can store them again."""
    connection.executemany("DELETE FROM chunk WHERE digest = ?", [(bytes.fromhex(digest),) for digest in damaged])


def _pack(blobs: Mapping[Digest, bytes]) -> list[Packed]:
    rows = []
    for digest, data in blobs.items():
        checks.chunk(digest, data)
        packed = zstd.compress(data, 1) if len(data) >= WORTH_BYTES else data
        helps = len(packed) < len(data) * 0.9
        rows.append(Packed(bytes.fromhex(digest), len(data), _ZSTD if helps else _RAW, packed if helps else data))
    return rows


def _unpack(digest: Digest, codec: int, data: bytes) -> bytes | None:
    """None where the bytes are not what they were."""
    try:
        raw = zstd.decompress(data) if codec == _ZSTD else data
    except zstd.ZstdError:
        return None
    return raw if hashlib.sha256(raw).hexdigest() == digest else None
