"""Moving a file out of the workspace, where it is kept.

A rename, at once and whatever the size. Where a mount lies between, as around the workspace of a sandbox, the kernel refuses that (EXDEV, rename(2)) though
it is one file system: then a copy takes its place, holes skipped, and the file goes only if it is still what was copied.
"""

from __future__ import annotations

import errno
import os
import stat

from perdure.spaced import exchange
from perdure.spaced.index import MODE, SIZE, stat_key

_PIECE_BYTES = 1 << 20


def move(directory: int, name: str, place: str) -> bool:
    """False where it changed while it was copied: it stays. Raises OSError with nothing moved, for want of room too."""
    try:
        os.rename(name, place, src_dir_fd=directory)
        return True
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    seen = stat_key(os.stat(name, dir_fd=directory, follow_symlinks=False))
    moved = False
    try:
        if stat.S_ISLNK(seen[MODE]):
            os.symlink(os.readlink(name, dir_fd=directory), place)
        else:
            _copy(directory, name, place, seen[SIZE], seen[MODE])
        moved = exchange.remove(directory, name, seen)
    finally:
        if not moved and os.path.lexists(place):
            os.unlink(place)
    return moved


def _copy(directory: int, name: str, place: str, size: int, mode: int) -> None:
    source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    try:
        target = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(target, size)
            _copy_data(source, target, size)
            os.fchmod(target, stat.S_IMODE(mode))
        finally:
            os.close(target)
    finally:
        os.close(source)


def _copy_data(source: int, target: int, size: int) -> None:
    at = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                return
            raise
        end = min(os.lseek(source, at, os.SEEK_HOLE), size)
        while at < end:
            piece = os.pread(source, min(_PIECE_BYTES, end - at), at)
            if not piece:
                return
            while piece:
                written = os.pwrite(target, piece, at)
                piece, at = piece[written:], at + written
