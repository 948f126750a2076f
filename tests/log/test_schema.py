"""An older file becomes a current one when it is opened, whole or not at all."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from perdure.log.schema import APPLICATION_ID, CHUNKS, LIVE, LOG, migrate
from perdure.record.errors import CorruptLogError, NewerLogError

FIRST = "CREATE TABLE thing (name TEXT) STRICT; INSERT INTO thing VALUES ('old')"
SECOND = "ALTER TABLE thing ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey'"


def things(connection: apsw.Connection) -> list[tuple[object, ...]]:
    return list(connection.execute("SELECT * FROM thing"))


@pytest.mark.parametrize("steps", [LOG, CHUNKS, LIVE])
def test_a_new_file_gets_every_step_and_says_so(steps: tuple[str, ...], tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "db"))
    for _ in range(2):
        migrate(connection, steps)
        assert connection.pragma("user_version") == len(steps)
        assert connection.pragma("application_id") == APPLICATION_ID


def test_an_older_file_goes_the_steps_that_it_lacks(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "db"))
    migrate(connection, [FIRST])
    migrate(connection, [FIRST, SECOND])
    assert things(connection) == [("old", "grey")]
    with pytest.raises(NewerLogError):
        migrate(connection, [FIRST])


def test_a_step_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "db"))
    migrate(connection, [FIRST])
    with pytest.raises(apsw.SQLError):
        migrate(connection, [FIRST, SECOND, "no SQL"])
    assert things(connection) == [("old",)]
    assert connection.pragma("user_version") == 1


def test_somebody_elses_file_is_not_touched(tmp_path: Path) -> None:
    connection = apsw.Connection(str(tmp_path / "db"))
    connection.execute(FIRST)
    with pytest.raises(CorruptLogError):
        migrate(connection, [SECOND])
    assert things(connection) == [("old",)]
