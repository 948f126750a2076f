"""Which process an Owner is, and whether it lives.

A pid alone proves nothing: it is used again. (boot id, PID namespace, pid, start time) names one process for ever on one kernel, so "dead" here
is a proof: the pid is absent, a zombie, or started at another time. What can't be looked at (another host, another namespace) is None, never a
guess. Death itself is pushed, not polled: a pidfd (Linux) or a kqueue (macOS) in the event loop, one per watched process however many
sessions it drives. A stopped process (state T) is alive.
"""

from __future__ import annotations

import asyncio
import calendar
import errno
import functools
import os
import platform
import select
import subprocess
import sys
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from perdure.record.records import Owner

POLL_S = 0.25
"""Between two looks at a process whose death the kernel can't push to us."""


class Look(NamedTuple):
    """`state` is ps's letter (R, S, D, T, Z, …); `start_time` is in clock ticks since boot on Linux, in seconds since 1970 elsewhere."""

    state: str
    start_time: int


def identify(token: str | None = None) -> Owner:
    """This process."""
    look = _look(os.getpid())
    assert look is not None, "a running process can see itself"
    return Owner(platform.node(), _boot_id(), os.getpid(), look.start_time, _namespace(), token)


def alive(owner: Owner) -> bool | None:
    """None where it can't be known from here. Another boot of this host is death; a zombie is dead."""
    look = _see(owner)
    return look if look is None or isinstance(look, bool) else True


def stopped(owner: Owner) -> bool | None:
    """Whether it is alive and in state T at this instant; None where it can't be known."""
    look = _see(owner)
    return look.state == "T" if isinstance(look, Look) else None if look is None else False


async def wait_death(owner: Owner) -> None:
    """Returns once the process is proven dead. Raises LookupError where that can't be known from here (`alive` is None)."""
    loop = asyncio.get_running_loop()
    deaths = _deaths.setdefault(loop, {})
    key = (owner.pid, owner.start_time)
    while (living := alive(owner)) is not False:
        if living is None:
            raise LookupError(f"process {owner.pid} of host {owner.host} can't be watched from here")
        death = deaths.get(key) or _Death.open(owner, loop)
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


# ---- one watched process ---------------------------------------------------------------------------------------------------


@dataclass
class _Death:
    """A descriptor that becomes readable at a process's death, shared by everyone in this loop who waits for it."""

    fd: int
    queue: object
    told: asyncio.Future[None]
    waiters: int = 0

    @classmethod
    def open(cls, owner: Owner, loop: asyncio.AbstractEventLoop) -> _Death | None:
        """None where the process is gone already, or this kernel has no such descriptor: then look again later."""
        try:
            fd, queue = _descriptor(owner.pid)
        except OSError as error:
            if error.errno in (errno.ESRCH, errno.ENOSYS, errno.EPERM):
                return None
            raise
        death = cls(fd, queue, loop.create_future())
        loop.add_reader(fd, death._tell)
        if alive(owner) is not False:
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


# ---- looking ---------------------------------------------------------------------------------------------------------------


def _see(owner: Owner) -> Look | bool | None:
    """The process, False if it is proven dead, None if it can't be seen from here."""
    if owner.boot_id != _boot_id():
        return False if owner.host == platform.node() else None
    if owner.namespace != _namespace():
        return None
    look = _look(owner.pid)
    if look is not None:
        return look if look.start_time == owner.start_time and look.state not in "ZX" else False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return None  # hidden from this user
    return None


def _look(pid: int) -> Look | None:
    return _look_proc(pid) if sys.platform == "linux" else _look_ps(pid)


def _look_proc(pid: int) -> Look | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(b")")[2].split()  # the name before it may hold anything, parentheses and spaces too
    return Look(fields[0].decode(), int(fields[19]))


def _look_ps(pid: int) -> Look | None:
    done = subprocess.run(
        ["ps", "-o", "state=", "-o", "lstart=", "-p", str(pid)],
        capture_output=True,
        text=True,
        env={**os.environ, "LC_ALL": "C", "TZ": "UTC"},
        timeout=10,
    )
    if not done.stdout.strip():
        return None
    state, start = done.stdout.split(maxsplit=1)
    return Look(state[0], calendar.timegm(time.strptime(start.strip(), "%a %b %d %H:%M:%S %Y")))


@functools.cache
def _boot_id() -> str:
    if sys.platform == "linux":
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    done = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, timeout=10)
    return done.stdout.strip()


@functools.cache
def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino if sys.platform == "linux" else 0
