"""What runs in this Space, as the kernel tells it: /proc on Linux, `ps` elsewhere.

A process is known by its pid *and* start time, and on Linux is signalled through a pidfd that was opened before the two were compared, so
that a pid which was given away in between hits nobody.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from typing import Iterable, NamedTuple, Sequence

LINUX = sys.platform == "linux"
MARK = "PERDURE_OPERATION"
COMMAND_CHARACTERS = 200
_WRITABLE = os.O_WRONLY | os.O_RDWR
_LISTEN = "0A"


class Row(NamedTuple):
    pid: int
    parent: int
    group: int
    start: str
    zombie: bool


def table() -> dict[int, Row]:
    """Every process, zombies included."""
    if not LINUX:
        return _ps()
    rows = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            row = _row(int(name))
            if row is not None:
                rows[row.pid] = row
    return rows


def descendants(rows: dict[int, Row], roots: Iterable[int]) -> list[Row]:
    """Living processes below the roots; a root itself is not among them."""
    children: dict[int, list[Row]] = {}
    for row in rows.values():
        children.setdefault(row.parent, []).append(row)
    found: list[Row] = []
    ahead = list(roots)
    while ahead:
        below = children.get(ahead.pop(), [])
        found += [row for row in below if not row.zombie]
        ahead += [row.pid for row in below]
    return found


def send(row: Row, number: int) -> bool:
    """Signal exactly this process; False when it is gone."""
    try:
        if not hasattr(os, "pidfd_open"):
            os.kill(row.pid, number)
            return True
        fd = os.pidfd_open(row.pid)
    except OSError:
        return False
    try:
        now = _row(row.pid)
        if now is None or now.start != row.start:
            return False
        signal.pidfd_send_signal(fd, number)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def kill(rows: Sequence[Row]) -> None:
    """SIGKILL for these and their groups: a group dies in one instant, however fast its members fork and leave."""
    for group in {row.group for row in rows} - {os.getpgrp(), 0, 1}:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)
    for row in rows:
        send(row, signal.SIGKILL)


def command(pid: int) -> str:
    """Its arguments, shortened; its name in brackets where it has none."""
    if not LINUX:
        return _output(["ps", "-o", "command=", "-p", str(pid)]).strip()[:COMMAND_CHARACTERS]
    line = _text("/proc/%d/cmdline" % pid).replace("\0", " ").strip()
    return (line or "[%s]" % _text("/proc/%d/comm" % pid).strip())[:COMMAND_CHARACTERS]


def mark(generation: str, key: str) -> dict[str, str]:
    """What every process of an operation starts with in its environment."""
    return {MARK: "%s:%s" % (generation, key)}


def marked(pid: int, generation: str) -> str | None:
    """The key of the operation of this Space that it was started by, from its environment (Linux)."""
    start = "%s=%s:" % (MARK, generation)
    for setting in _text("/proc/%d/environ" % pid).split("\0"):
        if setting.startswith(start):
            return setting[len(start) :]
    return None


def ports(pids: Iterable[int]) -> dict[int, list[int]]:
    """Listening TCP ports by process. The kernel's tables take milliseconds to read, so they are read for somebody only."""
    pids = list(pids)
    if not pids:
        return {}
    listening = {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _text(path).splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN:
                listening["socket:[%s]" % fields[9]] = int(fields[1].rsplit(":", 1)[1], 16)
    found = {}
    for pid in pids:
        held = {listening[link] for _, link in _links(pid) if link in listening}
        if held:
            found[pid] = sorted(held)
    return found


def hot(pids: Iterable[int]) -> set[tuple[int, int]]:
    """(device, inode) of files that these processes hold open for writing or have mapped shared and writable."""
    files = set()
    for pid in pids:
        for fd, _ in _links(pid):
            flags = re.search(r"^flags:\s*([0-7]+)", _text("/proc/%d/fdinfo/%s" % (pid, fd)), re.MULTILINE)
            if flags and int(flags.group(1), 8) & _WRITABLE:
                files |= _identity("/proc/%d/fd/%s" % (pid, fd))
        files |= _mapped(pid)
    return files


def _mapped(pid: int) -> set[tuple[int, int]]:
    files = set()
    for line in _text("/proc/%d/maps" % pid).splitlines():
        fields = line.split(None, 5)
        if len(fields) == 6 and fields[1][3] == "s" and fields[4] != "0":
            # A file system may number its devices otherwise in stat (overlayfs, btrfs): the path, where it still leads there, says it right.
            major, minor = (int(part, 16) for part in fields[3].split(":"))
            files.add((os.makedev(major, minor), int(fields[4])))
            files |= _identity("/proc/%d/map_files/%s" % (pid, fields[0])) or _identity(fields[5])
    return files


def _identity(path: str) -> set[tuple[int, int]]:
    try:
        found = os.stat(path)
    except OSError:
        return set()
    return {(found.st_dev, found.st_ino)}


def _links(pid: int) -> list[tuple[str, str]]:
    folder = "/proc/%d/fd" % pid
    links = []
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    for name in names:
        try:
            links.append((name, os.readlink(os.path.join(folder, name))))
        except OSError:
            continue
    return links


def _row(pid: int) -> Row | None:
    if not LINUX:
        return _ps().get(pid)
    line = _text("/proc/%d/stat" % pid)
    if not line:
        return None
    # The name stands in parentheses and may hold anything, also ")".
    fields = line[line.rindex(")") + 2 :].split()
    zombie = fields[0] in "ZX" and int(fields[17]) <= 1  # a process whose first thread has ended lives on in the others
    return Row(pid, int(fields[1]), int(fields[2]), fields[19], zombie)


def _ps() -> dict[int, Row]:
    rows = {}
    for line in _output(["ps", "-axo", "pid=,ppid=,pgid=,stat=,lstart="]).splitlines():
        pid, parent, group, state, start = line.split(None, 4)
        rows[int(pid)] = Row(int(pid), int(parent), int(group), start, state.startswith("Z"))
    return rows


def _output(arguments: list[str]) -> str:
    import subprocess

    return subprocess.run(arguments, stdout=subprocess.PIPE, check=False).stdout.decode(errors="replace")


def _text(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""
