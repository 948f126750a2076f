"""Chunks in two files: where they lie, what a race with a sweep can't do, and that damage is never handed out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Set
from pathlib import Path

import apsw
import pytest

from perdure.log import chunks, naming
from perdure.log.conformance import Clock, digest, note, refused, session, swept
from perdure.log.sqlite import SqliteStore
from perdure.log.store import SMALL_CHUNK_BYTES, Swept
from perdure.record.errors import BlobGoneError

NOISE = random.Random(1).randbytes(1 << 20)


async def count(store: SqliteStore, file: str, where: str = "true") -> int:
    database = store._log if file == "log.db" else store._bulk
    return await database.read(lambda c: c.execute(f"SELECT count(*) FROM chunk WHERE {where}").get)


def test_large_chunks_keep_out_of_the_log(tmp_path: Path) -> None:
    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store:
            small, large = NOISE[:SMALL_CHUNK_BYTES], NOISE[: SMALL_CHUNK_BYTES + 1]
            await store.blobs.put([(digest(small), small), (digest(large), large)], pin="p")
            assert await count(store, "log.db", "data IS NOT NULL") == 1
            assert await count(store, "log.db", "data IS NULL") == 1
            assert await count(store, "chunks.db") == 1

    asyncio.run(run())


def test_what_compresses_is_stored_compressed(tmp_path: Path) -> None:
    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store:
            text = b"the same line again and again\n" * 30_000
            data = {digest(each): each for each in (text, text[:50_000], NOISE)}
            await store.blobs.put(data.items(), pin="p")
            stored = await store._bulk.read(lambda c: c.execute("SELECT sum(length(data)) FROM chunk").get)
            assert len(NOISE) <= stored < len(NOISE) + len(text) // 20
            assert await store.blobs.get(data) == data

    asyncio.run(run())


def test_bulk_goes_in_batches(tmp_path: Path) -> None:
    """No transaction holds more than 8 MiB, and the WAL stays near its limit."""

    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store:
            pieces = [random.Random(n).randbytes(1 << 20) for n in range(40)]
            assert all(
                sum(map(len, batch.values())) <= chunks.BATCH_BYTES for batch in chunks._batches((digest(p), p) for p in pieces)
            )
            await store.blobs.put(((digest(piece), piece) for piece in pieces), pin="p")
            assert await store.blobs.has([digest(piece) for piece in pieces]) == {digest(piece) for piece in pieces}
            assert (tmp_path / "chunks.db-wal").stat().st_size < 28 << 20
            assert (tmp_path / "log.db-wal").stat().st_size < 1 << 20

    asyncio.run(run())


def test_damaged_bytes_count_as_missing_and_can_be_stored_again(tmp_path: Path) -> None:
    async def run() -> None:
        small, large = NOISE[:1000], NOISE
        both = {digest(small): small, digest(large): large}
        async with await SqliteStore.open(tmp_path) as store:
            await store.blobs.put(both.items(), pin="p")
        for name in ("log.db", "chunks.db"):
            connection = apsw.Connection(str(tmp_path / name))
            connection.execute("UPDATE chunk SET data = zeroblob(length(data)) WHERE data IS NOT NULL")
            connection.close()
        async with await SqliteStore.open(tmp_path) as store:
            assert await store.blobs.get(both) == {}
            assert await store.blobs.has(both) == set()
            await store.blobs.put(both.items(), pin="p")
            assert await store.blobs.get(both) == both

    asyncio.run(run())


def test_bytes_whose_put_was_cut_off_are_swept(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock()
        async with await SqliteStore.open(tmp_path, clock=clock) as store:
            rows = await store.blobs.pack({digest(NOISE): NOISE})
            large = await store._log.write(lambda c: chunks._begin(c, rows, "p", clock.now, clock.now + 10))
            await store._bulk.write(lambda c: chunks._store(c, large))
            assert await swept(store) == Swept()
            assert await count(store, "chunks.db") == 1, "a put may be going on"
            size = (tmp_path / "chunks.db").stat().st_size
            clock.now += 11
            assert (await swept(store)).bytes >= len(NOISE)
            assert await count(store, "chunks.db") == 0
            assert (tmp_path / "chunks.db").stat().st_size < max(size, 1 << 20)

    asyncio.run(run())


def test_a_put_that_outlived_its_pin_stores_again_what_was_swept(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock()
        async with await SqliteStore.open(tmp_path, clock=clock) as store, await SqliteStore.open(tmp_path, clock=clock) as other:
            store_bulk, sweeps = store._bulk.write, 0

            async def slow_write(work: object) -> object:
                nonlocal sweeps
                done = await store_bulk(work)  # type: ignore[arg-type]
                if not sweeps:
                    sweeps = 1
                    clock.now += 11
                    await swept(other)
                return done

            store._bulk.write = slow_write  # type: ignore[method-assign,assignment]
            await store.blobs.put([(digest(NOISE), NOISE)], pin="p", ttl_s=10)
            assert sweeps
            assert await other.blobs.get([digest(NOISE)]) == {digest(NOISE): NOISE}

    asyncio.run(run())


def test_puts_commits_and_sweeps_at_once_never_leave_a_name_dangling(tmp_path: Path) -> None:
    pieces = [random.Random(n).randbytes(70_000) for n in range(6)]

    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store, await SqliteStore.open(tmp_path) as sweeper:
            grant = await session(store)
            done = asyncio.Event()

            async def sweep() -> None:
                while not done.is_set():
                    await swept(sweeper)

            async def work() -> None:
                for n in range(60):
                    piece = pieces[n % len(pieces)]
                    name = digest(piece)
                    await store.blobs.put([(name, piece)], pin=f"c{n}")
                    assert await store.blobs.get([name]) == {name: piece}
                    try:
                        await store.commit(grant, f"c{n}", [note(name)], names={name})
                    except BlobGoneError:
                        raise AssertionError("it was pinned") from None
                done.set()

            async with asyncio.TaskGroup() as group:
                group.create_task(sweep())
                group.create_task(work())
            await swept(sweeper)
            assert await count(store, "log.db") == 0
            assert await count(store, "chunks.db") == 0
            await refused(BlobGoneError, store.commit(grant, "after", [note("x")], names={digest(pieces[0])}))

    asyncio.run(run())


def test_a_sweep_between_the_look_and_a_commit_of_many_names_is_noticed(tmp_path: Path) -> None:
    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store, await SqliteStore.open(tmp_path) as sweeper:
            grant = await session(store)
            data = {digest(chunk): chunk for chunk in (b"%d" % n for n in range(1200))}
            await store.blobs.put(data.items(), pin="dead", ttl_s=0)
            affirm = store.blobs.affirm

            async def slow_affirm(names: Set[str]) -> int | None:
                number = await affirm(names)
                assert (await swept(sweeper)).chunks == 1200
                return number

            store.blobs.affirm = slow_affirm  # type: ignore[method-assign]
            gone = await refused(BlobGoneError, store.commit(grant, "c", [note("a")], names=set(data)))
            assert isinstance(gone, BlobGoneError) and set(gone.digests) == set(data)

    asyncio.run(run())


def test_a_commit_of_many_names_looks_up_few_in_its_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for it longer than for another one."""
    looked_up: list[int] = []
    touch = naming.touch

    def counted(connection: apsw.Connection, names: Iterable[str]) -> int:
        names = list(names)
        looked_up.append(len(names))
        return touch(connection, names)

    monkeypatch.setattr(naming, "touch", counted)

    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store:
            grant = await session(store)
            data = {digest(chunk): chunk for chunk in (b"%d" % n for n in range(3000))}
            await store.blobs.put(data.items(), pin="c")
            for running in (False, True):
                if running:
                    await store.blobs.begin_sweep()
                await store.commit(grant, f"c{running}", [note("a")], names=set(data))
            assert max(looked_up) <= naming.FEW
            assert await store._log.read(lambda c: c.execute("SELECT count(*) FROM pin").get) == 3000, "of another name"
            await store.commit(grant, "c", [note("a")], names=set(data))
            assert await store._log.read(lambda c: c.execute("SELECT count(*) FROM pin").get) == 0

    asyncio.run(run())
