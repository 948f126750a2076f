"""What a command in a sandbox may not have, taken away by its keeper before the command is there.

The sandbox itself is made by bubblewrap around the supervisor (`perdure.space.sandbox`): namespaces, a small read-only root, private scratch. The
supervisor needs a little more than its commands: the state folder, and the right to take that away from others (CAP_SYS_ADMIN and
CAP_SETPCAP, in its user namespace alone). So a keeper gets mounts of its own, covers the state folder there with an empty one, and gives up every capability of
itself and of whatever it starts (capabilities(7), no_new_privs). Scratch files stay shared: a copy of the mounts shows the same tmpfs.
A process without capabilities can't look into one with them (ptrace(2)): not into `/proc/1/root`, `fd`, `mem` or `environ`.

For an ordinary user bubblewrap leaves the supervisor in a second user namespace, where nothing that was mounted in the first can be taken away: so it is
covered, and the supervisor too has mounts of its own before it opens anything.

Once a keeper, 0.2 ms. Rejected: one bubblewrap a command (20 ms, and scratch files would not be shared); closing descriptors alone (the folder has a path).
"""

from __future__ import annotations

import ctypes
import os
from typing import Optional

_NEWNS = 0x00020000
_NEWUSER = 0x10000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 8, 32, 4096, 16384, 1 << 18
_CAPBSET_READ, _CAPBSET_DROP = 23, 24
_SET_NO_NEW_PRIVS = 38
_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x20080522
MACHINE = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/scsi", "/proc/acpi", "/proc/asound")
"""The machine's own switches. Root may turn many of them without any capability, in a user namespace too (seen: `kernel.panic`)."""

_libc = ctypes.CDLL(None, use_errno=True)
_hidden: Optional[tuple[str, str]] = None


def prepare(hidden: str, empty: str) -> None:
    """By the supervisor of a sandbox, before it opens anything: no command may see the folder `hidden`, it sees `empty` there."""
    global _hidden
    _check(_libc.unshare(_NEWNS), "unshare(CLONE_NEWNS)")
    _mount(None, "/", _MS_REC | _MS_PRIVATE)
    for path in MACHINE:
        if os.path.exists(path):
            _mount(path, path, _MS_BIND | _MS_REC)
            _mount(None, path, _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    _hidden = hidden, empty


def enter() -> None:
    """By a keeper, once: from here on it is as powerless as its commands. Nothing happens outside of a sandbox.

    Raises OSError where anything could not be taken away; nothing may be run then.
    """
    if _hidden is None:
        return
    _check(_libc.unshare(_NEWNS), "unshare(CLONE_NEWNS)")
    hidden, empty = _hidden
    _mount(empty, hidden, _MS_BIND)
    _check(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    for number in range(64):
        if _libc.prctl(_CAPBSET_READ, number, 0, 0, 0) == 1:
            _check(_libc.prctl(_CAPBSET_DROP, number, 0, 0, 0), "prctl(PR_CAPBSET_DROP)")
    _check(_libc.prctl(_CAP_AMBIENT, _CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl(PR_CAP_AMBIENT_CLEAR_ALL)")
    header, nothing = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capset(header, nothing), "capset")


def remount_writable(path: str) -> None:
    """Try to make a mount writable; OSError where that is refused, as it has to be."""
    _mount(None, path, _MS_REMOUNT | _MS_BIND | _MS_NOSUID | _MS_NODEV)


def uncover(path: str) -> None:
    """Try to take a mount away; OSError where that is refused, as it has to be."""
    _check(_libc.umount2(os.fsencode(path), 0), "umount2 of %s" % path)


def mount_in_own_user_namespace() -> None:
    """Enter a user namespace and mounts of one's own, with every capability there; OSError where that is refused."""
    _check(_libc.unshare(_NEWUSER | _NEWNS), "unshare(CLONE_NEWUSER)")


def _mount(source: Optional[str], target: str, flags: int) -> None:
    origin = None if source is None else os.fsencode(source)
    _check(_libc.mount(origin, os.fsencode(target), None, ctypes.c_ulong(flags), None), "mount of %s" % target)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, "%s: %s" % (what, os.strerror(number)))
