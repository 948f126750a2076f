"""Files of the home that somebody takes away or replaces: no commit is acknowledged that nobody could find again."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from perdure.log.database import Database
from perdure.log.inodes import BESIDE
from perdure.log.sqlite import SqliteStore
from perdure.record.errors import CorruptLogError

STEPS = ("CREATE TABLE t (x)",)


@pytest.fixture(autouse=True)
def home(tmp_path: Path) -> None:
    """New files take this one's mode."""
    (tmp_path / "home.lock").touch(0o600)


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("replaced", [False, True])
def test_a_file_that_was_taken_away_takes_no_commit(tmp_path: Path, beside: str, replaced: bool) -> None:
    async def story() -> None:
        database = Database(tmp_path / "a.db", STEPS)
        await database.write(lambda connection: connection.execute("INSERT INTO t VALUES (1)"))
        file = tmp_path / f"a.db{beside}"
        copy = shutil.copy(file, tmp_path / "copy") if replaced else None
        file.unlink()
        if copy:
            Path(copy).rename(file)
        with pytest.raises(CorruptLogError, match="removed or replaced"):
            await database.write(lambda connection: connection.execute("INSERT INTO t VALUES (2)"))
        await database.close()

    asyncio.run(story())


def test_files_that_stay_are_not_complained_of(tmp_path: Path) -> None:
    """Also where another process comes and goes, and the WAL is emptied."""

    async def story() -> None:
        database, other = Database(tmp_path / "a.db", STEPS), Database(tmp_path / "a.db", STEPS)
        for n in range(3):
            await database.write(lambda connection, n=n: connection.execute("INSERT INTO t VALUES (?)", (n,)))
            await other.write(lambda connection, n=n: connection.execute("INSERT INTO t VALUES (?)", (n,)))
            await other.close()
            other = Database(tmp_path / "a.db", STEPS)
        assert await database.read(lambda connection: connection.execute("SELECT count(*) FROM t").get) == 6
        await database.close()

    asyncio.run(story())


def test_a_home_that_was_removed_is_told_at_every_request(tmp_path: Path) -> None:
    async def story() -> None:
        store = await SqliteStore.open(tmp_path / "home")
        shutil.rmtree(tmp_path / "home")
        for said in ("removed or replaced", "is gone"):
            with pytest.raises(CorruptLogError, match=said):
                await store.rows()
        await store.close()

    asyncio.run(story())
