"""After a failed sync nobody knows what the disk holds: the page cache answers reads with bytes that may never have got there, and a later sync
that succeeds proves nothing about the earlier one (Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020).

So the home is closed to every process by a flag file. Whoever opens it next waits until it is alone, and makes what it can read the truth by
writing all of it to a new file, syncing that, and putting it in the old one's place:

    log.db ──copy, sync──→ log.db.copy ──rename──→ log.db.repaired ──remove -wal and -shm──→ log.db ──→ flag removed

Each step is durable before the next. The file named `.repaired` is complete, so that a crash behind its rename goes on from there, even if
the flag itself was lost with the power. (A new `log.db` beside the old WAL would be worse than either: its frames would be replayed over newer pages.)

Every connection holds `home.lock` shared, by flock(2), for as long as it is open; the repairer holds it exclusively. Only SQLite ever opens
the database files while somebody else may have them open.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from contextlib import closing
from pathlib import Path

import apsw

from perdure.log.connection import PRIVATE, private_uri
from perdure.log.holder import holders, named
from perdure.record.errors import CorruptLogError, StoreFullError, StoreLockedError
from perdure.spaced.durable import sync

ALONE_S = 10.0
"""How long the repairer waits for the others, who look for the flag at every request and while they are idle."""

PAGES = 1024
_LOOK_S = 0.05


class Quarantine:
    """The gate in front of one database file of a home."""

    def __init__(self, path: Path, vfs: str | None) -> None:
        self._path, self._vfs = path, vfs
        self._flag = path.with_name("quarantine")
        self._flag_path = str(self._flag)
        self._repaired = path.with_name(path.name + ".repaired")
        self._copy = path.with_name(path.name + ".copy")
        self._home_lock = path.with_name("home.lock")
        self._lock: int | None = None

    def raised(self) -> bool:
        return os.access(self._flag_path, os.F_OK)  # at every request

    def raise_flag(self, reason: str) -> None:
        """As durable as a failing disk allows: where the flag is lost with the power, so is the page cache that made it necessary."""
        text = json.dumps({"file": self._path.name, "reason": reason, "pid": os.getpid(), "at": time.time()})
        try:
            self._flag.touch(mode=0o600)
            self._flag.write_text(text + "\n")
            sync(self._flag)
            sync(self._flag.parent)
        except OSError as error:
            if not self._flag.exists():
                raise CorruptLogError(
                    f"{self._path} could not be synced, nor could that be noted ({error}); check the disk"
                ) from error

    def enter(self) -> None:
        """Returns with the shared lock, the file fit to be opened. Raises StoreLockedError, StoreFullError, CorruptLogError."""
        try:
            lock = os.open(self._home_lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except FileNotFoundError as error:
            raise CorruptLogError(f"{self._path.parent} is gone: somebody removed it while it was in use") from error
        try:
            until = time.monotonic() + ALONE_S
            while not self._entered(lock):
                if time.monotonic() >= until:
                    raise StoreLockedError(
                        f"a commit could not be synced, and {self._path} has to be rewritten before it is used again; "
                        f"{named(holders(self._home_lock, frozenset({0}), 'FLOCK'))} still has it open: end it"
                    )
                time.sleep(_LOOK_S)
        except BaseException:
            os.close(lock)
            raise
        self._lock = lock

    def leave(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _entered(self, lock: int) -> bool:
        """One try, which never waits: to repair if that is due, and to hold the lock shared with nothing to repair."""
        try:
            if self._due():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._repair()
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if not self._due():
                return True
        except BlockingIOError:
            pass
        fcntl.flock(lock, fcntl.LOCK_UN)
        return False

    def _due(self) -> bool:
        return self._flag.exists() or self._repaired.exists()

    def _repair(self) -> None:
        """Alone with the file. Does nothing where somebody else was first."""
        if not self._due():
            return
        try:
            if not self._repaired.exists():
                self._make_copy()
            self._replace()
        except apsw.FullError as error:
            raise StoreFullError(
                f"{self._path} has to be rewritten after a failed sync, and there is no room; make some"
            ) from error
        except (apsw.Error, OSError) as error:
            raise CorruptLogError(
                f"{self._path} has to be rewritten after a failed sync, which failed: {error}; check the disk"
            ) from error

    def _make_copy(self) -> None:
        for remains in ("", "-journal"):
            self._path.with_name(self._copy.name + remains).unlink(missing_ok=True)
        with (
            closing(apsw.Connection(str(self._path), vfs=self._vfs)) as source,
            closing(apsw.Connection(private_uri(self._copy), PRIVATE, self._vfs)) as copy,
            copy.backup("main", source, "main") as backup,
        ):
            while not backup.done:
                backup.step(PAGES)
        sync(self._copy)
        self._copy.rename(self._repaired)
        sync(self._path.parent)

    def _replace(self) -> None:
        for remains in ("-wal", "-shm"):
            self._path.with_name(self._path.name + remains).unlink(missing_ok=True)
        sync(self._path.parent)
        self._repaired.rename(self._path)
        sync(self._path.parent)
        self._flag.unlink(missing_ok=True)
        sync(self._path.parent)
