"""The log on disk: what the files are, what is refused, what stays readable, and what it costs."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
import zlib
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from perdure.log import connection as opening
from perdure.log import sessions
from perdure.log.conformance import Clock, header, note, notes, records, refused, session
from perdure.log.sqlite import SqliteStore
from perdure.log.store import Cut, Header
from perdure.record.errors import CorruptLogError, NewerLogError, UsageError


def on_disk(home: Path, change: Callable[[apsw.Connection], object]) -> None:
    """Change the closed log behind its back."""
    connection = apsw.Connection(str(home / "log.db"))
    change(connection)
    connection.close()


async def a_log(home: Path, texts: list[str]) -> None:
    async with await SqliteStore.open(home) as store:
        grant = await session(store)
        for text in texts:
            await store.commit(grant, text, [note(text)])


def test_only_its_user_can_read_it(tmp_path: Path) -> None:
    async def run() -> None:
        previous = os.umask(0)
        try:
            async with await SqliteStore.open(tmp_path / "home") as store:
                await session(store)
                modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "home").iterdir()}
        finally:
            os.umask(previous)
        assert (tmp_path / "home").stat().st_mode & 0o777 == 0o700
        assert set(modes) == {"home.lock", *(f"{name}.db{end}" for name in ("log", "chunks") for end in ("", "-wal", "-shm"))}
        assert set(modes.values()) == {0o600}

    asyncio.run(run())


def test_a_home_that_can_not_be_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")

    async def run() -> None:
        error = await refused(UsageError, SqliteStore.open(tmp_path / "file" / "home"))
        assert str(tmp_path / "file" / "home") in str(error)

    asyncio.run(run())


def test_every_commit_is_synced_in_wal_mode(tmp_path: Path) -> None:
    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store:
            for file, page in ((store._log, 4096), (store._bulk, 16384)):
                found = await file.read(lambda c: (c.pragma("journal_mode"), c.pragma("synchronous"), c.pragma("page_size")))
                assert found == ("wal", 2, page)

    asyncio.run(run())


def test_a_pragma_that_does_not_take_is_not_trusted(tmp_path: Path) -> None:
    connection = apsw.Connection(":memory:")
    with pytest.raises(UsageError, match="journal_mode"):
        opening._prepare(connection, opening.Pragmas())


def test_an_sqlite_that_loses_commits_is_refused() -> None:
    opening.refuse_old_sqlite(3_051_003)
    with pytest.raises(UsageError, match=r"3\.51\.3"):
        opening.refuse_old_sqlite(3_051_002)


def test_a_log_of_a_newer_release_is_refused_and_untouched(tmp_path: Path) -> None:
    async def run() -> None:
        await a_log(tmp_path, ["a"])
        on_disk(tmp_path, lambda c: c.pragma("user_version", 99))
        before = (tmp_path / "log.db").read_bytes()
        error = await refused(NewerLogError, SqliteStore.open(tmp_path))
        assert "99" in str(error)
        assert (tmp_path / "log.db").read_bytes() == before

    asyncio.run(run())


def test_a_database_of_somebody_else_is_refused(tmp_path: Path) -> None:
    on_disk(tmp_path, lambda c: c.execute("CREATE TABLE theirs (a)"))
    asyncio.run(_refused_as_corrupt(tmp_path))
    (tmp_path / "log.db").write_bytes(b"no database at all, but long enough to look like one" * 100)
    asyncio.run(_refused_as_corrupt(tmp_path))


async def _refused_as_corrupt(home: Path) -> None:
    await refused(CorruptLogError, SqliteStore.open(home))


def test_a_record_of_a_newer_kind_names_itself_and_leaves_the_earlier_ones(tmp_path: Path) -> None:
    async def run() -> None:
        await a_log(tmp_path, ["a", "b", "c"])
        on_disk(tmp_path, lambda c: rewrite(c, 5, b'{"kind":"telepathy"}', v=2))
        async with await SqliteStore.open(tmp_path) as store:
            seen: list[int] = []
            error = await refused(NewerLogError, collect(store, seen))
            assert seen == [1, 2, 3, 4]
            assert "telepathy" in str(error)
            assert [r.seq for r in await records(store, after=5)] == [6]

    asyncio.run(run())


async def collect(store: SqliteStore, seen: list[int]) -> None:
    async for stored in store.read("s"):
        seen.append(stored.seq)


def rewrite(connection: apsw.Connection, seq: int, body: bytes, *, v: int = 1) -> None:
    """With a right sum, as a program would that means it."""
    connection.execute(
        "UPDATE record SET body = ?, v = ?, crc = ? WHERE key & 0xffffffff = ?", (body, v, zlib.crc32(body, seq), seq)
    )


DAMAGE: dict[str, Callable[[apsw.Connection], object]] = {
    "another byte": lambda c: c.execute(
        "UPDATE record SET body = CAST(replace(body, 'b', 'x') AS BLOB) WHERE key & 0xffffffff = 5"
    ),
    "no JSON": lambda c: rewrite(c, 5, b"\0"),
    "no such field type": lambda c: rewrite(c, 5, b'{"kind":"note_added","text":7}'),
    "not there": lambda c: c.execute("DELETE FROM record WHERE key & 0xffffffff = 5"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_record_is_named_and_leaves_the_earlier_ones(damage: str, tmp_path: Path) -> None:
    async def run() -> None:
        await a_log(tmp_path, ["a", "b", "c"])
        on_disk(tmp_path, DAMAGE[damage])
        async with await SqliteStore.open(tmp_path) as store:
            seen: list[int] = []
            error = await refused(CorruptLogError, collect(store, seen))
            assert seen == [1, 2, 3, 4]
            assert "record 5" in str(error)

    asyncio.run(run())


def test_a_damaged_page_leaves_the_records_before_it(tmp_path: Path) -> None:
    async def run() -> None:
        texts = [f"{n} " + "x" * 1500 for n in range(400)]
        await a_log(tmp_path, texts)
        data = bytearray((tmp_path / "log.db").read_bytes())
        at = data.index(b'"text":"300 ')
        page = at - at % 4096
        data[page : page + 4096] = b"\xff" * 4096
        (tmp_path / "log.db").write_bytes(data)
        async with await SqliteStore.open(tmp_path) as store:
            seen: list[int] = []
            error = await refused(CorruptLogError, collect(store, seen))
            assert 250 < len(seen) <= 304
            assert f"record {len(seen) + 1}" in str(error)

    asyncio.run(run())


def test_a_commit_once_begun_is_not_cancelled(tmp_path: Path) -> None:
    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store:
            grant = await session(store)
            for n in range(20):
                task = asyncio.create_task(store.commit(grant, f"c{n}", [note(f"{n}")]))
                await asyncio.sleep(0)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                assert task.cancelled()
            assert await notes(store) == [str(n) for n in range(20)]

    asyncio.run(run())


def test_what_a_commit_raises_leaves_no_trace(tmp_path: Path) -> None:
    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store:
            await session(store)
            before = await records(store)

            def broken(connection: apsw.Connection) -> None:
                connection.execute("DELETE FROM record")
                raise ZeroDivisionError

            await refused(ZeroDivisionError, store._log.write(broken))
            assert await records(store) == before

    asyncio.run(run())


def test_asking_who_is_due_looks_at_no_session_that_is_not(tmp_path: Path) -> None:
    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store:
            plan = await store._log.read(lambda c: [row[3] for row in c.execute("EXPLAIN QUERY PLAN " + sessions.DUE, (0,))])
            reads = [line for line in plan if line.startswith(("SCAN", "SEARCH"))]
            assert len(reads) == 3
            assert all("USING INDEX session_" in line for line in reads), plan

    asyncio.run(run())


def test_a_fork_copies_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store:
            grant = await session(store)
            await store.commit(grant, "c", [note(str(n)) for n in range(500)])
            count = await store._log.read(lambda c: c.execute("SELECT count(*) FROM record").get)
            await store.create(Header("fork", "log-fork", (note("own"),)), parent=Cut("s", 400))
            assert await store._log.read(lambda c: c.execute("SELECT count(*) FROM record").get) == count + 1
            assert await notes(store, "fork") == [*(str(n) for n in range(397)), "own"]

    asyncio.run(run())


def test_a_reader_does_not_hold_up_a_commit(tmp_path: Path) -> None:
    """Nor do records committed meanwhile disturb it."""

    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store:
            grant = await session(store)
            await store.commit(grant, "c", [note(str(n)) for n in range(600)])
            seqs = []
            async for stored in store.read("s"):
                seqs.append(stored.seq)
                if stored.seq % 200 == 0:
                    await store.commit(grant, f"d{stored.seq}", [note("more")])
            assert seqs == list(range(1, 604))

    asyncio.run(run())


def test_the_wal_does_not_grow(tmp_path: Path) -> None:
    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store:
            grant = await session(store)
            for n in range(1500):
                await store.commit(grant, f"c{n}", [note("x" * 4000)])
            assert (tmp_path / "log.db-wal").stat().st_size < 6 << 20

    asyncio.run(run())


def test_the_clock_is_the_stores(tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock(42.0)
        async with await SqliteStore.open(tmp_path, clock=clock) as store:
            await store.create(header("s"))
            assert {stored.at for stored in await records(store)} == {42.0}

    asyncio.run(run())


def test_a_store_can_be_closed_twice_and_opened_again(tmp_path: Path) -> None:
    async def run() -> None:
        store = await SqliteStore.open(tmp_path)
        await session(store)
        await store.close()
        await store.close()
        async with await SqliteStore.open(tmp_path) as again:
            assert (await again.row("s")).epoch == 1
        copy = shutil.copytree(tmp_path, tmp_path / "copy")
        async with await SqliteStore.open(copy) as copied:
            assert (await copied.row("s")).epoch == 1

    asyncio.run(run())


def test_a_commit_costs_little_more_than_its_transaction(memory_path: Path) -> None:
    """Measured beside the bare transaction in the same run, without a disk's moods: the quickest tenth of each."""

    async def run() -> tuple[float, float]:
        async with await SqliteStore.open(memory_path / "home") as store:
            grant = await session(store)
            bare = apsw.Connection(str(memory_path / "bare.db"))
            bare.pragma("journal_mode", "wal")
            bare.execute("CREATE TABLE record (key INTEGER PRIMARY KEY, body BLOB)")
            ours, theirs = [], []
            for n in range(300):
                start = time.perf_counter()
                bare.execute("BEGIN IMMEDIATE")
                bare.execute("INSERT INTO record (body) VALUES (?)", (b"x" * 500,))
                bare.execute("COMMIT")
                middle = time.perf_counter()
                await store.commit(grant, f"c{n}", [note("x" * 450)], inbox_seen=0)
                ours.append(time.perf_counter() - middle)
                theirs.append(middle - start)
            return sorted(ours)[30], sorted(theirs)[30]

    ours_s, bare_s = asyncio.run(run())
    assert ours_s - bare_s < 0.0005, f"{ours_s * 1000:.2f} ms against {bare_s * 1000:.2f} ms"
