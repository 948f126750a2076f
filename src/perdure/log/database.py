"""One SQLite file: its connection, its transactions, and what can go wrong with them.

A write is `BEGIN IMMEDIATE`, a closure, `COMMIT`, all in one job of the file's thread: no transaction ever spans an await. Writes that wait for
the thread at the same time share one transaction, each in a savepoint of its own, and so one sync: what a disk can sync in a second limits a
home's sessions no longer. The failures that SQLite reports become the few that the rest of Perdure knows:

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
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import apsw

from perdure.log import schema
from perdure.log.connection import WAL_LIMIT_BYTES, Pragmas, be_patient, connect, shut
from perdure.log.holder import READERS, Patience, end_stopped_holder
from perdure.log.inodes import Inodes
from perdure.log.store import Mark
from perdure.log.worker import Worker
from perdure.record.errors import CorruptLogError, PerdureError, StoreFullError, UncertainCommitError, UsageError

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]

POLL_S = 0.025
"""How late another process's commit may be noticed."""

LEAVE_S = 0.5
"""How long an idle process may keep a file that has to be rewritten."""

BUSY_S = 2.0
"""After so long the lock's holder is looked for; after five times that the request is given up."""


class Write(Generic[T]):
    """One closure on its way through a transaction, and what became of it."""

    def __init__(self, work: Work[T]) -> None:
        self._work = work
        self._error: BaseException | None = None
        self._result: T
        self.settled = False

    def run(self, connection: apsw.Connection, *, alone: bool) -> None:
        """Its own failure leaves the transaction to the others; what breaks the whole transaction is raised."""
        try:
            if alone:
                self._result = self._work(connection)
            else:
                with connection:
                    self._result = self._work(connection)
        except (apsw.FullError, apsw.IOError, apsw.CorruptError, apsw.NotADBError):
            raise
        except BaseException as error:
            self._error = error

    @property
    def failed(self) -> bool:
        return self._error is not None

    def settle(self, error: BaseException | None = None) -> None:
        """Durable, or not: then for the error, unless it had one of its own."""
        self._error = self._error or error
        self.settled = True

    def outcome(self) -> T:
        if self._error is not None:
            raise self._error
        return self._result


class Gate(Protocol):
    """What has to be passed before a file may be opened, and told when a commit is uncertain."""

    def enter(self) -> None: ...
    def leave(self) -> None: ...
    def raised(self) -> bool: ...
    def raise_flag(self, reason: str) -> None: ...


class Database:
    """One file and its thread. It belongs to the event loop that made it."""

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
        self.path, self._steps, self._pragmas = path, steps, pragmas or Pragmas()
        self._gate, self._vfs, self._busy_s = gate, vfs, busy_s
        self._shm = path.with_name(path.name + "-shm")
        self._connection: apsw.Connection | None = None
        self._inodes = Inodes(path)
        self._waiting: deque[Write[Any]] = deque()
        self._owed: BaseException | None = None
        self._wal_pages = 0
        self._data_version = 0
        self._mark: Mark = 1
        self._changed = asyncio.Event()
        self._looked_for = False
        self._worker = Worker(f"perdure {path.name}", self._between, idle_s=None if gate is None else LEAVE_S)

    # ---- what the event loop calls -----------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Not needed, but an unusable file is told here rather than at the first request."""
        await self._worker.run(lambda: self._guarded(lambda connection: None))

    async def read(self, work: Work[T]) -> T:
        """The closure's result, outside of any transaction: one statement sees one state."""
        return await self._worker.run(lambda: self._guarded(work))

    async def write(self, work: Work[T]) -> T:
        """The closure's result once it is durable. What it raises takes back what it did."""
        write = Write(work)
        self._waiting.append(write)
        try:
            return await self._worker.run(lambda: self._write(write))
        finally:
            self._changed.set()

    async def write_back(self) -> None:
        """Empty the WAL into the file, which shrinks to what it holds. Somebody who reads or writes meanwhile is not waited for."""
        await self.read(self._empty_wal)

    def read_from_thread(self, work: Work[T]) -> T:
        """`read` for another file's thread."""
        return self._worker.call(lambda: self._guarded(work))

    async def wait(self, since: Mark, timeout_s: float) -> Mark:
        """The mark as soon as it differs from `since`: at once for commits made here, within POLL_S for other processes'.

        However many wait, one of them looks for the others; when it leaves it wakes them, and the next one looks.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        looks = False
        try:
            while True:
                self._changed.clear()
                if looks or not self._looked_for:
                    looks = self._looked_for = True
                    await self.read(self._look)
                left = deadline - loop.time()
                if self._mark != since or left <= 0:
                    return self._mark
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(left, POLL_S) if looks else left):
                        await self._changed.wait()
        finally:
            if looks:
                self._looked_for = False
                self._changed.set()

    async def close(self) -> None:
        await self._worker.close(self._close)

    # ---- what the thread does ----------------------------------------------------------------------------------------------

    def _guarded(self, work: Work[T]) -> T:
        """The work on an open connection, again while somebody else holds the lock."""
        owed, self._owed = self._owed, None
        if owed is not None:
            raise owed
        patience = Patience(self._shm, self._busy_s)
        while True:
            try:
                return work(self._ready())
            except apsw.BusyError as error:
                patience.wait_or_raise(error)
            except apsw.Error as error:
                raise self._reading_failed(error) from error

    def _write(self, write: Write[T]) -> T:
        def settle(connection: apsw.Connection) -> None:
            while not write.settled:
                self._transact(connection)

        try:
            self._guarded(settle)
        finally:
            if not write.settled:
                self._waiting.remove(write)  # whoever is told that the file was locked must not be served later
        return write.outcome()

    def _transact(self, connection: apsw.Connection) -> None:
        """Those who wait, together."""
        connection.execute("BEGIN IMMEDIATE")
        writes = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._pragmas.group_writes))]
        try:
            self._commit(connection, writes)
            failure = None
        except BaseException as error:
            failure = error
        for write in writes:
            write.settle(failure)

    def _commit(self, connection: apsw.Connection, writes: list[Write[Any]]) -> None:
        at_commit = False
        try:
            for write in writes:
                write.run(connection, alone=len(writes) == 1)
            if not all(write.failed for write in writes):
                at_commit = True
                connection.execute("COMMIT")
                self._mark += 1
        except apsw.Error as error:
            raise self._writing_failed(connection, error, at_commit=at_commit) from error
        finally:
            if self._connection is connection and connection.in_transaction:
                connection.execute("ROLLBACK")

    def _look(self, connection: apsw.Connection) -> None:
        version = connection.pragma("data_version")
        assert isinstance(version, int)
        if version != self._data_version:
            self._data_version = version
            self._mark += 1

    def _between(self) -> None:
        """Nobody waits for this, so that what goes wrong is owed to whoever asks next."""
        try:
            self._look_after()
        except BaseException as error:
            self._owed = error

    def _look_after(self) -> None:
        """Leave a file that waits to be rewritten, though nothing was asked of us; or see to the WAL."""
        if self._connection is None:
            return
        if self._quarantined():
            self._close()
        elif self._wal_pages >= self._pragmas.checkpoint_pages:
            size_bytes, self._wal_pages = self._wal_pages * self._pragmas.page_bytes, 0
            self._checkpoint(self._connection, apsw.SQLITE_CHECKPOINT_PASSIVE)
            if size_bytes > WAL_LIMIT_BYTES:
                end_stopped_holder(self._shm, READERS)

    def _empty_wal(self, connection: apsw.Connection) -> None:
        connection.set_busy_timeout(0)
        try:
            self._checkpoint(connection, apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            if self._connection is connection:
                be_patient(connection, self._busy_s)

    def _checkpoint(self, connection: apsw.Connection, mode: int) -> None:
        """Without room, or while others hold it, the WAL keeps everything and the next commit comes here again."""
        try:
            connection.wal_checkpoint(mode=mode)
        except (apsw.FullError, apsw.BusyError, apsw.LockedError):
            return
        except apsw.IOError as error:
            self._quarantine(error)

    # ---- failures ----------------------------------------------------------------------------------------------------------

    def _writing_failed(self, connection: apsw.Connection, error: apsw.Error, *, at_commit: bool) -> PerdureError:
        no_room = isinstance(error, apsw.FullError) or (not at_commit and connection.system_errno == errno.ENOSPC)
        if no_room:
            return StoreFullError(f"no room for a commit in {self.path}; nothing of it was stored, make room and go on")
        if not at_commit:
            return self._reading_failed(error)
        return self._uncertain(error)

    def _uncertain(self, error: apsw.Error) -> PerdureError:
        """Where the file has no gate its connection stays: SQLite has dropped the frames and writes the next ones over them."""
        self._quarantine(error)
        return UncertainCommitError(
            f"{self.path} could not be synced ({error}). Whether the commit is durable is known when the file was rewritten, "
            "which the next request does; then look its id up"
        )

    def _quarantine(self, error: apsw.Error) -> None:
        if self._gate is not None:
            try:
                self._gate.raise_flag(str(error))
            finally:
                self._close()

    def _quarantined(self) -> bool:
        return self._gate is not None and self._gate.raised()

    def _reading_failed(self, error: apsw.Error) -> PerdureError:
        kind = getattr(error, "extendedresult", 0)
        if isinstance(error, apsw.FullError) or kind in _NO_ROOM_FOR_SHM:
            return StoreFullError(f"no room to open {self.path}; make room and go on")
        if kind in _FAILED_WRITE:
            return self._uncertain(error)
        if isinstance(error, apsw.CorruptError | apsw.NotADBError | apsw.IOError):
            return self._corrupt(error)
        if isinstance(error, apsw.CantOpenError | apsw.ReadOnlyError | apsw.PermissionsError):
            return UsageError(f"{self.path} can't be opened for writing: {error}")
        raise error

    def _corrupt(self, error: apsw.Error) -> PerdureError:
        return CorruptLogError(f"{self.path} can't be read: {error}; what was read before is intact")

    # ---- opening -----------------------------------------------------------------------------------------------------------

    def _ready(self) -> apsw.Connection:
        if self._connection is not None and self._quarantined():
            self._close()
        if self._connection is None:
            self._connection = self._open()
            self._inodes = Inodes(self.path)
            self._mark += 1
        elif (lost := self._inodes.lost()) is not None:
            self._close()
            raise CorruptLogError(
                f"{lost} was removed or replaced by somebody else while it was open, and what it held may be lost: "
                "stop everything, then put the home back from a copy"
            )
        return self._connection

    def _open(self) -> apsw.Connection:
        if self._gate is not None:
            self._gate.enter()
        try:
            connection = connect(self.path, self._pragmas, self._vfs, busy_s=self._busy_s)
            try:
                schema.migrate(connection, self._steps)
            except BaseException:
                shut(connection)
                raise
        except BaseException:
            if self._gate is not None:
                self._gate.leave()
            raise
        connection.set_wal_hook(self._note_wal)
        return connection

    def _note_wal(self, connection: apsw.Connection, name: str, pages: int) -> int:
        self._wal_pages = pages
        return apsw.SQLITE_OK

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        try:
            if connection is not None:
                self._part_with(connection)
        finally:
            if self._gate is not None:
                self._gate.leave()

    def _part_with(self, connection: apsw.Connection) -> None:
        """The last one to leave empties the WAL, unless the file waits to be rewritten or is not ours any more: then it stays as it is."""
        connection.set_busy_timeout(0)
        untouched = self._quarantined() or self._inodes.lost() is not None
        try:
            if not untouched:
                self._checkpoint(connection, apsw.SQLITE_CHECKPOINT_TRUNCATE)
        finally:
            connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, int(untouched or self._quarantined()))
            shut(connection)


_NO_ROOM_FOR_SHM = frozenset({apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMOPEN})
_FAILED_WRITE = frozenset(
    {apsw.SQLITE_IOERR_WRITE, apsw.SQLITE_IOERR_FSYNC, apsw.SQLITE_IOERR_DIR_FSYNC, apsw.SQLITE_IOERR_TRUNCATE}
)
