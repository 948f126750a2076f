"""How a session leaves the log. Each function runs inside one transaction of `log.db`.

A removed session keeps its row under a name that nobody can ask for, until its records are gone: a few at a time, whoever comes by. Records that a
fork begins with stay for as long as there is the fork.
"""

from __future__ import annotations

from typing import Any

import apsw

from perdure.log import checks, records, sessions
from perdure.log.store import Grant
from perdure.record.records import Seq

ROWS = 1000
"""Deleted in one transaction."""


def remove(connection: apsw.Connection, grant: Grant, *, inbox_seen: Seq) -> None:
    now = sessions.position(connection, grant.session)
    checks.fence(grant, epoch=now.epoch, held=now.held)
    checks.inbox(grant.session, seen=inbox_seen, inbox_seq=now.inbox_seq)
    connection.execute("DELETE FROM binding WHERE session = ?", (now.row,))
    connection.execute(
        "UPDATE session SET removed = name, name = '(removed) ' || id, owner = NULL, needs_driver = 0, due_at = NULL, busy = 0,"
        " epoch = epoch + 1 WHERE id = ?",
        (now.row,),
    )


def purge(connection: apsw.Connection) -> int | None:
    """Some records of removed sessions, or the row of one that has none left; None where nothing is left to do."""
    removed: list[Any] = connection.execute(
        "SELECT id, (SELECT max(parent_seq) FROM session c WHERE c.parent = s.id) FROM session s WHERE removed IS NOT NULL"
    ).fetchall()
    for row, kept in removed:
        if gone := _records(connection, row, kept or 0) + _keys(connection, row):
            return gone
        if kept is None:
            connection.execute("DELETE FROM session WHERE id = ?", (row,))
            return 0
    return None


def _records(connection: apsw.Connection, row: int, kept: Seq) -> int:
    connection.execute(
        "DELETE FROM record WHERE key IN (SELECT key FROM record WHERE key > ? AND key < ? LIMIT ?)",
        (records.key(row, kept), records.key(row + 1, 0), ROWS),
    )
    return connection.changes()


def _keys(connection: apsw.Connection, row: int) -> int:
    gone = 0
    for table in ("committed", "request"):
        connection.execute(
            f"DELETE FROM {table} WHERE session = :row AND id IN (SELECT id FROM {table} WHERE session = :row LIMIT :few)",
            {"row": row, "few": ROWS},
        )
        gone += connection.changes()
    return gone
