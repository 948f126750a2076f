"""A disk that fails at any write or sync: nothing acknowledged is lost, nothing is stored twice, and work goes on when it can."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.log.conformance import OWNER, SMALL, digest, header, note, notes, refused
from perdure.log.faults import Disk
from perdure.log.sqlite import SqliteStore
from perdure.log.store import Grant
from perdure.record.errors import CorruptLogError, PerdureError, StoreFullError, UncertainCommitError

GRANT = Grant("s", 1, OWNER)
LARGE = bytes(range(256)) * 1024
FAULTS = {
    "full at a write": ("write", apsw.SQLITE_FULL),
    "EIO at a write": ("write", apsw.SQLITE_IOERR_WRITE),
    "EIO at a sync": ("sync", apsw.SQLITE_IOERR_FSYNC),
}


class Fault:
    """Fails the n-th operation of its kind, once."""

    def __init__(self, kind: str, code: int, at: int) -> None:
        self.kind, self.code, self.left, self.file = kind, code, at, ""

    def __call__(self, kind: str, file: str) -> None:
        if kind == self.kind:
            self.left -= 1
            if self.left == 0:
                self.file = file
                raise apsw.exception_for(self.code)

    @property
    def fired(self) -> bool:
        return self.left <= 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(f"bad {tmp_path.name}")
    yield disk
    disk.unregister()


async def until_done(request: Callable[[], Awaitable[object]]) -> list[PerdureError]:
    """As a driver does it: again after what a failing disk may raise."""
    errors: list[PerdureError] = []
    while len(errors) < 5:
        try:
            await request()
            return errors
        except (StoreFullError, UncertainCommitError) as error:
            errors.append(error)
    raise AssertionError(errors)


async def _life(home: Path, disk: Disk) -> list[PerdureError]:
    """Everything a store does, each request as often as needed; the errors that were met."""
    opened: list[SqliteStore] = []

    async def open_() -> None:
        opened.append(await SqliteStore.open(home, vfs=disk.name))

    errors = await until_done(open_)
    (store,) = opened
    try:
        errors += await until_done(lambda: _create(store))
        for n in range(4):
            errors += await until_done(lambda: store.commit(GRANT, f"c{n}", [note(f"{n}")], blobs={digest(SMALL): SMALL}))  # noqa: B023
            committed = await store.find("s", f"c{n}")
            assert committed is not None
        errors += await until_done(lambda: store.blobs.put([(digest(LARGE), LARGE)], pin="big"))
        errors += await until_done(lambda: store.commit(GRANT, "big", [note("big")], names={digest(LARGE)}))
    finally:
        await store.close()
    return errors


async def _create(store: SqliteStore) -> None:
    if not await store.rows():
        await store.create(header("s"))
    if (await store.row("s")).epoch == 0:
        await store.acquire("s", OWNER, expected=0)


async def _everything_is_there(home: Path) -> None:
    async with await SqliteStore.open(home) as store:
        assert await notes(store) == ["0", "1", "2", "3", "big"]
        assert await store.blobs.get([digest(LARGE), digest(SMALL)]) == {digest(LARGE): LARGE, digest(SMALL): SMALL}


@pytest.mark.parametrize("fault", FAULTS)
def test_one_failure_anywhere_costs_nothing(fault: str, memory_path: Path, disk: Disk) -> None:
    kind, code = FAULTS[fault]
    met: set[type[PerdureError]] = set()
    at = 1
    while True:
        home = memory_path / str(at)
        disk.fail = now = Fault(kind, code, at)
        met |= {type(error) for error in asyncio.run(_life(home, disk))}
        disk.fail = None
        asyncio.run(_everything_is_there(home))
        if not now.fired:
            break
        at += 1
    assert at > 15
    assert met == ({StoreFullError} if code == apsw.SQLITE_FULL else {UncertainCommitError})


@pytest.mark.parametrize("fault", FAULTS)
def test_a_second_process_loses_nothing_either(fault: str, tmp_path: Path, disk: Disk, peer: Callable[[Path], Any]) -> None:
    """It commits to a session of its own all the while, on the same failing disk's files."""
    kind, code = FAULTS[fault]

    async def run(home: Path, other: Any, at: int) -> bool:
        async with await SqliteStore.open(home, vfs=disk.name) as store:
            disk.fail = now = Fault(kind, code, at)
            for n in range(3):
                other.tell(f"commit other {at}.{n} {at}.{n}")
                await until_done(lambda: store.commit(GRANT, f"{at}.{n}", [note(f"{at}.{n}")]))  # noqa: B023
                assert (await asyncio.to_thread(other.heard)).isdigit()
            disk.fail = None
            return now.fired

    async def prepare(home: Path) -> None:
        async with await SqliteStore.open(home) as store:
            for name in ("s", "other"):
                await store.create(header(name))
                await store.acquire(name, OWNER, expected=0)

    asyncio.run(prepare(tmp_path))
    other = peer(tmp_path)
    at = 1
    while asyncio.run(run(tmp_path, other, at)):
        at += 1
    assert at > 2
    expected = ",".join(f"{k}.{n}" for k in range(1, at + 1) for n in range(3))
    assert other.ask("notes s") == expected
    assert other.ask("notes other") == expected


def test_while_the_disk_is_full_everything_can_be_read_and_nothing_is_half_stored(tmp_path: Path, disk: Disk) -> None:
    async def run() -> None:
        async with await SqliteStore.open(tmp_path, vfs=disk.name) as store:
            await _create(store)
            await store.commit(GRANT, "before", [note("before")])
            disk.fail = full
            for n in range(3):
                await refused(StoreFullError, store.commit(GRANT, "c", [note("x" * 10_000 * n)], blobs={digest(SMALL): SMALL}))
                await refused(StoreFullError, store.blobs.put([(digest(LARGE), LARGE)], pin="p"))
                assert await notes(store) == ["before"]
                assert await store.find("s", "c") is None
                assert await store.blobs.has([digest(SMALL), digest(LARGE)]) == set()
            disk.fail = None
            await store.commit(GRANT, "c", [note("after")])
            assert await notes(store) == ["before", "after"]

    asyncio.run(run())


def full(kind: str, file: str) -> None:
    if kind == "write":
        raise apsw.exception_for(apsw.SQLITE_FULL)


def test_a_disk_that_fails_for_good_is_named(tmp_path: Path, disk: Disk) -> None:
    async def run() -> None:
        async with await SqliteStore.open(tmp_path, vfs=disk.name) as store:
            await _create(store)
            await store.commit(GRANT, "before", [note("before")])
            disk.fail = broken
            await refused(UncertainCommitError, store.commit(GRANT, "c", [note("c")]))
            error = await refused(CorruptLogError, store.find("s", "c"))
            assert "check the disk" in str(error)
            disk.fail = None
            assert (await notes(store))[0] == "before"

    asyncio.run(run())


def broken(kind: str, file: str) -> None:
    raise apsw.exception_for(apsw.SQLITE_IOERR_FSYNC if kind == "sync" else apsw.SQLITE_IOERR_WRITE)
