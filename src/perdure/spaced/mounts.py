"""What is mounted, from Linux's /proc/self/mountinfo (proc(5)); elsewhere nothing is known and a scan goes by the device alone."""

from __future__ import annotations

import os
import select
import sys
from typing import Optional

_NO_EVENTS = ("nfs", "cifs", "smb", "9p", "fuse", "ceph", "afs", "gluster", "lustre", "gfs", "ocfs", "beegfs", "vbox", "prl_fs")
"""File systems that others may change without an event here."""


class Mounts:
    """Mount points below the root, relative to it; read again only when the kernel says that something was mounted or unmounted."""

    def __init__(self, root_path: str) -> None:
        self._prefix = os.fsencode(root_path).rstrip(b"/") + b"/"
        self._fd: Optional[int] = None
        self._poll = None
        self._below: frozenset[str] = frozenset()
        if sys.platform == "linux":
            self._fd = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLPRI)
            self._poll.poll(0)
            self._read()

    def now(self) -> frozenset[str]:
        if self._poll is not None and self._poll.poll(0):
            self._read()
        return self._below

    def local(self) -> bool:
        """True where the root's file system tells of every change, since all are made here."""
        best = (b"", b"")
        for line in self._lines():
            point, kind = _unescaped(line.split(b" ")[4]), line.partition(b" - ")[2].split(b" ")[0]
            if self._prefix.startswith(point.rstrip(b"/") + b"/") and len(point) >= len(best[0]):
                best = (point, kind)
        return bool(best[1]) and not os.fsdecode(best[1]).startswith(_NO_EVENTS)

    def _read(self) -> None:
        points = [_unescaped(line.split(b" ")[4]) for line in self._lines()]
        below = (point[len(self._prefix) :] for point in points if point.startswith(self._prefix))
        self._below = frozenset(map(os.fsdecode, below))

    def _lines(self) -> list[bytes]:
        if self._fd is None:
            return []
        os.lseek(self._fd, 0, os.SEEK_SET)
        data = b""
        while True:
            more = os.read(self._fd, 1 << 16)
            if not more:
                return data.splitlines()
            data += more

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = self._poll = None


def mounts_below(root_path: str) -> frozenset[str]:
    mounts = Mounts(root_path)
    try:
        return mounts.now()
    finally:
        mounts.close()


def _unescaped(point: bytes) -> bytes:
    for code, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        point = point.replace(code, char)
    return point
