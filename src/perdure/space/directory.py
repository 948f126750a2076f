"""The hands of whoever brings changes into a directory that no Space holds at the moment: it looks, and it changes what is still as it was seen.

Nothing is followed, and a file is complete before it has its name (`perdure.spaced.exchange`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
from pathlib import Path
from types import TracebackType

from msgspec import Struct

from perdure.space import image
from perdure.space.space import ChunkSource
from perdure.spaced import exchange, tree
from perdure.spaced.content import NotHeld, Opaque, Torn, read_content
from perdure.spaced.descent import Descent, changing
from perdure.spaced.durable import sync_file_system
from perdure.spaced.index import INODE, MODE, StatKey, stat_key
from perdure.spaced.paths import DIRECTORY_FLAGS
from perdure.spaced.steps import step
from perdure.spaced.tree import DIRECTORY, LINK, Entry


class InTheWay(Exception):
    """The path can't be reached, or what is there can't be read: `str` says what stands there instead."""


class Seen(Struct, frozen=True):
    """What is at a path. `key` tells it from what anybody puts there later; None: nothing is there."""

    entry: Entry | None = None
    key: StatKey | None = None


class Directory:
    """Open while it is used as a context."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._descent = Descent(self._fd)

    def __enter__(self) -> Directory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._descent.forget()
        os.close(self._fd)

    # ---- looking -----------------------------------------------------------------------------------------------------------

    def look(self, path: str) -> Seen:
        """Raises InTheWay where a part of the path is no directory, or what is there is neither file nor directory nor link."""
        try:
            fd, name = self._descent.parent(path)
            key = stat_key(os.stat(name, dir_fd=fd, follow_symlinks=False))
            if stat.S_ISDIR(key[MODE]):
                return Seen(Entry(DIRECTORY, stat.S_IMODE(key[MODE])), key)
            content = read_content(fd, name, sys.maxsize, lambda digest, data: None)
        except FileNotFoundError:
            return Seen()
        except (NotHeld, Opaque, Torn, IsADirectoryError):
            raise InTheWay("what is there can't be read") from None
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                raise InTheWay("another thing stands where a directory should be") from error
            raise InTheWay(f"it can't be read ({error.strerror})") from error
        if content.unstable:
            raise InTheWay("it changes all the time")
        return Seen(tree.decode_payload(content.payload), content.key)

    def content(self, path: str, seen: Seen, limit_bytes: int) -> bytes | None:
        """The bytes of a file that was looked at; None where there are more, or it is not what was seen any more."""
        try:
            fd, name = self._descent.parent(path)
            opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=fd)
        except OSError:
            return None
        with open(opened, "rb") as file:
            data = file.read(limit_bytes + 1)
            still = stat_key(os.fstat(file.fileno())) == seen.key
        return data if still and len(data) <= limit_bytes else None

    # ---- changing ----------------------------------------------------------------------------------------------------------

    async def put(self, path: str, entry: Entry, content: bytes | None, seen: Seen, source: ChunkSource, temporary: str) -> bool:
        """A file or link, from `content` or else from the log. False where the path is not as it was seen any more; then nothing was changed."""
        fd, name = self._descent.parent(path)
        if entry.kind == LINK:
            changing(fd, lambda: os.symlink(entry.target, os.fsencode(temporary), dir_fd=fd))
        else:
            try:
                await _write(fd, temporary, entry, content, source)
            except BaseException:
                with contextlib.suppress(FileNotFoundError):
                    changing(fd, lambda: os.unlink(temporary, dir_fd=fd))
                raise
        step("apply.put")
        fd, name = self._descent.parent(path)
        return changing(fd, lambda: exchange.put(fd, temporary, name, seen.key))

    def tidy(self, path: str, temporary: str, before: Entry | None, *, landed: bool) -> None:
        """What a `put` that was killed left beside the path: its own unfinished file, or what was there before. Another's newer version gets its place back."""
        self._descent.forget()
        fd, name = self._descent.parent(path)
        beside = self.look("/".join([*path.split("/")[:-1], temporary]))
        if beside.entry is None:
            return
        if landed and beside.entry not in (before, self.look(path).entry):
            changing(fd, lambda: exchange.put(fd, temporary, name, self._descent.key(path)))
        else:
            changing(fd, lambda: os.unlink(temporary, dir_fd=fd))

    def remove(self, path: str, seen: Seen) -> bool:
        """A file or link that was seen; as `put`."""
        assert seen.key is not None
        key = seen.key
        fd, name = self._descent.parent(path)
        if self._descent.key(path) != key:
            return False
        return changing(fd, lambda: exchange.remove(fd, name, key))

    def remove_directory(self, path: str) -> bool:
        """False where something is in it."""
        self._descent.forget()
        fd, name = self._descent.parent(path)
        try:
            changing(fd, lambda: os.rmdir(name, dir_fd=fd))
        except OSError:
            return False
        return True

    def make_directory(self, path: str, mode: int) -> bool:
        fd, name = self._descent.parent(path)
        try:
            changing(fd, lambda: os.mkdir(name, 0o700, dir_fd=fd))
        except FileExistsError:
            return False
        self._set_mode(path, mode)
        return True

    def set_mode(self, path: str, mode: int, seen: Seen) -> bool:
        """Of a directory that is still the one that was seen."""
        now = self._descent.key(path)
        if now is None or seen.key is None or (now[MODE], now[INODE]) != (seen.key[MODE], seen.key[INODE]):
            return False
        self._set_mode(path, mode)
        return True

    def _set_mode(self, path: str, mode: int) -> None:
        fd, name = self._descent.parent(path)
        below = os.open(name, DIRECTORY_FLAGS | os.O_CLOEXEC, dir_fd=fd)
        try:
            os.fchmod(below, mode)
        finally:
            os.close(below)

    def sync(self) -> None:
        """What was changed outlasts a power cut."""
        sync_file_system(self._fd)


def entry_of(content: bytes, mode: int) -> Entry:
    """What a file of these bytes is in an image."""
    rows = tuple(
        tree.Row(offset, length, tree.sha256(piece))
        for offset, length in tree.cuts(len(content))
        if not tree.is_hole(piece := content[offset : offset + length])
    )
    if tree.is_single(len(content), rows):
        return Entry(tree.CHUNK, mode, len(content), rows[0].digest)
    return Entry(tree.ROWS, mode, digest=tree.sha256(tree.encode_file(len(content), rows)))


async def _write(fd: int, name: str, entry: Entry, content: bytes | None, source: ChunkSource) -> None:
    """A new file in the directory `fd`."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    out = changing(fd, lambda: os.open(name, flags, 0o600, dir_fd=fd))
    try:
        if content is None:
            await image.fill(out, entry, source)
        else:
            image.write_at(out, content, 0)
        os.fchmod(out, entry.mode)
    finally:
        os.close(out)
