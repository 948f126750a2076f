"""What the files hold, and how an older file becomes a current one.

A file says its version in `PRAGMA user_version`. Migrations are steps, never changed once released; step n leads from version n to n + 1,
all inside the transaction that a newly opened file starts with. A newer version than ours is refused before anything is read.

`log.db`: a record's key is `session.id << 32 | seq`, so that a session's records lie together, a commit touches one page of them, and
bodies of up to 4 KiB need no overflow page (they would in a table without rowid, from 1 KiB on).
"""

from __future__ import annotations

from collections.abc import Sequence

import apsw

from perdure.record.errors import CorruptLogError, NewerLogError

APPLICATION_ID = 0x50455244
"""`PERD`: what `file(1)` and a curious person find in the header."""

LOG: Sequence[str] = (
    """
    CREATE TABLE session (
        id           INTEGER PRIMARY KEY,
        name         TEXT NOT NULL UNIQUE,
        log_id       TEXT NOT NULL,
        parent       INTEGER REFERENCES session (id),
        parent_seq   INTEGER NOT NULL,
        created_at   REAL NOT NULL,
        changed_at   REAL NOT NULL,
        epoch        INTEGER NOT NULL,
        last_seq     INTEGER NOT NULL,
        inbox_seq    INTEGER NOT NULL,
        owner        BLOB,
        needs_driver INTEGER NOT NULL,
        status       TEXT NOT NULL,
        waiting_for  TEXT,
        due_at       REAL,
        busy         INTEGER NOT NULL,
        detail       TEXT NOT NULL
    ) STRICT;
    CREATE INDEX session_held ON session (id) WHERE owner IS NOT NULL;
    CREATE INDEX session_inbox ON session (id) WHERE needs_driver;
    CREATE INDEX session_timer ON session (due_at) WHERE due_at IS NOT NULL;
    CREATE INDEX session_busy ON session (id) WHERE busy;

    CREATE TABLE record (
        key       INTEGER PRIMARY KEY,
        at        REAL NOT NULL,
        epoch     INTEGER NOT NULL,
        commit_id TEXT NOT NULL,
        thread    TEXT,
        cause     INTEGER,
        trace     TEXT,
        v         INTEGER NOT NULL,
        crc       INTEGER NOT NULL,
        body      BLOB NOT NULL
    ) STRICT;

    CREATE TABLE committed (
        session INTEGER NOT NULL,
        id      TEXT NOT NULL,
        first   INTEGER NOT NULL,
        last    INTEGER NOT NULL,
        at      REAL NOT NULL,
        epoch   INTEGER NOT NULL,
        PRIMARY KEY (session, id)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE request (
        session INTEGER NOT NULL,
        id      TEXT NOT NULL,
        digest  BLOB NOT NULL,
        seq     INTEGER NOT NULL,
        at      REAL NOT NULL,
        PRIMARY KEY (session, id)
    ) STRICT, WITHOUT ROWID;

    CREATE TABLE binding (
        session   INTEGER PRIMARY KEY REFERENCES session (id),
        directory TEXT NOT NULL,
        device    INTEGER NOT NULL,
        inode     INTEGER NOT NULL
    ) STRICT;

    CREATE TABLE chunk (
        id        INTEGER PRIMARY KEY,
        digest    BLOB NOT NULL UNIQUE,
        size      INTEGER NOT NULL,
        stored_at REAL NOT NULL,
        codec     INTEGER NOT NULL,
        data      BLOB
    ) STRICT;

    CREATE TABLE pin (
        name   TEXT NOT NULL,
        digest BLOB NOT NULL,
        until  REAL NOT NULL,
        PRIMARY KEY (name, digest)
    ) STRICT, WITHOUT ROWID;
    """,
    """
    CREATE TABLE sweep (
        n        INTEGER NOT NULL,
        running  INTEGER NOT NULL,
        began_at REAL NOT NULL
    ) STRICT;
    INSERT INTO sweep VALUES (0, 0, 0.0);
    CREATE TABLE spared (digest BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;
    CREATE INDEX pin_digest ON pin (digest);

    ALTER TABLE session ADD COLUMN removed TEXT;
    CREATE INDEX session_removed ON session (id) WHERE removed IS NOT NULL;
    CREATE INDEX session_parent ON session (parent, parent_seq) WHERE parent IS NOT NULL;
    """,
    """
    ALTER TABLE binding ADD COLUMN binds TEXT NOT NULL DEFAULT '[]';
    """,
)

CHUNKS: Sequence[str] = (
    """
    CREATE TABLE chunk (
        id     INTEGER PRIMARY KEY,
        digest BLOB NOT NULL UNIQUE,
        codec  INTEGER NOT NULL,
        data   BLOB NOT NULL
    ) STRICT;
    """,
)

LIVE: Sequence[str] = (
    """
    CREATE TABLE delta (
        session TEXT NOT NULL,
        thread  TEXT NOT NULL,
        turn    INTEGER NOT NULL,
        attempt INTEGER NOT NULL,
        n       INTEGER NOT NULL,
        channel TEXT NOT NULL,
        text    TEXT NOT NULL,
        PRIMARY KEY (session, thread, turn, attempt, n)
    ) STRICT, WITHOUT ROWID;
    """,
)


def migrate(connection: apsw.Connection, steps: Sequence[str]) -> None:
    """Bring the file to the newest version, all or nothing. Raises NewerLogError, CorruptLogError."""
    if _version(connection, steps) == len(steps):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in steps[_version(connection, steps) :]:
            connection.execute(step)
        connection.pragma("application_id", APPLICATION_ID)
        connection.pragma("user_version", len(steps))
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _version(connection: apsw.Connection, steps: Sequence[str]) -> int:
    version, application = connection.pragma("user_version"), connection.pragma("application_id")
    assert isinstance(version, int)
    if application != APPLICATION_ID and connection.execute("SELECT 1 FROM sqlite_schema").fetchone():
        raise CorruptLogError(f"{connection.filename} is a database, but not one of Perdure's; move it away")
    if version > len(steps):
        raise NewerLogError(
            f"{connection.filename} has schema version {version}, this program knows up to {len(steps)}; "
            "use the newer perdure that wrote it"
        )
    return version
