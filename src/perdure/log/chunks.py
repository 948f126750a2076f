"""Chunks: bytes by their SHA-256, small ones in `log.db` where a commit can carry them, larger ones in `chunks.db`.

Two files, because a bulk of chunks in the log's own file stretches everybody's commits (measured: to 100 ms, and the WAL to 1 GB; apart,
8 ms and 8 MiB). A large chunk is stored when its *presence row* in `log.db` says so. The order keeps that true whatever dies, and
whoever sweeps meanwhile:

    put     pin row (log.db) → bytes (chunks.db) → presence row (log.db); each durable before the next
    commit  touches the presence row of every digest it newly names, or fails
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

from perdure.log import checks, sweep
from perdure.log.database import Database
from perdure.log.store import SMALL_CHUNK_BYTES
from perdure.record.errors import BlobGoneError
from perdure.record.parts import Digest

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

BATCH_BYTES = 8 << 20
BATCH_CHUNKS = 256

_RAW, _ZSTD = 0, 1
_Row = tuple[bytes, int, int, bytes]
"""digest, size in bytes, codec, data as stored"""


# ---- inside a commit's transaction -------------------------------------------------------------------------------------------


def pack(blobs: Iterable[tuple[Digest, bytes]]) -> list[_Row]:
    return [(bytes.fromhex(digest), len(data), *_encode(data)) for digest, data in blobs]


def ride(connection: apsw.Connection, rows: list[_Row], at: float) -> None:
    connection.executemany(
        "INSERT INTO chunk (digest, size, stored_at, codec, data) VALUES (?,?,?,?,?) ON CONFLICT (digest) DO UPDATE SET stored_at = ?",
        [(digest, size, at, codec, data, at) for digest, size, codec, data in rows],
    )


def touch(connection: apsw.Connection, names: Set[Digest], at: float) -> None:
    """Every name is stored, and no sweep that began before now takes it. Raises BlobGoneError."""
    gone = []
    for name in names:
        connection.execute("UPDATE chunk SET stored_at = max(stored_at, ?) WHERE digest = ?", (at, bytes.fromhex(name)))
        if connection.changes() == 0:
            gone.append(name)
    if gone:
        raise BlobGoneError(tuple(sorted(gone)))


def unpin(connection: apsw.Connection, pin: str) -> None:
    connection.execute("DELETE FROM pin WHERE name = ?", (pin,))


# ---- the store ---------------------------------------------------------------------------------------------------------------


class SqliteBlobs:
    """The BlobStore over both files. `log` is the store's own file of records, `bulk` is `chunks.db`."""

    def __init__(self, log: Database, bulk: Database, clock: Callable[[], float]) -> None:
        self._log, self._bulk, self._clock = log, bulk, clock

    async def put(self, chunks: Iterable[tuple[Digest, bytes]], *, pin: str, ttl_s: float = 3600.0) -> None:
        for batch in _batches(chunks):
            await self._put(batch, pin, ttl_s)

    async def _put(self, batch: dict[Digest, bytes], pin: str, ttl_s: float) -> None:
        for digest, data in batch.items():
            checks.chunk(digest, data)
        while True:
            now = self._clock()
            large = await self._log.write(lambda connection: _begin(connection, batch, pin, now, now + ttl_s))  # noqa: B023
            if not large:
                return
            await self._bulk.write(lambda connection: _store(connection, large))  # noqa: B023
            if await self._log.write(lambda connection: _appear(connection, large, pin, now)):  # noqa: B023
                return

    async def get(self, digests: Iterable[Digest]) -> dict[Digest, bytes]:
        found: dict[Digest, bytes] = {}
        wanted = list(dict.fromkeys(digests))
        for start in range(0, len(wanted), BATCH_CHUNKS):
            found |= await self._get(wanted[start : start + BATCH_CHUNKS])
        return found

    async def _get(self, digests: list[Digest]) -> dict[Digest, bytes]:
        rows = await self._log.read(lambda connection: _fetch(connection, digests))
        found = _decode({digest: row for digest, row in rows.items() if row[1] is not None})
        if large := [digest for digest, row in rows.items() if row[1] is None]:
            found |= _decode(await self._bulk.read(lambda connection: _fetch(connection, large)))
        if damaged := rows.keys() - found.keys():
            await self._log.write(lambda connection: _disown(connection, damaged))
        return found

    async def has(self, digests: Iterable[Digest]) -> set[Digest]:
        wanted = list(digests)
        return await self._log.read(lambda connection: _present(connection, wanted))

    async def sweep(self, live: Set[Digest], *, before: float) -> int:
        return await sweep.sweep(self._log, self._bulk, live, before=before, clock=self._clock)


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


def _present(connection: apsw.Connection, digests: Iterable[Digest]) -> set[Digest]:
    return {d for d in digests if connection.execute("SELECT 1 FROM chunk WHERE digest = ?", (bytes.fromhex(d),)).fetchone()}


def _begin(connection: apsw.Connection, batch: dict[Digest, bytes], pin: str, now: float, until: float) -> dict[Digest, bytes]:
    """Pins everything and stores the small ones; what is large and has no presence row yet."""
    connection.executemany(
        "INSERT INTO pin (name, digest, until) VALUES (?,?,?) ON CONFLICT (name, digest) DO UPDATE SET until = excluded.until",
        [(pin, bytes.fromhex(digest), until) for digest in batch],
    )
    present = _present(connection, batch)
    absent = {digest: data for digest, data in batch.items() if digest not in present}
    ride(connection, pack((d, data) for d, data in absent.items() if len(data) <= SMALL_CHUNK_BYTES), now)
    return {digest: data for digest, data in absent.items() if len(data) > SMALL_CHUNK_BYTES}


def _appear(connection: apsw.Connection, stored: dict[Digest, bytes], pin: str, at: float) -> bool:
    """False if a pin is gone: it expired, a sweep may have taken the bytes, and they must be stored again."""
    held = {digest for (digest,) in connection.execute("SELECT digest FROM pin WHERE name = ?", (pin,))}
    rows = [(bytes.fromhex(digest), len(data), at) for digest, data in stored.items()]
    if any(digest not in held for digest, _, _ in rows):
        return False
    connection.executemany(
        "INSERT INTO chunk (digest, size, stored_at, codec, data) VALUES (?,?,?,0,NULL) ON CONFLICT (digest) DO NOTHING", rows
    )
    return True


def _store(connection: apsw.Connection, chunks: dict[Digest, bytes]) -> None:
    """Bytes that are there already are written again: without a presence row they may be damaged."""
    for digest, data in chunks.items():
        connection.execute("REPLACE INTO chunk (digest, codec, data) VALUES (?,?,?)", (bytes.fromhex(digest), *_encode(data)))


def _fetch(connection: apsw.Connection, digests: list[Digest]) -> dict[Digest, tuple[int, bytes | None]]:
    """Codec and bytes of those that are there; of a large one `log.db` has no bytes."""
    rows = {d: connection.execute("SELECT codec, data FROM chunk WHERE digest = ?", (bytes.fromhex(d),)).get for d in digests}
    return {digest: row for digest, row in rows.items() if row is not None}


def _disown(connection: apsw.Connection, damaged: Set[Digest]) -> None:
    """Whoever has the bytes can store them again."""
    connection.executemany("DELETE FROM chunk WHERE digest = ?", [(bytes.fromhex(digest),) for digest in damaged])


def _encode(data: bytes) -> tuple[int, bytes]:
    if len(data) < 256:
        return _RAW, data
    packed = zstd.compress(data, 1)
    return (_ZSTD, packed) if len(packed) < len(data) * 0.9 else (_RAW, data)


def _decode(rows: Mapping[Digest, tuple[int, bytes | None]]) -> dict[Digest, bytes]:
    """Without those whose bytes are not what they were."""
    found: dict[Digest, bytes] = {}
    for digest, (codec, data) in rows.items():
        with suppress(zstd.ZstdError):
            raw = zstd.decompress(data or b"") if codec == _ZSTD else data or b""
            if hashlib.sha256(raw).hexdigest() == digest:
                found[digest] = raw
    return found
