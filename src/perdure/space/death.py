"""Which process an `Init` is, and whether it lives: a supervisor's, and for the engine a driver's.

A pid alone proves nothing: it is used again. Boot, PID namespace, pid and start time name one process for ever on one kernel, so "dead" here is a
proof: the pid is absent, a zombie without threads, or started at another time. When the init of a namespace is dead, the kernel has killed everything in
it before; a zombie with threads left is alive, since only its last thread takes the namespace along. A free lock or a closed socket proves nothing: both
come up to seconds before the children die. What can't be looked at (another namespace, a process hidden from this user, no descriptor left to
look with) is None and never counts as dead.

Death itself is pushed, not polled: a pidfd (Linux) or a kqueue (macOS) in the event loop, one per watched process however many wait for it.
"""

from __future__ import annotations

import asyncio
import calendar
import errno
import functools
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from perdure.record.errors import SurvivorsError
from perdure.record.records import Init
from perdure.spaced import boot

POLL_S = 0.1
"""Between two looks at a process whose death the kernel can't push to us."""

PS_S = 10.0
_SOL_LOCAL, _LOCAL_PEERPID = 0, 2
_UCRED = struct.Struct("@iII")


this_boot = functools.cache(boot.boot_id)


class Look(NamedTuple):
    """`state` is ps's letter (R, S, D, T, Z, …); `start_time` is in clock ticks since boot on Linux, in seconds since 1970 elsewhere."""

    state: str
    start_time: int
    threads: int = 1

    @property
    def living(self) -> bool:
        return self.state not in "ZX" or self.threads > 1


def identify(pid: int) -> Init | None:
    """The living process of that pid; None if there is none, or it can't be seen."""
    look = _look(pid)
    return None if look is None or not look.living else Init(pid, look.start_time, namespace())


def dead(init: Init, boot_id: str) -> bool | None:
    """True is a proof. None: it can't be known from here. A stopped process is alive."""
    look = _see(init, boot_id)
    return look if look is None else not look


def stopped(init: Init, boot_id: str) -> bool | None:
    """Whether it is alive and in state T at this instant; None where it can't be known."""
    look = _see(init, boot_id)
    return look.state == "T" if isinstance(look, Look) else look


async def watch_death(init: Init, boot_id: str) -> int:
    """Returns once it is dead, with the wall clock in nanoseconds at which that was seen. LookupError where it can't be known from here."""
    loop = asyncio.get_running_loop()
    deaths = _deaths.setdefault(loop, {})
    key = (init.pid, init.start_time)
    while (gone := dead(init, boot_id)) is not True:
        if gone is None:
            raise LookupError(f"process {init.pid} can't be watched from here: it belongs to another PID namespace or user")
        death = deaths.get(key) or _Death.open(init, boot_id, loop)
        if death is None:
            await asyncio.sleep(POLL_S)
            continue
        deaths[key] = death
        death.waiters += 1
        try:
            await asyncio.shield(death.told)
        finally:
            death.waiters -= 1
            if death.waiters == 0:
                deaths.pop(key, None)
                death.close(loop)
    return time.time_ns()


async def kill(init: Init, boot_id: str) -> int:
    """SIGKILL exactly this process; `watch_death` of it."""
    fd = _pidfd(init.pid)
    try:
        if dead(init, boot_id) is False:
            if fd is None:
                os.kill(init.pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(fd, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        if fd is not None:
            os.close(fd)
    return await watch_death(init, boot_id)


def unseen(init: Init) -> SurvivorsError:
    """What to say of a supervisor whose death can't be known from here."""
    return SurvivorsError(
        f"the last supervisor (process {init.pid}, in another PID namespace or of another user) can't be seen from here: it and its commands "
        "may still run"
    )


# ---- who it is -------------------------------------------------------------------------------------------------------------


def peer(connection: socket.socket) -> int:
    """The pid of the process that listens at the other end, as this namespace counts; 0 if it lives in another one."""
    if sys.platform == "linux":
        pid, _, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return int(pid)
    return connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID)


def lock_holder(path: Path) -> int | None:
    """The pid that holds the flock of a file (Linux), as this namespace counts. None where nobody does, or there is no file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    name = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in Path("/proc/locks").read_text().splitlines() if sys.platform == "linux" else ():
        fields = line.split()
        if fields[1] == "FLOCK" and name in fields and int(fields[4]) > 0:
            return int(fields[4])
    return None


@functools.cache
def namespace() -> int:
    """The inode of this process's PID namespace; 0 where there are none."""
    return Path("/proc/self/ns/pid").stat().st_ino if sys.platform == "linux" else 0


# ---- one watched process ---------------------------------------------------------------------------------------------------


@dataclass
class _Death:
    """A descriptor that becomes readable at a process's death, shared by everyone in this loop who waits for it."""

    fd: int
    queue: object
    told: asyncio.Future[None]
    waiters: int = 0

    @classmethod
    def open(cls, init: Init, boot_id: str, loop: asyncio.AbstractEventLoop) -> _Death | None:
        """None where the process is gone already, or there is no such descriptor to be had: then look again later."""
        try:
            fd, queue = _descriptor(init.pid)
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.ENOSYS, errno.EPERM, errno.EMFILE, errno.ENFILE):
                return None
            raise
        death = cls(fd, queue, loop.create_future())
        loop.add_reader(fd, death._tell)
        if dead(init, boot_id) is not True:
            return death
        death.close(loop)  # its pid was used again before the descriptor was open
        return None

    def _tell(self) -> None:
        if not self.told.done():
            self.told.set_result(None)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.remove_reader(self.fd)
        if self.queue is None:  # a kqueue closes its own
            os.close(self.fd)


_deaths: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[tuple[int, int], _Death]] = weakref.WeakKeyDictionary()


def _descriptor(pid: int) -> tuple[int, object]:
    if sys.platform == "linux":
        return os.pidfd_open(pid), None
    if sys.platform == "darwin":
        queue = select.kqueue()
        queue.control(
            [select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD | select.KQ_EV_ONESHOT, select.KQ_NOTE_EXIT)], 0
        )
        return queue.fileno(), queue
    raise OSError(errno.ENOSYS, "no descriptor tells of a death on this system")


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid) if sys.platform == "linux" else None
    except OSError:
        return None


# ---- looking ---------------------------------------------------------------------------------------------------------------


def _see(init: Init, boot_id: str) -> Look | Literal[False] | None:
    """The process, False if it is proven dead, None if it can't be seen from here."""
    if boot_id != this_boot():
        return False
    if init.namespace != namespace():
        return None
    look = _look(init.pid)
    if look is not None:
        return look if look.start_time == init.start_time and look.living else False
    try:
        os.kill(init.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return None  # somebody else's
    return None  # ours, and hidden from us, or there was no descriptor to look with


def _look(pid: int) -> Look | None:
    """None where nothing can be seen, which may have other reasons than that nothing is there."""
    return _look_proc(pid) if sys.platform == "linux" else _look_ps(pid)


def _look_proc(pid: int) -> Look | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()  # the name before it may hold anything, parentheses and spaces too
    return Look(fields[0].decode(), int(fields[19]), int(fields[17]))


def _look_ps(pid: int) -> Look | None:
    asked = ["ps", "-o", "state=", "-o", "lstart=", "-p", str(pid)]
    try:
        environment = {**os.environ, "LC_ALL": "C", "TZ": "UTC"}
        done = subprocess.run(asked, capture_output=True, text=True, env=environment, timeout=PS_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if not done.stdout.strip():
        return None
    state, start = done.stdout.split(maxsplit=1)
    return Look(state[0], calendar.timegm(time.strptime(start.strip(), "%a %b %d %H:%M:%S %Y")))
