"""After a failed sync nothing is believed until the log was rewritten; then it is known what became of the commit."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.log import quarantine
from perdure.log.conformance import OWNER, digest, header, note, notes, refused
from perdure.log.faults import Disk, Loss, Op, after_power_cut, read_trace
from perdure.log.sqlite import SqliteStore
from perdure.log.store import Grant
from perdure.record.errors import StoreLockedError, UncertainCommitError

GRANT = Grant("s", 1, OWNER)


class NextSync:
    """Fails the next sync of the log's WAL, when armed."""

    armed = False

    def __call__(self, kind: str, file: str) -> None:
        if self.armed and kind == "sync" and file == "log.db-wal":
            self.armed = False
            raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(f"failing {tmp_path.name}", tmp_path / "trace", NextSync())
    yield disk
    disk.unregister()


async def a_commit_that_fails(home: Path, disk: Disk) -> SqliteStore:
    """Leaves one certain commit, then an uncertain one; nothing has been asked of the store since."""
    store = await SqliteStore.open(home, vfs=disk.name)
    await store.create(header("s"))
    await store.acquire("s", OWNER, expected=0)
    await store.commit(GRANT, "certain", [note("certain")])
    disk.ack("certain")
    assert isinstance(disk.fail, NextSync)
    disk.fail.armed = True
    await refused(UncertainCommitError, store.commit(GRANT, "uncertain", [note("uncertain")]))
    return store


def test_the_next_request_finds_out(tmp_path: Path, disk: Disk) -> None:
    async def run() -> None:
        store = await a_commit_that_fails(tmp_path, disk)
        assert (tmp_path / "quarantine").exists()
        inode = (tmp_path / "log.db").stat().st_ino
        survived = await store.find("s", "uncertain")
        assert not (tmp_path / "quarantine").exists()
        assert (tmp_path / "log.db").stat().st_ino != inode
        assert (tmp_path / "log.db").stat().st_mode & 0o777 == 0o600
        assert await notes(store) == ["certain", *(["uncertain"] if survived else [])]
        await store.commit(GRANT, "uncertain", [note("uncertain")])
        assert await notes(store) == ["certain", "uncertain"]
        await store.close()

    asyncio.run(run())


def test_every_process_is_kept_out_until_then(tmp_path: Path, disk: Disk, peer: Callable[[Path], Any]) -> None:
    """The peer leaves at its next request; whichever comes first rewrites the log, and both go on."""

    async def run() -> None:
        store = await a_commit_that_fails(tmp_path, disk)
        other = peer(tmp_path)
        assert not (tmp_path / "quarantine").exists()
        assert "certain" in other.ask("notes s")
        assert isinstance(disk.fail, NextSync)
        disk.fail.armed = True
        await refused(UncertainCommitError, store.commit(GRANT, "again", [note("again")]))
        other.tell("commit s other other")
        assert await store.find("s", "certain") is not None
        assert int(await asyncio.to_thread(other.heard)) > 4
        await store.commit(GRANT, "last", [note("last")])
        found = await notes(store)
        assert {"certain", "other", "last"} <= set(found) and len(found) == len(set(found))
        assert await asyncio.to_thread(other.ask, "notes s") == ",".join(found)
        await store.close()

    asyncio.run(run())


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="needs /proc/locks")
def test_nothing_is_rewritten_under_somebody_elses_feet(
    tmp_path: Path, disk: Disk, peer: Callable[[Path], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopped process can't leave. One that only idles does."""
    monkeypatch.setattr(quarantine, "ALONE_S", 0.2)

    async def run() -> None:
        store = await a_commit_that_fails(tmp_path, disk)
        await store.find("s", "certain")
        other = peer(tmp_path)
        os.kill(other.pid, signal.SIGSTOP)
        assert isinstance(disk.fail, NextSync)
        disk.fail.armed = True
        await refused(UncertainCommitError, store.commit(GRANT, "again", [note("again")]))
        error = await refused(StoreLockedError, store.find("s", "again"))
        assert f"process {other.pid} (" in str(error)
        os.kill(other.pid, signal.SIGCONT)
        monkeypatch.setattr(quarantine, "ALONE_S", 30.0)
        await store.find("s", "again")
        await store.close()

    asyncio.run(run())


class Killed(BaseException):
    pass


@pytest.mark.parametrize("flag_lost", [False, True])
def test_a_repair_that_dies_is_finished_by_the_next(
    flag_lost: bool, tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = quarantine.sync, 0

    def dying(path: Path) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed
        real(path)

    async def run(home: Path) -> None:
        store = await a_commit_that_fails(home, disk)
        monkeypatch.setattr(quarantine, "sync", dying)
        try:
            await store.find("s", "certain")
        except Killed:
            if flag_lost and (home / "log.db.repaired").exists():
                (home / "quarantine").unlink()
        monkeypatch.setattr(quarantine, "sync", real)
        assert await store.find("s", "certain") is not None
        await store.commit(GRANT, "last", [note("last")])
        await store.close()
        assert sorted(path.name for path in home.iterdir()) == ["chunks.db", "home.lock", "log.db"]
        async with await SqliteStore.open(home) as again:
            found = await notes(again)
            assert found[0] == "certain" and found[-1] == "last"

    at = 1
    while left <= 0:
        left = at
        asyncio.run(run(tmp_path / f"{at}.{flag_lost}"))
        at += 1
    assert at > 5


def test_no_power_cut_afterwards_takes_what_was_acknowledged_since(
    tmp_path: Path, memory_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failed sync's pages never get to the disk. What is committed after it must not stand on them."""
    real = quarantine.sync
    rename, unlink = Path.rename, Path.unlink
    monkeypatch.setattr(quarantine, "sync", lambda path: (real(path), disk.record("sync", str(path))))
    monkeypatch.setattr(
        Path, "rename", lambda old, new: (disk.record("rename", str(old), 0, str(new).encode()), rename(old, new))
    )
    monkeypatch.setattr(Path, "unlink", lambda path, **how: (disk.record("delete", str(path)), unlink(path, **how)))

    async def run() -> None:
        store = await a_commit_that_fails(tmp_path / "home", disk)
        assert await store.find("s", "uncertain") is not None, "the next to open finds its frames in the page cache"
        disk.ack("uncertain")
        for n in range(3):
            await store.commit(GRANT, f"c{n}", [note(f"after-{n}")])
            disk.ack(f"after-{n}")
        await store.close()

    asyncio.run(run())
    monkeypatch.undo()
    ops = read_trace(tmp_path / "trace")
    failed = next(i for i, op in enumerate(ops) if op.kind == "lost")
    ends = [i for i in range(failed, len(ops)) if ops[i].kind not in ("write", "ack")]
    assert len(ends) > 20
    for end in [*ends, len(ops)]:
        for loss in Loss:
            _found_again(ops[:end], loss, memory_path / f"{end}.{loss.name}")


def _found_again(ops: list[Op], loss: Loss, home: Path) -> None:
    home.mkdir()
    for name, content in after_power_cut(ops, loss, seed=len(ops)).items():
        (home / Path(name).name).write_bytes(content)

    async def look() -> None:
        async with await SqliteStore.open(home) as store:
            found = await notes(store)
        acknowledged = [op.data.decode() for op in ops if op.kind == "ack"]
        assert [text for text in found if text != "uncertain" or "uncertain" in acknowledged][: len(acknowledged)] == acknowledged

    asyncio.run(look())


def test_a_failed_sync_of_a_checkpoint_counts_too(tmp_path: Path, disk: Disk) -> None:
    """Everything committed is in the WAL, but the file itself can no longer be trusted."""

    async def run() -> None:
        async with await SqliteStore.open(tmp_path, vfs=disk.name) as store:
            await store.create(header("s"))
            await store.acquire("s", OWNER, expected=0)
            inode = (tmp_path / "log.db").stat().st_ino
            failed = 0

            def fail(kind: str, file: str) -> None:
                nonlocal failed
                if kind == "sync" and file == "log.db" and not failed:
                    failed = 1
                    raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)

            disk.fail = fail
            n = 0
            while not failed:
                await store.commit(GRANT, f"{n}", [note(f"{n} " + "x" * 4000)])
                n += 1
                assert n < 2000
            assert len(await notes(store)) == n
            assert (tmp_path / "log.db").stat().st_ino != inode

    asyncio.run(run())


def test_chunks_stored_after_a_failed_sync_do_not_stand_on_it(tmp_path: Path, disk: Disk) -> None:
    """`chunks.db` is not rewritten. Its process may be killed with the failed frames still in the WAL, where the next one finds them."""
    first, second = (bytes([n]) * 100_000 + bytes(range(256)) for n in (1, 2))

    async def run() -> None:
        store = await SqliteStore.open(tmp_path / "home", vfs=disk.name)
        disk.fail = fail_sync_of_chunks
        await refused(UncertainCommitError, store.blobs.put([(digest(first), first)], pin="p"))
        disk.fail = None
        leave_wal(store)
        await store.close()
        async with await SqliteStore.open(tmp_path / "home", vfs=disk.name) as again:
            assert await again.blobs.has([digest(first)]) == set()
            await again.blobs.put([(digest(second), second)], pin="p")
            disk.ack("second")

    asyncio.run(run())
    ops = read_trace(tmp_path / "trace")
    stored = next(i for i, op in enumerate(ops) if op.kind == "ack")
    for loss in Loss:
        home = tmp_path / loss.name
        home.mkdir()
        for name, content in after_power_cut(ops[: stored + 1], loss, seed=1).items():
            (home / Path(name).name).write_bytes(content)
        assert asyncio.run(chunks_of(home, digest(second))) == {digest(second): second}


def fail_sync_of_chunks(kind: str, file: str) -> None:
    if kind == "sync" and file == "chunks.db-wal":
        raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC)


def leave_wal(store: SqliteStore) -> None:
    """As a kill would."""
    store._bulk._quarantined = lambda: True  # type: ignore[method-assign]


async def chunks_of(home: Path, name: str) -> dict[str, bytes]:
    async with await SqliteStore.open(home) as store:
        return await store.blobs.get([name])
