"""Writes that wait together share a transaction and its sync, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from perdure.log.connection import private_uri
from perdure.log.database import Database
from perdure.log.faults import Disk
from perdure.log.sqlite import prepare_home
from perdure.record.errors import PerdureError, StoreFullError, StoreLockedError, UsageError

STEPS = ["CREATE TABLE thing (name TEXT NOT NULL UNIQUE) STRICT"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(f"counting {tmp_path.name}")
    yield disk
    disk.unregister()


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> None:
    prepare_home(tmp_path)


def add(name: str, then: BaseException | None = None) -> Callable[[apsw.Connection], str]:
    def work(connection: apsw.Connection) -> str:
        connection.execute("INSERT INTO thing VALUES (?)", (name,))
        if then is not None:
            raise then
        return name

    return work


async def things(database: Database) -> list[str]:
    return await database.read(
        lambda connection: [name for (name,) in connection.execute("SELECT name FROM thing ORDER BY rowid")]
    )


async def together(database: Database, *works: Callable[[apsw.Connection], str]) -> list[Any]:
    return await asyncio.gather(*(database.write(work) for work in works), return_exceptions=True)


def test_a_hundred_at_once_need_few_syncs(tmp_path: Path, disk: Disk) -> None:
    async def run() -> None:
        database = Database(tmp_path / "a.db", STEPS, vfs=disk.name)
        await database.open()
        syncs = 0

        def count(kind: str, file: str) -> None:
            nonlocal syncs
            syncs += kind == "sync"

        disk.fail = count
        names = [str(n) for n in range(100)]
        assert await together(database, *map(add, names)) == names
        assert await things(database) == names
        assert syncs < 10
        await database.close()

    asyncio.run(run())


def test_the_failure_of_one_is_its_own(tmp_path: Path) -> None:
    async def run() -> None:
        database = Database(tmp_path / "a.db", STEPS)
        await database.open()
        said = await together(database, add("a"), add("b", UsageError("no")), add("a"), add("c"), add("d", ZeroDivisionError()))
        assert [value if isinstance(value, str) else type(value) for value in said] == [
            "a",
            UsageError,
            apsw.ConstraintError,
            "c",
            ZeroDivisionError,
        ]
        assert await things(database) == ["a", "c"]
        await database.close()

    asyncio.run(run())


def test_a_full_disk_concerns_all_of_a_transaction(tmp_path: Path, disk: Disk) -> None:
    async def run() -> None:
        database = Database(tmp_path / "a.db", STEPS, vfs=disk.name)
        await database.open()
        disk.fail = full
        said = await together(database, *(add(str(n)) for n in range(5)))
        assert {type(value) for value in said} == {StoreFullError}
        disk.fail = None
        assert await things(database) == []
        assert await together(database, *(add(str(n)) for n in range(5))) == ["0", "1", "2", "3", "4"]
        await database.close()

    asyncio.run(run())


def full(kind: str, file: str) -> None:
    if kind == "write":
        raise apsw.exception_for(apsw.SQLITE_FULL)


def test_who_was_told_that_it_is_locked_is_not_served_later(tmp_path: Path) -> None:
    async def run() -> None:
        database = Database(tmp_path / "a.db", STEPS, busy_s=0.01)
        await database.open()
        other = apsw.Connection(private_uri(tmp_path / "a.db"), apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI)
        other.execute("BEGIN IMMEDIATE")
        said = await together(database, add("a"), add("b"))
        assert {type(value) for value in said} == {StoreLockedError}
        other.execute("ROLLBACK")
        assert await database.write(add("c")) == "c"
        assert await things(database) == ["c"]
        other.close()
        await database.close()

    asyncio.run(run())


def test_what_goes_wrong_where_nobody_waits_is_told_to_the_next(tmp_path: Path) -> None:
    class Broken:
        """A gate whose flag can't be looked at, once."""

        left = 1

        def enter(self) -> None: ...
        def leave(self) -> None: ...
        def raise_flag(self, reason: str) -> None: ...

        def raised(self) -> bool:
            self.left -= 1
            if self.left == 0:
                raise PerdureError("the disk is gone")
            return False

    async def run() -> None:
        database = Database(tmp_path / "a.db", STEPS, gate=Broken())
        await database.open()
        with pytest.raises(PerdureError, match="gone"):
            await database.write(add("a"))
        assert await database.write(add("b")) == "b"
        assert await things(database) == ["b"]
        await database.close()

    asyncio.run(run())
