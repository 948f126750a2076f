"""A directory copied, as a workspace that Perdure makes: every file of it, shared with the original where the file system can (reflinks).

The copy stands alone. Links are copied as links, hard links within stay such, holes stay holes. Left out, and told: sockets, FIFOs and devices, what is
mounted below, and what can't be read. Of git's own files the locks are left out, and what it notes of linked worktrees, which lie elsewhere. A `.git`
that leads out of the directory can't be copied: git would write there from the copy.

What changes meanwhile is copied as it was at some instant, each file for itself; git's references go before the objects that they name.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from perdure.record.errors import UsageError
from perdure.record.parts import printable
from perdure.space.image import write_at
from perdure.spaced.durable import sync_file_system
from perdure.spaced.paths import DIRECTORY_FLAGS
from perdure.spaced.temporary import is_temporary

_FICLONE = 0x40049409
"""ioctl_ficlone(2)."""

_PIECE_BYTES = 8 << 20
_TOLD = 1000
_ABSENT = (errno.ENOENT, errno.ENOTDIR)
_ALONE = (errno.EOPNOTSUPP, errno.ENOTTY, errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.ETXTBSY)
"""What a file system says that can't share, or copy by itself."""


class Copied(Struct, frozen=True):
    """`shared` of the files take no room of their own. `left_out` are relative paths, with why; at most 1,000 of them."""

    files: int = 0
    shared: int = 0
    bytes: int = 0
    left_out: tuple[str, ...] = ()
    left_out_count: int = 0


class Cancelled(Exception):
    """Whoever wanted the copy does not any more."""


def copy(source: Path, target: Path, *, cancelled: Callable[[], bool] = lambda: False) -> Copied:
    """Make `target`, a new directory. Raises UsageError where a repository in it would lead out, Cancelled, OSError."""
    work = _Copy(source, cancelled)
    from_fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        work.device = os.fstat(from_fd).st_dev
        target.mkdir(mode=0o700)
        to_fd = os.open(target, DIRECTORY_FLAGS)
        try:
            work.directory(from_fd, to_fd, "", git=False)
            _dress(to_fd, os.fstat(from_fd))
            sync_file_system(to_fd)
        finally:
            os.close(to_fd)
    finally:
        os.close(from_fd)
    return work.copied()


class _Copy:
    def __init__(self, source: Path, cancelled: Callable[[], bool]) -> None:
        self.device = 0
        self._source = Path(os.path.realpath(source))
        self._cancelled = cancelled
        self._names: dict[int, str] = {}
        self._root_fd = -1
        self._files = self._shared = self._bytes = self._left_count = 0
        self._left: list[str] = []

    def copied(self) -> Copied:
        return Copied(self._files, self._shared, self._bytes, tuple(self._left), self._left_count)

    def directory(self, from_fd: int, to_fd: int, path: str, *, git: bool) -> None:
        """Everything in it; `git`: it belongs to a repository's own files."""
        if not path:
            self._root_fd = to_fd
        names = os.listdir(from_fd)
        if git:
            names.sort(key=lambda name: (name == "objects", name))
        for name in names:
            if self._cancelled():
                raise Cancelled
            if is_temporary(name) or (git and (name.endswith(".lock") or (name == "worktrees" and path.endswith(".git")))):
                continue
            inside = f"{path}/{name}" if path else name
            try:
                self._entry(from_fd, to_fd, name, inside, git=git or name == ".git")
            except PermissionError:
                self._leave(inside, "can't be read")
            except OSError as error:
                if error.errno not in _ABSENT:  # else it went while the copy was made
                    raise

    def _entry(self, from_fd: int, to_fd: int, name: str, path: str, *, git: bool) -> None:
        found = os.stat(name, dir_fd=from_fd, follow_symlinks=False)
        if name == ".git":
            self._stays_inside(from_fd, found, path)
        if stat.S_ISDIR(found.st_mode):
            self._below(from_fd, to_fd, name, path, found, git=git)
        elif stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=from_fd), name, dir_fd=to_fd)
            os.utime(name, ns=(found.st_atime_ns, found.st_mtime_ns), dir_fd=to_fd, follow_symlinks=False)
        elif stat.S_ISREG(found.st_mode):
            self._file(from_fd, to_fd, name, path, found)
        else:
            self._leave(path, "is neither file nor directory nor link")

    def _below(self, from_fd: int, to_fd: int, name: str, path: str, found: os.stat_result, *, git: bool) -> None:
        if found.st_dev != self.device:
            self._leave(path, "is mounted there")
            return
        below_from = os.open(name, DIRECTORY_FLAGS | os.O_CLOEXEC, dir_fd=from_fd)
        try:
            os.mkdir(name, 0o700, dir_fd=to_fd)
            below_to = os.open(name, DIRECTORY_FLAGS | os.O_CLOEXEC, dir_fd=to_fd)
            try:
                self.directory(below_from, below_to, path, git=git)
                _dress(below_to, found)
            finally:
                os.close(below_to)
        finally:
            os.close(below_from)

    def _file(self, from_fd: int, to_fd: int, name: str, path: str, found: os.stat_result) -> None:
        if (first := self._names.get(found.st_ino)) is not None:
            os.link(first, name, src_dir_fd=self._root_fd, dst_dir_fd=to_fd, follow_symlinks=False)
            return
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=from_fd)
        try:
            out = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=to_fd)
            try:
                self._shared += _fill(fd, out)
                _dress(out, found)
            finally:
                os.close(out)
        finally:
            os.close(fd)
        self._files += 1
        self._bytes += found.st_size
        if found.st_nlink > 1:
            self._names[found.st_ino] = path

    def _stays_inside(self, from_fd: int, found: os.stat_result, path: str) -> None:
        """A `.git` that is a file or a link names a repository elsewhere; a relative way to one inside of the directory is as good in the copy."""
        if stat.S_ISDIR(found.st_mode):
            return
        here = self._source / path
        text = os.readlink(".git", dir_fd=from_fd) if stat.S_ISLNK(found.st_mode) else here.read_text(errors="surrogateescape")
        named = text.removeprefix("gitdir:").strip()
        leads = Path(os.path.realpath(here.parent / named))
        if Path(named).is_absolute() or not leads.is_relative_to(self._source):
            raise UsageError(
                f"{here} leads to a repository outside of the copy, {printable(str(leads))}: git would write there from the copy. Name the directory that "
                "holds the repository with -C, or make a clone (`git clone`) and work there"
            )

    def _leave(self, path: str, why: str) -> None:
        self._left_count += 1
        if len(self._left) < _TOLD:
            self._left.append(f"{printable(path)} {why}")


def _dress(fd: int, found: os.stat_result) -> None:
    os.fchmod(fd, stat.S_IMODE(found.st_mode))
    os.utime(fd, ns=(found.st_atime_ns, found.st_mtime_ns))


def _fill(source: int, target: int) -> bool:
    """The content of one open file for another, empty one; True where both share it now."""
    if sys.platform == "linux" and _cloned(source, target):
        return True
    size, at = os.fstat(source).st_size, 0
    while at < size:
        begin, end = _data(source, at, size)
        while begin < end:
            moved = _moved(source, target, begin, min(end - begin, _PIECE_BYTES))
            if not moved:  # it got shorter
                end = size = begin
            begin += moved
        at = max(end, at + 1) if end > at else size
    os.ftruncate(target, size)
    return False


def _cloned(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno not in _ALONE:
            raise
        return False
    return True


def _data(fd: int, at: int, size: int) -> tuple[int, int]:
    """The next stretch that is no hole."""
    try:
        begin = os.lseek(fd, at, os.SEEK_DATA)
        return begin, min(size, os.lseek(fd, begin, os.SEEK_HOLE))
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size, size
        return at, size


def _moved(source: int, target: int, at: int, count: int) -> int:
    if hasattr(os, "copy_file_range"):
        try:
            return os.copy_file_range(source, target, count, at, at)
        except OSError as error:
            if error.errno not in _ALONE:
                raise
    piece = os.pread(source, count, at)
    write_at(target, piece, at)
    return len(piece)
