"""Linux's inotify(7) by ctypes: the standard library has no name for it."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from typing import NamedTuple

MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
DELETE_SELF, MOVE_SELF = 0x400, 0x800
UNMOUNT, OVERFLOW, IGNORED = 0x2000, 0x4000, 0x8000
ONLYDIR, DONT_FOLLOW, ISDIR = 0x1000000, 0x2000000, 0x40000000

_HEADER = struct.Struct("iIII")
_READ_BYTES = 1 << 18


class Event(NamedTuple):
    """`name` is empty where the event is the watched inode's own."""

    wd: int
    mask: int
    cookie: int
    name: str


class Inotify:
    """One queue of events. Raises OSError: ENOSYS where there is no inotify, EMFILE and ENOSPC at the user's limits."""

    def __init__(self) -> None:
        if sys.platform != "linux":
            raise OSError(errno.ENOSYS, "there is no inotify on %s" % sys.platform)
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd = self._checked(self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))

    def add(self, path: str, mask: int) -> int:
        """The watch of that inode: the same number again where it has one."""
        return self._checked(self._libc.inotify_add_watch(self.fd, os.fsencode(path), mask))

    def remove(self, wd: int) -> None:
        """Without a complaint where it went by itself; its last event is IGNORED."""
        self._libc.inotify_rm_watch(self.fd, wd)

    def read(self) -> list[Event]:
        """What is queued now, empty for nothing. An event is queued inside of the system call that causes it."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return []
        events, at = [], 0
        while at < len(data):
            wd, mask, cookie, size = _HEADER.unpack_from(data, at)
            at += _HEADER.size
            events.append(Event(wd, mask, cookie, os.fsdecode(data[at : at + size].rstrip(b"\0"))))
            at += size
        return events

    def close(self) -> None:
        os.close(self.fd)

    def _checked(self, result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result
