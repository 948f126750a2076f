"""Who holds a lock that keeps everybody waiting, and the only case in which that is ended by force.

SQLite's writers exclude each other by POSIX locks on bytes of the `-shm` file (sqlite.org/walformat.html, "Locking Matrix"): 120 write, 121 checkpoint, 123–127
readers, which keep the WAL from starting over. A transaction of ours takes milliseconds, so a lock held for seconds means a process stopped
inside one (Ctrl-Z, a debugger, a frozen container) and with it every session of the home. `/proc/locks` tells the holder's pid.

It is killed only if it runs as our user and is in state T in two looks a second apart; the pid is pinned by a pidfd before the lock is looked
at again, so that a number used anew is never hit. Anyone else is named in a StoreLockedError and left alone. Where there is no `/proc`, nobody
is ever killed.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from pathlib import Path

import apsw

from perdure.log.filesystem import mount_of
from perdure.record.errors import StoreLockedError

WRITER = frozenset({120, 121})
READERS = frozenset(range(123, 128))
SECOND_LOOK_S = 1.0


class Patience:
    """One request's waiting for the locks of a `-shm` file: each time SQLite's own waiting was in vain, what to do."""

    def __init__(self, shm: Path, busy_s: float) -> None:
        self._shm, self._until = shm, time.monotonic() + 5 * busy_s

    def wait_or_raise(self, error: apsw.BusyError) -> None:
        """Returns if trying again makes sense: the holder was ended, or time is left."""
        late = time.monotonic() >= self._until
        if not end_stopped_holder(self._shm, WRITER) and late:
            raise StoreLockedError(
                f"{self._shm.with_suffix('.db')} is locked by {named(holders(self._shm, WRITER))}; it is waited for"
            ) from error


def end_stopped_holder(shm: Path, locks: frozenset[int]) -> bool:
    """Kill a stopped process of ours that holds one of the locks. Whether one was killed and is dead."""
    if sys.platform != "linux":
        return False
    for pid in holders(shm, locks):
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if _stopped_holder(pid, shm, locks):
                time.sleep(SECOND_LOOK_S)
                if _stopped_holder(pid, shm, locks):
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    _await_death(pidfd)
                    return True
        finally:
            os.close(pidfd)
    return False


def holders(path: Path, locks: frozenset[int], kind: str = "POSIX") -> list[int]:
    """Other processes that hold one of these bytes of the file for writing or reading; an flock(2) holds every byte."""
    try:
        names, table = _names(path), Path("/proc/locks").read_text()
    except FileNotFoundError:
        return []
    lines = (line for line in table.splitlines() if f" {kind} " in line)
    pids = [pid for pid, file, taken in map(_parse, lines) if file in names and any(byte in taken for byte in locks)]
    return [pid for pid in dict.fromkeys(pids) if pid > 0 and pid != os.getpid()]


def named(pids: list[int]) -> str:
    """For people: `process 123 (python -m …, stopped)`."""
    found = [f"process {pid} ({_command(pid)}, {'stopped' if _state(pid) == 'T' else 'running'})" for pid in pids]
    return " and ".join(found) or "another process, which can't be named from here"


def _stopped_holder(pid: int, shm: Path, locks: frozenset[int]) -> bool:
    return _ours(pid) and _state(pid) == "T" and pid in holders(shm, locks)


def _ours(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}").stat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def _state(pid: int) -> str:
    """The letter of proc_pid_stat(5), behind the command's name, which may hold anything."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ").strip()[:120] or "unknown"
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def _parse(line: str) -> tuple[int, tuple[int, int, int], range]:
    """pid, file and bytes of a line such as `1: POSIX  ADVISORY  WRITE 123 fe:00:77 120 120`; proc_locks(5). Waiters (`->`) hold nothing."""
    fields = line.split()
    if "->" in fields:
        return 0, (0, 0, 0), range(0)
    pid, file, first, last = fields[4:8]
    major, minor, inode = file.split(":")
    end = sys.maxsize if last == "EOF" else int(last) + 1
    return int(pid), (int(major, 16), int(minor, 16), int(inode)), range(int(first), end)


def _names(path: Path) -> set[tuple[int, int, int]]:
    """Device and inode of the file, as stat(2) has them and as the kernel numbers the file system itself."""
    status, mount = path.stat(), mount_of(path)
    devices = {(os.major(status.st_dev), os.minor(status.st_dev)), *([] if mount is None else [mount.device])}
    return {(*device, status.st_ino) for device in devices}


def _await_death(pidfd: int) -> None:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    poll.poll(10_000)
