"""Who drives a session, on one kernel.

The driver of epoch N locks byte N of the session's `driver.lock` before it acquires N, and keeps it while it drives. The epoch is the right; the
lock is only the bell: the kernel drops it at any death, and F_GETLK names its holder to whoever wants to take over. So nobody waits for a
time-out to find out that a driver is gone, and nobody needs a heartbeat.

POSIX record locks have two traps. Closing *any* descriptor of the file drops all of this process's locks on it: hence one shared descriptor per
file, and nobody else ever opens it. And F_GETLK never reports this process's own locks: hence `holder` looks at what we hold first.
Open-file-description locks would have neither, but they don't name their holder.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import struct
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from perdure.engine import process
from perdure.record.errors import SessionBusyError
from perdure.record.records import Owner

UNSEEN = 0
"""The holder lives in another PID namespace: it is alive, but has no number here."""

LOOK_S = 2.0
UNWATCHED_LOOK_S = 0.25
Lapse = Literal["free", "dead", "stopped"]


class DriverLock:
    """The lock file of one session. The file is made when it is first locked, and never read or written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def hold(self, epoch: int) -> None:
        """Lock byte `epoch` (at least 0). SessionBusyError, naming the holder, if it is held, also by this process."""
        with _guard:
            file = _open(self.path, create=True)
            assert file is not None
            if epoch in file.held:
                raise SessionBusyError(f"epoch {epoch} is driven by this process already")
            try:
                fcntl.lockf(file.fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, epoch)
            except BlockingIOError:
                pid = _ask(file.fd, epoch)
                _forget_if_idle(file)
                whose = f"process {pid}" if pid else "a process of another container"
                raise SessionBusyError(f"epoch {epoch} is driven by {whose}") from None
            file.held.add(epoch)

    def drop(self, epoch: int) -> None:
        """Let go; nothing if it is not held."""
        with _guard:
            file = _open(self.path, create=False)
            if file is None:
                return
            if epoch in file.held:
                fcntl.lockf(file.fd, fcntl.LOCK_UN, 1, epoch)
                file.held.remove(epoch)
            _forget_if_idle(file)

    def remove(self, epoch: int) -> None:
        """Let go of a held byte and remove the file, with its folder: nobody shall find the lock of a session that is no more."""
        with _guard:
            file = _open(self.path, create=False)
            shutil.rmtree(self.path.parent, ignore_errors=True)
            if file is not None:
                file.held.discard(epoch)
                _forget_if_idle(file)


def holder(path: Path, epoch: int) -> int | None:
    """The pid that holds byte `epoch` (this process's own included), UNSEEN, or None where nobody does."""
    with _guard:
        file = _open(path, create=False)
        if file is None:
            return None
        if epoch in file.held:
            return os.getpid()
        try:
            return _ask(file.fd, epoch)
        finally:
            _forget_if_idle(file)


async def lapse(path: Path, epoch: int, owner: Owner, *, stopped_s: float = 10.0) -> Lapse:
    """Returns as soon as the driver of `epoch` may be overtaken without asking anybody, with the reason.

    `free`: its byte is not locked. `dead`: its process is. `stopped`: every look for `stopped_s` found it in state T. Death is told at once, the others
    at the next look, 2 s apart at most. A driver of another PID namespace is watched through its lock alone, four looks a second.
    """
    watchable = process.alive(owner) is not None
    death = asyncio.create_task(process.wait_death(owner)) if watchable else asyncio.create_task(asyncio.sleep(float("inf")))
    look_s = min(LOOK_S, stopped_s / 4) if watchable else UNWATCHED_LOOK_S
    frozen_since: float | None = None
    try:
        while True:
            if death.done():
                await death
                return "dead"
            if holder(path, epoch) is None:
                return "free"
            if not process.stopped(owner):
                frozen_since = None
            elif frozen_since is None:
                frozen_since = time.monotonic()
            elif time.monotonic() - frozen_since >= stopped_s:
                return "stopped"
            await asyncio.wait((death,), timeout=look_s)
    finally:
        death.cancel()


# ---- one descriptor per file and process -----------------------------------------------------------------------------------


@dataclass
class _File:
    fd: int
    key: tuple[int, int]
    held: set[int] = field(default_factory=set)


_guard = threading.Lock()
_files: dict[tuple[int, int], _File] = {}
"""By device and inode: two paths to one file share its descriptor."""


def _open(path: Path, *, create: bool) -> _File | None:
    try:
        stat = path.stat()
    except FileNotFoundError:
        if not create:
            return None
    else:
        if (known := _files.get((stat.st_dev, stat.st_ino))) is not None:
            return known
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0), 0o600)
    stat = os.fstat(fd)
    file = _File(fd, (stat.st_dev, stat.st_ino))
    _files[file.key] = file
    return file


def _forget_if_idle(file: _File) -> None:
    """A watcher of a thousand sessions must not keep a thousand descriptors."""
    if not file.held and _files.pop(file.key, None) is not None:
        os.close(file.fd)


_LINUX_FLOCK = struct.Struct("@hhqqi4x")  # l_type, l_whence, l_start, l_len, l_pid (fcntl(2))
_BSD_FLOCK = struct.Struct("@qqihh")  # l_start, l_len, l_pid, l_type, l_whence


def _ask(fd: int, epoch: int) -> int | None:
    if sys.platform == "linux":
        asked = _LINUX_FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, epoch, 1, 0)
        kind, _, _, _, pid = _LINUX_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    else:
        asked = _BSD_FLOCK.pack(epoch, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
        _, _, pid, kind, _ = _BSD_FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else max(pid, UNSEEN)
