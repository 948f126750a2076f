"""A finished file takes its name, or a name is freed, only if what is there is still what was seen.

A look and a rename after it are two steps, and a supervisor can be stopped for hours between them: whatever a person saved there meanwhile would be gone.
So what is there is taken out under a temporary name first (renameat2(2) with RENAME_EXCHANGE, or macOS' RENAME_SWAP, so that the name is never
free), looked at, and put back if it is somebody's. Where neither can be had, the look just before has to do.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from typing import Optional

from perdure.spaced.index import CTIME, StatKey, stat_key
from perdure.spaced.temporary import temporary_name

_EXCHANGE = 2
"""RENAME_EXCHANGE and RENAME_SWAP alike."""

_libc = ctypes.CDLL(None, use_errno=True)
_call = getattr(_libc, "renameat2" if sys.platform == "linux" else "renameatx_np", None)


def put(directory: int, temporary: str, name: str, seen: Optional[StatKey]) -> bool:
    """Give the finished file its name; `seen` None: nothing was there. False where that is not so any more: all is as it was, the file gone."""
    ours = _inode(directory, temporary)
    placed = _link(directory, temporary, name) if seen is None else _exchange(directory, temporary, name)
    if placed is None:
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
        return True
    if placed and seen is not None and not _is(directory, temporary, seen):
        placed = False
        if _exchange(directory, temporary, name) and _inode(directory, temporary) != ours:
            _exchange(directory, temporary, name)  # its owner saved again just now: the newer one stays
    os.unlink(temporary, dir_fd=directory)
    return placed


def remove(directory: int, name: str, seen: StatKey) -> bool:
    """Remove what was seen, and nothing else. False where something else is there: it stays."""
    held = temporary_name()
    os.rename(name, held, src_dir_fd=directory, dst_dir_fd=directory)
    ours = _is(directory, held, seen)
    if not ours and _link(directory, held, name) is None:
        os.rename(held, name, src_dir_fd=directory, dst_dir_fd=directory)
        return False
    os.unlink(held, dir_fd=directory)
    return ours


def _inode(directory: int, name: str) -> int:
    return os.stat(name, dir_fd=directory, follow_symlinks=False).st_ino


def _is(directory: int, name: str, seen: StatKey) -> bool:
    """The rename itself gave it a new ctime."""
    now = stat_key(os.stat(name, dir_fd=directory, follow_symlinks=False))
    return now[:CTIME] + now[CTIME + 1 :] == seen[:CTIME] + seen[CTIME + 1 :]


def _link(directory: int, held: str, name: str) -> Optional[bool]:
    """A second name for a file where that is free; None where the file system has no such thing."""
    try:
        os.link(held, name, src_dir_fd=directory, dst_dir_fd=directory, follow_symlinks=False)
    except FileExistsError:
        return False
    except OSError:
        return None
    return True


def _exchange(directory: int, one: str, other: str) -> Optional[bool]:
    """Swap two names at once. False where one is not there, None where this system or file system can't; then nothing was done."""
    if _call is None:
        return None
    if _call(directory, os.fsencode(one), directory, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code == errno.ENOENT:
        return False
    if code in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENOSPC):
        raise OSError(code, os.strerror(code), other)
    return None
