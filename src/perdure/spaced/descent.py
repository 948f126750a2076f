"""Directories of the workspace opened by their path from the root, one name at a time, never through a symlink."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import Optional, TypeVar

from perdure.spaced.index import StatKey, stat_key
from perdure.spaced.paths import DIRECTORY_FLAGS

_T = TypeVar("_T")


class Descent:
    """Keeps the newest directory open, since paths come in order. Close it."""

    def __init__(self, root_fd: int) -> None:
        self._root_fd = root_fd
        self._path: Optional[str] = None
        self._fd = -1

    def __enter__(self) -> Descent:
        return self

    def __exit__(self, *exception: object) -> None:
        self.forget()

    def forget(self) -> None:
        """Directories were removed or replaced: open them anew."""
        if self._path is not None:
            os.close(self._fd)
            self._path = None

    def parent(self, path: str) -> tuple[int, str]:
        """(descriptor of the directory, name) of a path. Raises OSError (ENOENT, ENOTDIR, ELOOP) where a parent is no directory."""
        directory, _, name = path.rpartition("/")
        if not directory:
            return self._root_fd, name
        if directory != self._path:
            fd = _open_below(self._root_fd, directory)
            self.forget()
            self._fd, self._path = fd, directory
        return self._fd, name

    def key(self, path: str) -> Optional[StatKey]:
        """What is at the path now; None for nothing."""
        try:
            fd, name = self.parent(path)
            return stat_key(os.stat(name, dir_fd=fd, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError:
            return None


def _open_below(root_fd: int, path: str) -> int:
    fd = os.dup(root_fd)
    for name in path.split("/"):
        try:
            below = os.open(name, DIRECTORY_FLAGS, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


@contextlib.contextmanager
def writable(fd: int) -> Iterator[None]:
    """A directory that we own and may not write to becomes writable for a moment."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode)
    os.fchmod(fd, mode | 0o300)
    try:
        yield
    finally:
        os.fchmod(fd, mode)


def changing(fd: int, change: Callable[[], _T]) -> _T:
    """Make a change in the directory `fd`, also where its mode forbids it to its owner."""
    try:
        return change()
    except PermissionError:
        with writable(fd):
            return change()
