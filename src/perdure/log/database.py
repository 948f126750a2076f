"""One SQLite file: its connection, its transactions, and what can go wrong with them.

A write is `BEGIN IMMEDIATE`, a closure, `COMMIT`, all in one job of the file's thread: no transaction ever spans an await. The failures
that SQLite reports become the few that the rest of Perdure knows:

* busy for longer than two seconds → look for the holder (`perdure.log.holder`), in the end StoreLockedError;
* full → rolled back, StoreFullError: nothing of it was stored, since a commit's last frame is the last thing written;
* anything else at `COMMIT`, and a failed write before it → UncertainCommitError: the frames may or may not reach the disk. Reads can't
  tell, since they see what the page cache holds. The file is quarantined where it has a quarantine (`perdure.log.quarantine`).

Checkpoints run after an outcome was handed over, not inside the commit that made the log long enough (SQLite's own habit): the wait
for two more syncs is nobody's.
"""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import apsw
from msgspec import Struct

from perdure.log import schema
from perdure.log.holder import Holder
from perdure.log.store import Mark
from perdure.log.worker import Worker
from perdure.record.errors import (
    CorruptLogError,
    PerdureError,
    StoreFullError,
    StoreLockedError,
    UncertainCommitError,
    UsageError,
)

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]

OLDEST_SQLITE = 3_051_003
"""Before 3.51.3 a checkpoint racing with a commit could lose committed pages (the WAL-reset bug, sqlite.org/wal.html)."""

POLL_S = 0.025
"""How late another process's commit may be noticed."""

BUSY_S = 2.0
"""After so long the lock's holder is looked for; after five times that the request is given up."""


class Pragmas(Struct, frozen=True):
    """What a file is opened with; all of it is verified. `checkpoint_pages` is the length of the WAL that starts a checkpoint."""

    synchronous: int = 2
    page_bytes: int = 4096
    checkpoint_pages: int = 1000
    incremental_vacuum: bool = False


class Gate(Protocol):
    """What has to be passed before a file may be opened, and told when a commit is uncertain."""

    def enter(self) -> None: ...
    def leave(self) -> None: ...
    def raised(self) -> bool: ...
    def raise_flag(self, reason: str) -> None: ...


class Database:
    def __init__(
        self,
        path: Path,
        steps: Sequence[str],
        pragmas: Pragmas | None = None,
        *,
        gate: Gate | None = None,
        vfs: str | None = None,
        busy_s: float = BUSY_S,
    ) -> None:
        if apsw.SQLITE_VERSION_NUMBER < OLDEST_SQLITE:
            raise UsageError(f"SQLite {apsw.sqlite_lib_version()} can lose commits in WAL mode; install apsw 3.51.3 or newer")
        self.path, self._steps, self._pragmas = path, steps, pragmas or Pragmas()
        self._gate, self._vfs, self._busy_s = gate, vfs, busy_s
        self._holder = Holder(path.with_name(path.name + "-shm"))
        self._connection: apsw.Connection | None = None
        self._wal_pages = 0
        self._data_version = 0
        self._mark: Mark = 1
        self._changed = asyncio.Event()
        self._looked_at = float("-inf")
        self._worker = Worker(f"perdure {path.name}", self._checkpoint)

    # ---- what the event loop calls -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Not needed, but an unusable file is told here rather than at the first request."""
        await self._worker.run(lambda: self._guarded(lambda connection: None))

    async def read(self, work: Work[T]) -> T:
        """The closure's result, outside of any transaction: one statement sees one state."""
        return await self._worker.run(lambda: self._guarded(work))

    async def write(self, work: Work[T]) -> T:
        """The closure's result once it is durable. What it raises rolls back."""
        try:
            return await self._worker.run(lambda: self._guarded(lambda connection: self._transact(connection, work)))
        finally:
            self._changed.set()

    def read_from_thread(self, work: Work[T]) -> T:
        """`read` for another file's thread."""
        return self._worker.call(lambda: self._guarded(work))

    async def wait(self, since: Mark, timeout_s: float) -> Mark:
        """The mark as soon as it differs from `since`: at once for commits made here, within POLL_S for other processes'."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            self._changed.clear()
            if loop.time() - self._looked_at >= POLL_S:
                self._looked_at = loop.time()
                await self.read(self._look)
            left = deadline - loop.time()
            if self._mark != since or left <= 0:
                return self._mark
            try:
                async with asyncio.timeout(min(left, POLL_S)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def close(self) -> None:
        await self._worker.close(self._close)

    # ---- what the thread does ----------------------------------------------------------------------------------------------

    def _guarded(self, work: Work[T]) -> T:
        """The work on an open connection, again while somebody else holds the lock."""
        patience = self._holder.patience(self._busy_s)
        while True:
            try:
                return work(self._ready())
            except apsw.BusyError as error:
                patience.wait_or_raise(error)
            except apsw.Error as error:
                raise self._reading_failed(error) from error

    def _transact(self, connection: apsw.Connection, work: Work[T]) -> T:
        connection.execute("BEGIN IMMEDIATE")
        at_commit = False
        try:
            result = work(connection)
            at_commit = True
            connection.execute("COMMIT")
        except apsw.Error as error:
            raise self._writing_failed(connection, error, at_commit=at_commit) from error
        finally:
            if self._connection is not None and connection.in_transaction:
                connection.execute("ROLLBACK")
        self._mark += 1
        return result

    def _writing_failed(self, connection: apsw.Connection, error: apsw.Error, *, at_commit: bool) -> PerdureError:
        if isinstance(error, apsw.FullError):
            return StoreFullError(f"no room for a commit in {self.path}; nothing of it was stored, make room and go on")
        if isinstance(error, apsw.CorruptError | apsw.NotADBError):
            return self._corrupt(error)
        if not at_commit and not isinstance(error, apsw.IOError):
            raise error
        if not at_commit and connection.system_errno == errno.ENOSPC:
            return StoreFullError(f"no room for a commit in {self.path}; nothing of it was stored, make room and go on")
        self._close()
        if self._gate is not None:
            self._gate.raise_flag(str(error))
        return UncertainCommitError(
            f"{self.path} could not be synced ({error}): whether the commit is durable is known once the file was rewritten, "
            "by the next one to open it; then look its id up"
        )

    def _reading_failed(self, error: apsw.Error) -> PerdureError:
        if isinstance(error, apsw.FullError):
            return StoreFullError(f"no room to open {self.path}; make room and go on")
        if isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.IOError):
            return self._corrupt(error)
        if isinstance(error, apsw.CantOpenError | apsw.ReadOnlyError | apsw.PermissionsError):
            return UsageError(f"{self.path} can't be opened for writing: {error}")
        raise error

    def _corrupt(self, error: apsw.Error) -> PerdureError:
        return CorruptLogError(f"{self.path} can't be read: {error}; what was read before is intact")

    def _look(self, connection: apsw.Connection) -> None:
        version = connection.pragma("data_version")
        assert isinstance(version, int)
        if version != self._data_version:
            self._data_version = version
            self._mark += 1

    def _checkpoint(self) -> None:
        if self._connection is None or self._wal_pages < self._pragmas.checkpoint_pages:
            return
        self._wal_pages = 0
        try:
            self._connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        except apsw.Error:
            # The WAL still holds everything, and the next commit asks again. A disk that fails shows itself there.
            self._wal_pages = 0

    # ---- opening -----------------------------------------------------------------------------------------------------------

    def _ready(self) -> apsw.Connection:
        if self._connection is not None and self._gate is not None and self._gate.raised():
            self._close()
        if self._connection is None:
            self._open()
            assert self._connection is not None
            self._mark += 1
        return self._connection

    def _open(self) -> None:
        if self._gate is not None:
            self._gate.enter()
        connection = connect(self.path, self._vfs, busy_s=self._busy_s)
        try:
            self._prepare(connection)
            schema.migrate(connection, self._steps)
        except BaseException:
            connection.close()
            if self._gate is not None:
                self._gate.leave()
            raise
        connection.set_wal_hook(self._note_wal)
        self._connection = connection

    def _prepare(self, connection: apsw.Connection) -> None:
        wanted = self._pragmas
        connection.pragma("page_size", wanted.page_bytes)
        if wanted.incremental_vacuum:
            connection.pragma("auto_vacuum", 2)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", wanted.synchronous)
        connection.pragma("wal_autocheckpoint", 0)
        connection.pragma("journal_size_limit", 64 << 20)
        connection.pragma("trusted_schema", 0)
        expected: dict[str, object] = {"journal_mode": "wal", "synchronous": wanted.synchronous, "page_size": wanted.page_bytes}
        if sys.platform == "darwin":
            # There a sync leaves the data in the drive's own cache unless asked for more (fcntl(2), F_FULLFSYNC).
            connection.pragma("fullfsync", 1)
            connection.pragma("checkpoint_fullfsync", 1)
            expected |= {"fullfsync": 1, "checkpoint_fullfsync": 1}
        for name, value in expected.items():
            if connection.pragma(name) != value:
                raise UsageError(
                    f"{self.path}: {name} is {connection.pragma(name)!r} where {value!r} was asked for; it can't be trusted"
                )

    def _note_wal(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if self._gate is not None:
            self._gate.leave()


def connect(path: Path, vfs: str | None, *, busy_s: float) -> apsw.Connection:
    """A connection to a file that, if it is made now, only its user may read: it takes the mode of `home.lock` beside it."""
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
    pattern = path.with_name("home.lock").absolute()
    connection = apsw.Connection(f"{path.absolute().as_uri()}?modeof={_escaped(pattern)}", flags, vfs)
    connection.set_busy_timeout(int(busy_s * 1000))
    return connection


def _escaped(path: Path) -> str:
    return path.as_uri().removeprefix("file://")


__all__ = ["BUSY_S", "Database", "Gate", "Pragmas", "StoreLockedError", "connect"]
