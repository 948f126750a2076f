"""Opening one SQLite file the way Perdure needs it, and not otherwise."""

from __future__ import annotations

import sys
import time
from contextlib import suppress
from pathlib import Path

import apsw
from msgspec import Struct

from perdure.record.errors import UsageError

OLDEST_SQLITE = 3_051_003
"""Before 3.51.3 a checkpoint racing with a commit could lose committed pages (the WAL-reset bug, sqlite.org/wal.html)."""

WAL_LIMIT_BYTES = 64 << 20
"""Above it somebody has been reading for very long, and is looked for. Once that one is gone, the file shrinks to twice what starts a checkpoint."""

SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.0003, 0.004
"""Between two looks at a lock that somebody else holds: commits hold it for less."""


class Pragmas(Struct, frozen=True):
    """How a file is opened and written; its pragmas are verified.

    `checkpoint_pages` is the length of the WAL that starts a checkpoint, `group_writes` how many waiting writes may share a transaction.
    """

    synchronous: int = 2
    page_bytes: int = 4096
    checkpoint_pages: int = 1000
    incremental_vacuum: bool = False
    group_writes: int = 64


def connect(path: Path, pragmas: Pragmas, vfs: str | None, *, busy_s: float) -> apsw.Connection:
    """A connection in WAL mode, with every pragma in force; the file is made if need be. Raises UsageError, or what SQLite says."""
    refuse_old_sqlite(apsw.SQLITE_VERSION_NUMBER)
    connection = apsw.Connection(private_uri(path), PRIVATE, vfs)
    try:
        be_patient(connection, busy_s)
        _prepare(connection, pragmas)
        _forget_old_wal(connection, busy_s)
    except BaseException:
        shut(connection)
        raise
    return connection


def be_patient(connection: apsw.Connection, busy_s: float) -> None:
    """Wait so long for a lock, with many short looks.

    SQLite's own looks grow to 100 ms apart, so that of processes that commit all the time one may wait for seconds behind the others.
    """
    since = 0.0

    def look_again(looks: int) -> bool:
        nonlocal since
        now = time.monotonic()
        if looks == 0:
            since = now
        if now - since >= busy_s:
            return False
        time.sleep(min(LONGEST_LOOK_S, SHORTEST_LOOK_S * 2.0 ** min(looks, 8)))
        return True

    connection.set_busy_handler(look_again)


def shut(connection: apsw.Connection) -> None:
    """Close. Where the last checkpoint fails, the WAL stays beside the file and holds what it could not write."""
    with suppress(apsw.IOError, apsw.FullError):
        connection.close()


def refuse_old_sqlite(version: int) -> None:
    if version < OLDEST_SQLITE:
        raise UsageError(f"SQLite {version} can lose commits in WAL mode; 3.51.3 or newer is needed: install a newer apsw")


PRIVATE = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI


def private_uri(path: Path) -> str:
    """Names a file that, if it is made now, only its user may read: it takes the mode of `home.lock` beside it."""
    pattern = path.absolute().with_name("home.lock").as_uri().removeprefix("file://")
    return f"{path.absolute().as_uri()}?modeof={pattern}"


def _prepare(connection: apsw.Connection, wanted: Pragmas) -> None:
    connection.pragma("page_size", wanted.page_bytes)
    if wanted.incremental_vacuum and connection.pragma("auto_vacuum") != 2:  # said again it would be written again
        connection.pragma("auto_vacuum", 2)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", wanted.synchronous)
    connection.pragma("wal_autocheckpoint", 0)
    connection.pragma("journal_size_limit", 2 * wanted.checkpoint_pages * wanted.page_bytes)
    connection.pragma("trusted_schema", 0)
    expected: dict[str, object] = {"journal_mode": "wal", "synchronous": wanted.synchronous, "page_size": wanted.page_bytes}
    if sys.platform == "darwin":
        # There a sync leaves the data in the drive's own cache unless asked for more (fcntl(2), F_FULLFSYNC).
        connection.pragma("fullfsync", 1)
        connection.pragma("checkpoint_fullfsync", 1)
        expected |= {"fullfsync": 1, "checkpoint_fullfsync": 1}
    for name, value in expected.items():
        if (actual := connection.pragma(name)) != value:
            raise UsageError(f"{connection.filename}: {name} is {actual!r} where {value!r} was asked for; it can't be trusted")


def _forget_old_wal(connection: apsw.Connection, busy_s: float) -> None:
    """Write a dead process's WAL into the file, so that no commit of ours follows frames whose sync may have failed unnoticed.

    Where others are at work there was no recovery and nothing to do: it is not waited for. Without room it can wait.
    """
    connection.set_busy_timeout(0)
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    except (apsw.BusyError, apsw.LockedError, apsw.FullError):
        return
    finally:
        be_patient(connection, busy_s)
