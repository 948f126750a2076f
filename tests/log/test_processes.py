"""Several processes at one home: they neither lose each other's commits nor freeze each other."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.log import database, holder
from perdure.log.conformance import note, notes, refused, session
from perdure.log.sqlite import SqliteStore
from perdure.record.errors import StoreLockedError

pytestmark = pytest.mark.crash
Start = Callable[[Path], Any]


@asynccontextmanager
async def opened(home: Path, busy_s: float = 0.2) -> AsyncIterator[SqliteStore]:
    async with await SqliteStore.open(home, busy_s=busy_s) as store:
        yield store


def test_processes_commit_at_once(tmp_path: Path, peer: Start) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            grants = [await session(store, name) for name in ("a", "b", "c")]
            peers = [peer(tmp_path), peer(tmp_path)]
            for name, each in zip("ab", peers, strict=True):
                each.tell(f"burst {name} 150")
            for n in range(150):
                await store.commit(grants[2], f"c{n}", [note(f"{n}")])
            for each in peers:
                assert await asyncio.to_thread(each.heard) == "done"
            for name in "abc":
                assert await notes(store, name) == [str(n) for n in range(150)]

    asyncio.run(run())


def test_another_processs_commit_is_noticed(tmp_path: Path, peer: Start) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            await session(store)
            other = peer(tmp_path)
            mark = await store.wait(0, 0.1)
            while (settled := await store.wait(mark, 0.1)) != mark:
                mark = settled
            waiting = asyncio.create_task(store.wait(mark, 30))
            await asyncio.sleep(0)
            other.tell("admit s r hello")
            async with asyncio.timeout(10):
                assert await waiting != mark
            assert await notes(store) == ["hello"]

    asyncio.run(run())


@pytest.mark.parametrize(("kind", "at"), [*(("write", n) for n in range(1, 7)), ("sync", 1)])
def test_a_writer_killed_in_mid_commit_leaves_all_or_nothing(kind: str, at: int, tmp_path: Path, peer: Start) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            grant = await session(store)
            other = peer(tmp_path)
            assert other.ask("commit s first 1") == "4"
            assert other.ask(f"die {kind} {at} s second 2") == ""
            assert other.process.wait(timeout=10) == -signal.SIGKILL
            survived = await store.find("s", "second")
            assert await notes(store) == (["1"] if survived is None else ["1", "2"])
            await store.commit(grant, "third", [note("3")])
            assert (await notes(store))[-1] == "3"

    asyncio.run(run())


needs_proc = pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs /proc/locks")


@needs_proc
@pytest.mark.parametrize("begin", ["BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"])
def test_a_process_stopped_in_a_transaction_is_ended(begin: str, tmp_path: Path, peer: Start) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            grant = await session(store)
            other = peer(tmp_path)
            assert other.ask(f"stop {begin}") == "inside"
            await store.commit(grant, "c", [note("went on")])
            assert other.process.wait(timeout=10) == -signal.SIGKILL
            assert await notes(store) == ["went on"]

    asyncio.run(run())


@needs_proc
def test_a_living_holder_is_named_and_left_alone(tmp_path: Path, peer: Start) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            grant = await session(store)
            other = peer(tmp_path)
            assert other.ask("hold BEGIN IMMEDIATE") == "inside"
            error = await refused(StoreLockedError, store.commit(grant, "c", [note("waits")]))
            assert f"process {other.pid} (" in str(error) and "running" in str(error)
            assert other.process.poll() is None
            assert await notes(store) == []
            other.end()
            await store.commit(grant, "c", [note("went on")])

    asyncio.run(run())


@needs_proc
def test_a_stopped_holder_that_goes_on_is_left_alone(tmp_path: Path, peer: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            grant = await session(store)
            other = peer(tmp_path)
            assert other.ask("stop BEGIN IMMEDIATE") == "inside"
            between = holder.time.sleep
            monkeypatch.setattr(holder.time, "sleep", lambda s: (os.kill(other.pid, signal.SIGCONT), between(s)))
            await store.commit(grant, "c", [note("went on")])
            assert other.heard() == "left"
            assert other.ask("notes s") == "went on"

    asyncio.run(run())


@needs_proc
def test_a_stopped_holder_of_another_user_is_left_alone(tmp_path: Path, peer: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with opened(tmp_path) as store:
            grant = await session(store)
            other = peer(tmp_path)
            monkeypatch.setattr(holder.os, "getuid", lambda: os.geteuid() + 1)
            assert other.ask("stop BEGIN IMMEDIATE") == "inside"
            error = await refused(StoreLockedError, store.commit(grant, "c", [note("waits")]))
            assert "stopped" in str(error)
            assert other.process.poll() is None

    asyncio.run(run())


@needs_proc
def test_a_stopped_reader_does_not_let_the_wal_grow_for_ever(
    tmp_path: Path, peer: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAL_LIMIT_BYTES", 5 << 20)

    async def run() -> None:
        async with opened(tmp_path) as store:
            grant = await session(store)
            other = peer(tmp_path)
            assert other.ask("stop BEGIN") == "inside"
            n = 0
            while other.process.poll() is None:
                n += 1
                assert n < 1000
                await store.commit(grant, f"c{n}", [note("x" * 40_000)])
            assert other.process.wait() == -signal.SIGKILL
            for more in range(200):
                await store.commit(grant, f"d{more}", [note("x" * 40_000)])
            assert (tmp_path / "log.db-wal").stat().st_size < 12 << 20

    asyncio.run(run())


@needs_proc
def test_a_holder_is_found_where_stat_numbers_devices_otherwise(
    tmp_path: Path, peer: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On btrfs `/proc/locks` has the file system's number, and stat(2) that of the subvolume."""
    real = Path.stat

    async def run() -> None:
        async with opened(tmp_path) as store:
            await session(store)
            other = peer(tmp_path)
            assert other.ask("hold BEGIN IMMEDIATE") == "inside"

            class Status:
                st_dev, st_ino = 12345, real(tmp_path / "log.db-shm").st_ino

            monkeypatch.setattr(Path, "stat", lambda path, **how: Status if path.name == "log.db-shm" else real(path, **how))
            assert holder.holders(tmp_path / "log.db-shm", holder.WRITER) == [other.pid]
            monkeypatch.undo()

    asyncio.run(run())
