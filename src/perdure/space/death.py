"""Whether a supervisor is dead, proven.

A supervisor is known by what the kernel outside calls it: pid, start time, the PID namespace in which that pid counts, and the boot. When the
init of a namespace is dead, or a zombie, the kernel has killed everything in it before. A free lock or a closed socket proves nothing: both come up to
seconds before the children die.
"""

from __future__ import annotations

import asyncio
import calendar
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

from perdure.record.records import Init
from perdure.spaced.boot import boot_id as this_boot

POLL_S = 0.1
_SOL_LOCAL, _LOCAL_PEERPID = 0, 2
_UCRED = struct.Struct("@iII")


def identify(pid: int) -> Init | None:
    """The living process of that pid; None if there is none."""
    look = _look(pid)
    return None if look is None else Init(pid, look, _namespace())


def peer(connection: socket.socket) -> int:
    """The pid of the process that listens at the other end, as this namespace counts; 0 if it lives in another one."""
    if sys.platform == "linux":
        pid, _, _ = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return int(pid)
    return connection.getsockopt(_SOL_LOCAL, _LOCAL_PEERPID)


def dead(init: Init, boot_id: str) -> bool | None:
    """True is a proof. None: it lives in a PID namespace that can't be seen from here."""
    if boot_id != this_boot():
        return True
    if init.namespace != _namespace():
        return None
    return _look(init.pid) != init.start_time


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


async def watch_death(init: Init, boot_id: str) -> int:
    """Returns once it is dead, with the wall clock in nanoseconds at which that was seen. LookupError where it can't be known from here."""
    fd = _pidfd(init.pid)
    try:
        while (gone := dead(init, boot_id)) is not True:
            if gone is None:
                raise LookupError(f"process {init.pid} belongs to another PID namespace")
            await (asyncio.sleep(POLL_S) if fd is None else _readable(fd))
        return time.time_ns()
    finally:
        if fd is not None:
            os.close(fd)


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


def _look(pid: int) -> int | None:
    """Its start time; None if it is absent or a zombie."""
    if sys.platform != "linux":
        return _ps(pid)
    try:
        line = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = line[line.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _ps(pid: int) -> int | None:
    asked = ["ps", "-o", "stat=,lstart=", "-p", str(pid)]
    found = subprocess.run(asked, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C", "TZ": "UTC"})
    state, _, start = found.stdout.strip().partition(" ")
    if not state or state.startswith("Z"):
        return None
    return calendar.timegm(time.strptime(start.strip(), "%a %b %d %H:%M:%S %Y"))


def _namespace() -> int:
    """The inode of this process's PID namespace; 0 where there are none."""
    try:
        return Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        return 0


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid) if hasattr(os, "pidfd_open") else None
    except OSError:
        return None


async def _readable(fd: int) -> None:
    if select.select([fd], [], [], 0)[0]:
        # Dead but not gone from /proc yet: the next look sees the zombie.
        await asyncio.sleep(0)
        return
    loop = asyncio.get_running_loop()
    told: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, told.set_result, None)
    try:
        await told
    finally:
        loop.remove_reader(fd)
