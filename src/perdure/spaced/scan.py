"""The scan engine: stat everything, hash what differs, make new nodes only where something changed.

A scan walks depth first through directory descriptors, never following a symlink and never by a path, with a stack of its own: trees may be deeper
than any recursion or path limit. Folders that did not change are shared with the index it started from. The rules R1–R6 of docs/architecture.md
decide what is hashed although its stat key is the same.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from typing import AbstractSet, Optional

from perdure.spaced.content import Content, NotHeld, Opaque, read_content
from perdure.spaced.errors import FencedError
from perdure.spaced.exclude import Rules
from perdure.spaced.frame import Frame, back, renewed, spare
from perdure.spaced.index import (
    CTIME,
    INODE,
    MODE,
    MTIME,
    Folder,
    StatKey,
    digests,
    folder_signature,
    signature,
    signatures,
    stat_key,
)
from perdure.spaced.names import plain
from perdure.spaced.paths import DIRECTORY_FLAGS
from perdure.spaced.staging import Batch, Change, Signature
from perdure.spaced.temporary import is_nameless, is_temporary
from perdure.spaced.touched import WHOLE, Spot, below
from perdure.spaced.tree import (
    ROWS,
)
from perdure.spaced.watch import Watch

_FEW = 32


class Found:
    """What a scan met beside the folders: paths relative to the root.

    `again` is to be hashed again next time (R3), `linked` are the names met of files with several and `links` how many there are,
    `relinked` inodes whose old name it looked at, `hot` files met, `doubtful` written names whose file was not.
    """

    def __init__(self) -> None:
        self.changes: dict[str, Change] = {}
        self.opaque: dict[str, StatKey] = {}
        self.not_held: dict[str, StatKey] = {}
        self.excluded: list[str] = []
        self.mounts: list[str] = []
        self.temporary: list[str] = []
        self.unstable: list[str] = []
        self.again: list[str] = []
        self.linked: dict[int, set[str]] = {}
        self.links: dict[int, int] = {}
        self.relinked: set[int] = set()
        self.hot: list[tuple[int, str]] = []
        self.doubtful: list[str] = []

    def note(self, path: str, before: Optional[Signature], after: Optional[Signature]) -> None:
        """A file that became a directory is noted twice, once from each side."""
        earlier = self.changes.get(path)
        if earlier is not None:
            before, after = earlier[0] or before, earlier[1] or after
        self.changes[path] = (before, after)


class Scan:
    """One scan. `sink` takes nodes and chunks that the old folders do not have; None only hashes.

    `everything` distrusts every key (R5, R6), `hot` inodes are always hashed (R4), a file with a ctime of `racy_from_ns` or later is hashed
    again next time (R3). Without `times` there is no second tree. What `spot` names is hashed whatever its key, and with `only` nothing else
    is looked at. `watch` hears of every directory before it is listed. Raises FencedError as soon as `cancelled()` is true.
    """

    def __init__(
        self,
        device: int,
        *,
        sink: Optional[Batch],
        rules: Rules,
        cancelled: Callable[[], bool],
        hot: frozenset[int] = frozenset(),
        everything: bool = False,
        racy_from_ns: Optional[int] = None,
        mounts: frozenset[str] = frozenset(),
        max_file_bytes: int = 1 << 30,
        times: bool = True,
        only: bool = False,
        watch: Optional[Watch] = None,
    ) -> None:
        self.found = Found()
        self._only, self._watch = only, watch
        self._device, self._sink, self._rules, self._cancelled = device, sink, rules, cancelled
        self._hot, self._everything, self._racy_from_ns = hot, everything, racy_from_ns
        self._mounts, self._max_file_bytes, self._times = mounts, max_file_bytes, times
        self._top: Optional[Folder] = None
        self._new_paths = 0
        self._elsewhere: set[bytes] = set()

    def run(
        self,
        fd: int,
        old: Optional[Folder],
        *,
        path: str = "",
        skip: frozenset[str] = frozenset(),
        spot: Optional[Spot] = None,
    ) -> Folder:
        """The folder of the directory `fd`. `skip` are names at its top that are left out without a word."""
        self._top = old
        key = stat_key(os.fstat(fd))
        stack = [Frame(fd, path, "", key, old or Folder(key), spot)]
        try:
            self._fill(stack[0], old, skip)
            return self._walk(stack)
        finally:
            for frame in stack[1:]:
                if frame.fd is not None:
                    os.close(frame.fd)

    def _walk(self, stack: list[Frame]) -> Folder:
        while True:
            frame = stack[-1]
            if frame.pending:
                child = self._enter(frame, frame.pending.pop())
                if child is not None:
                    stack.append(child)
                    spare(stack)
                continue
            folder = renewed(frame, self._emit, times=self._times)
            if len(stack) == 1:
                return folder
            back(frame, stack[-2])
            stack.pop()
            self._adopt(stack[-1], frame.name, folder)

    # ---- one directory ---------------------------------------------------------------------------------------------------

    def _enter(self, parent: Frame, name: str) -> Optional[Frame]:
        path = parent.below(name)
        assert parent.fd is not None
        try:
            fd = os.open(name, DIRECTORY_FLAGS, dir_fd=parent.fd)
        except PermissionError:
            self.found.opaque[path] = stat_key(os.stat(name, dir_fd=parent.fd, follow_symlinks=False))
            self._forget(parent, name)
            return None
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            self._forget(parent, name)
            return None
        status = os.fstat(fd)
        if status.st_dev != self._device:
            os.close(fd)
            self.found.mounts.append(path)
            self._forget(parent, name)
            return None
        key, old, spot = stat_key(status), parent.old.folders.get(name), below(parent.spot, name)
        if self._only and old is not None and old.key[INODE] != key[INODE]:
            spot = WHOLE
        frame = Frame(fd, path, name, key, old or Folder(key), spot)
        try:
            self._fill(frame, old)
        except BaseException:
            os.close(fd)
            raise
        return frame

    def _fill(self, frame: Frame, old: Optional[Folder], skip: frozenset[str] = frozenset()) -> None:
        if self._cancelled():
            raise FencedError
        if self._only and old is not None and not (frame.spot and frame.spot.whole):
            self._look(frame, skip)
            return
        if self._watch is not None:
            assert frame.fd is not None
            self._watch.enter(frame.fd, frame.path)
        self._list(frame, skip)

    def _look(self, frame: Frame, skip: frozenset[str]) -> None:
        """At the names of the spot alone."""
        old, spot = frame.old, frame.spot
        if spot is None:
            return
        assert frame.fd is not None
        for name in (spot.names | spot.below.keys()) - skip:
            before = old.keys.get(name)
            if before is not None and self._watch is not None and before[INODE] in self._watch.links:
                self.found.relinked.add(before[INODE])
            try:
                status = os.stat(name, dir_fd=frame.fd, follow_symlinks=False)
            except FileNotFoundError:
                if before is None and name in spot.written and not is_nameless(name):
                    self.found.doubtful.append(frame.below(name))
            else:
                self._look_at(frame, name, before, status)
            if before is not None and name not in frame.keys:
                frame.gone.append(name)
                self.found.note(frame.below(name), signature(old, name), None)
        for name in ((spot.names | spot.below.keys()) & old.folders.keys()) - set(frame.pending):
            self._forget(frame, name)

    def _look_at(self, frame: Frame, name: str, before: Optional[StatKey], status: os.stat_result) -> None:
        key = stat_key(status)
        if not self._wanted(frame, name, key):
            return
        if stat.S_ISDIR(key[MODE]):
            frame.pending.append(name)
            return
        assert frame.spot is not None
        if key == before and name in frame.spot.written:
            self.found.doubtful.append(frame.below(name))
        if status.st_nlink > 1:
            self._linked(frame, name, status)
        self._read(frame, name)

    def _linked(self, frame: Frame, name: str, status: os.stat_result) -> None:
        path, inode = frame.below(name), status.st_ino
        self.found.linked.setdefault(inode, set()).add(path)
        self.found.links[inode] = status.st_nlink
        if self._watch is not None:
            assert frame.fd is not None
            self._watch.link(frame.fd, name, path, inode)

    def _list(self, frame: Frame, skip: frozenset[str] = frozenset()) -> None:
        """Compare the directory's names with the old folder's; read what is new or differs."""
        old, hot, spot = frame.old, self._hot, frame.spot
        trusted = {} if self._everything or (spot and spot.whole) else plain(old.keys)
        doubted = old.racy | spot.names if spot else old.racy
        if doubted and trusted:
            trusted = {name: key for name, key in trusted.items() if name not in doubted}
        same: list[str] = []
        fresh: list[str] = []
        assert frame.fd is not None
        with os.scandir(frame.fd) as entries:
            for entry in entries:
                name = entry.name
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                key = stat_key(status)
                if trusted.get(name) == key and not (hot and key[INODE] in hot):
                    same.append(name)
                elif name not in skip and self._wanted(frame, name, key):
                    if stat.S_ISDIR(key[MODE]):
                        frame.pending.append(name)
                        continue
                    fresh.append(name)
                else:
                    continue
                if status.st_nlink > 1:
                    self._linked(frame, name, status)
        for name in fresh:
            self._read(frame, name)
        if len(same) + sum(name in old.keys for name in frame.keys) < len(old.keys):
            for name in old.keys.keys() - set(same) - frame.keys.keys():
                frame.gone.append(name)
                self.found.note(frame.below(name), signature(old, name), None)
        for name in old.folders.keys() - set(frame.pending):
            self._forget(frame, name)

    def _wanted(self, frame: Frame, name: str, key: StatKey) -> bool:
        path = frame.below(name)
        if is_temporary(name):
            self.found.temporary.append(path)
        elif self._rules and self._rules.leave_out(path, directory=stat.S_ISDIR(key[MODE])):
            self.found.excluded.append(path)
        elif path in self._mounts:
            self.found.mounts.append(path)
        else:
            return True
        return False

    def _read(self, frame: Frame, name: str) -> None:
        path, old = frame.below(name), frame.old
        assert frame.fd is not None
        held = old.held.get(name, b"")
        known = {held[-32:]} | {row.digest for row in old.rows.get(name, ())} if held else self._known_elsewhere()

        def keep(digest: bytes, data: bytes) -> None:
            if self._sink is not None and digest not in known:
                self._sink.add(digest, data)
            if self._cancelled():
                raise FencedError

        try:
            content = read_content(frame.fd, name, self._max_file_bytes, keep)
        except (FileNotFoundError, IsADirectoryError):
            return
        except Opaque:
            self.found.opaque[path] = stat_key(os.stat(name, dir_fd=frame.fd, follow_symlinks=False))
            return
        except NotHeld:
            self.found.not_held[path] = stat_key(os.stat(name, dir_fd=frame.fd, follow_symlinks=False))
            return
        self._put(frame, name, content)
        after = Signature(content.payload, content.key[MTIME])
        before = signature(old, name) if name in old.held else None
        if before != after:
            self.found.note(path, before, after)

    def _known_elsewhere(self) -> AbstractSet[bytes]:
        """What the base holds under other names: a moved directory must not be stored again. Not worth looking for a few new files."""
        self._new_paths += 1
        if self._new_paths > _FEW and not self._elsewhere and self._top is not None:
            self._elsewhere = digests(self._top)
        return self._elsewhere

    def _put(self, frame: Frame, name: str, content: Content) -> None:
        frame.keys[name], frame.held[name] = content.key, content.payload
        if content.payload[:1] == ROWS and content.rows:
            frame.rows[name] = content.rows
        if content.unstable:
            self.found.unstable.append(frame.below(name))
        if content.key[INODE] in self._hot:
            self.found.hot.append((content.key[INODE], frame.below(name)))
        if content.unstable or (self._racy_from_ns is not None and content.key[CTIME] >= self._racy_from_ns):
            frame.racy.add(name)
            self.found.again.append(frame.below(name))

    def _adopt(self, frame: Frame, name: str, folder: Folder) -> None:
        old = frame.old.folders.get(name)
        if folder is old:
            return
        frame.folders[name] = folder
        before, after = folder_signature(old) if old else None, folder_signature(folder)
        if before != after:
            self.found.note(frame.below(name), before, after)

    def _forget(self, frame: Frame, name: str) -> None:
        """A directory that is not there any more, with everything in it."""
        folder = frame.old.folders.get(name)
        if folder is None:
            return
        frame.gone_folders.append(name)
        for path, before in signatures(folder, frame.below(name)):
            self.found.note(path, before, None)

    def _emit(self, digest: bytes, node: bytes) -> None:
        if self._sink is not None:
            self._sink.add(digest, node)
