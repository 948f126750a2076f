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
from typing import AbstractSet, Optional, TypeVar

from perdure.spaced.content import Content, NotHeld, Opaque, read_content
from perdure.spaced.errors import FencedError
from perdure.spaced.exclude import Rules
from perdure.spaced.index import (
    CTIME,
    INODE,
    MODE,
    MTIME,
    SIZE,
    Folder,
    StatKey,
    digests,
    folder_signature,
    signature,
    signatures,
    stat_key,
)
from perdure.spaced.paths import DIRECTORY_FLAGS
from perdure.spaced.staging import Batch, Change, Signature
from perdure.spaced.temporary import is_temporary
from perdure.spaced.tree import (
    LEAF_ENTRIES,
    ROWS,
    TIMES_LEAF,
    TREE_LEAF,
    Payload,
    Row,
    directory_payload,
    encode_leaf,
    sha256,
    time_payload,
    times_directory_payload,
)
from perdure.spaced.trie import Trie

_OPEN_FRAMES = 128
_FEW = 32
_T = TypeVar("_T")


class Found:
    """What a scan met beside the folders: paths relative to the root."""

    def __init__(self) -> None:
        self.changes: dict[str, Change] = {}
        self.opaque: dict[str, StatKey] = {}
        self.not_held: dict[str, StatKey] = {}
        self.excluded: list[str] = []
        self.mounts: list[str] = []
        self.temporary: list[str] = []
        self.unstable: list[str] = []

    def note(self, path: str, before: Optional[Signature], after: Optional[Signature]) -> None:
        """A file that became a directory is noted twice, once from each side."""
        earlier = self.changes.get(path)
        if earlier is not None:
            before, after = earlier[0] or before, earlier[1] or after
        self.changes[path] = (before, after)


class _Frame:
    """One directory in the middle of its scan: what is to be put over, or taken from, the old folder."""

    __slots__ = ("fd", "folders", "gone", "gone_folders", "key", "keys", "held", "name", "old", "path", "pending", "racy", "rows")  # noqa: RUF023

    def __init__(self, fd: int, path: str, name: str, key: StatKey, old: Folder) -> None:
        self.fd: Optional[int] = fd
        self.path, self.name, self.key, self.old = path, name, key, old
        self.pending: list[str] = []
        self.keys: dict[str, StatKey] = {}
        self.held: dict[str, Payload] = {}
        self.rows: dict[str, tuple[Row, ...]] = {}
        self.racy: set[str] = set()
        self.gone: list[str] = []
        self.folders: dict[str, Folder] = {}
        self.gone_folders: list[str] = []

    def below(self, name: str) -> str:
        return self.path + "/" + name if self.path else name


class Scan:
    """One scan. `sink` takes nodes and chunks that the old folders do not have; None only hashes.

    `everything` distrusts every key (R5, R6), `hot` inodes are always hashed (R4), a file with a ctime of `racy_from_ns` or later is hashed
    again next time (R3). Without `times` there is no second tree. Raises FencedError as soon as `cancelled()` is true.
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
    ) -> None:
        self.found = Found()
        self._device, self._sink, self._rules, self._cancelled = device, sink, rules, cancelled
        self._hot, self._everything, self._racy_from_ns = hot, everything, racy_from_ns
        self._mounts, self._max_file_bytes, self._times = mounts, max_file_bytes, times
        self._top: Optional[Folder] = None
        self._new_paths = 0
        self._elsewhere: set[bytes] = set()

    def run(self, fd: int, old: Optional[Folder], *, path: str = "", skip: frozenset[str] = frozenset()) -> Folder:
        """The folder of the directory `fd`. `skip` are names at its top that are left out without a word."""
        self._top = old
        key = stat_key(os.fstat(fd))
        stack = [_Frame(fd, path, "", key, old or Folder(key))]
        try:
            self._list(stack[0], skip)
            return self._walk(stack)
        finally:
            for frame in stack[1:]:
                if frame.fd is not None:
                    os.close(frame.fd)

    def _walk(self, stack: list[_Frame]) -> Folder:
        while True:
            frame = stack[-1]
            if frame.pending:
                child = self._enter(frame, frame.pending.pop())
                if child is not None:
                    stack.append(child)
                    _spare(stack)
                continue
            folder = self._leave(frame)
            if len(stack) == 1:
                return folder
            _return(frame, stack[-2])
            stack.pop()
            self._adopt(stack[-1], frame.name, folder)

    # ---- one directory ---------------------------------------------------------------------------------------------------

    def _enter(self, parent: _Frame, name: str) -> Optional[_Frame]:
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
        key = stat_key(status)
        frame = _Frame(fd, path, name, key, parent.old.folders.get(name) or Folder(key))
        try:
            self._list(frame)
        except BaseException:
            os.close(fd)
            raise
        return frame

    def _list(self, frame: _Frame, skip: frozenset[str] = frozenset()) -> None:
        """Compare the directory's names with the old folder's; read what is new or differs."""
        if self._cancelled():
            raise FencedError
        old, hot = frame.old, self._hot
        trusted = {} if self._everything else old.keys
        if old.racy and trusted:
            trusted = {name: key for name, key in trusted.items() if name not in old.racy}
        same: list[str] = []
        fresh: list[str] = []
        assert frame.fd is not None
        with os.scandir(frame.fd) as entries:
            for entry in entries:
                name = entry.name
                try:
                    key = stat_key(entry.stat(follow_symlinks=False))
                except FileNotFoundError:
                    continue
                if trusted.get(name) == key and not (hot and key[INODE] in hot):
                    same.append(name)
                elif name not in skip and self._wanted(frame, name, key):
                    (frame.pending if stat.S_ISDIR(key[MODE]) else fresh).append(name)
        for name in fresh:
            self._read(frame, name)
        if len(same) + sum(name in old.keys for name in frame.keys) < len(old.keys):
            for name in old.keys.keys() - set(same) - frame.keys.keys():
                frame.gone.append(name)
                self.found.note(frame.below(name), signature(old, name), None)
        for name in old.folders.keys() - set(frame.pending):
            self._forget(frame, name)

    def _wanted(self, frame: _Frame, name: str, key: StatKey) -> bool:
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

    def _read(self, frame: _Frame, name: str) -> None:
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

    def _put(self, frame: _Frame, name: str, content: Content) -> None:
        frame.keys[name], frame.held[name] = content.key, content.payload
        if content.payload[:1] == ROWS and content.rows:
            frame.rows[name] = content.rows
        if content.unstable:
            self.found.unstable.append(frame.below(name))
        if content.unstable or (self._racy_from_ns is not None and content.key[CTIME] >= self._racy_from_ns):
            frame.racy.add(name)

    def _adopt(self, frame: _Frame, name: str, folder: Folder) -> None:
        old = frame.old.folders.get(name)
        if folder is old:
            return
        frame.folders[name] = folder
        before, after = folder_signature(old) if old else None, folder_signature(folder)
        if before != after:
            self.found.note(frame.below(name), before, after)

    def _forget(self, frame: _Frame, name: str) -> None:
        """A directory that is not there any more, with everything in it."""
        folder = frame.old.folders.get(name)
        if folder is None:
            return
        frame.gone_folders.append(name)
        for path, before in signatures(folder, frame.below(name)):
            self.found.note(path, before, None)

    # ---- new folders -----------------------------------------------------------------------------------------------------

    def _leave(self, frame: _Frame) -> Folder:
        """The folder as it is now: the old one itself where nothing differs."""
        old = frame.old
        rehashed = any(old.keys.get(name) != key or old.held[name] != frame.held[name] for name, key in frame.keys.items())
        racy = frozenset(old.racy - frame.keys.keys() - set(frame.gone) | frame.racy)
        touched = rehashed or frame.gone or frame.folders or frame.gone_folders or racy != old.racy
        if not touched and frame.key == old.key and old.tree:
            return old
        new = Folder(frame.key)
        new.keys = _over(old.keys, frame.keys, frame.gone)
        new.held = _over(old.held, frame.held, frame.gone)
        new.rows = _over(old.rows, frame.rows, [*frame.gone, *(name for name in frame.held if name not in frame.rows)])
        new.folders = _over(old.folders, frame.folders, frame.gone_folders)
        new.racy = racy
        if not touched and old.tree:
            new.tree, new.times, new.entries, new.size_bytes = old.tree, old.times, old.entries, old.size_bytes
            new.trie, new.times_trie = old.trie, old.times_trie
            return new
        new.entries = len(new.keys) + sum(folder.entries + 1 for folder in new.folders.values())
        new.size_bytes = sum(key[SIZE] for key in new.keys.values()) + sum(f.size_bytes for f in new.folders.values())
        changed = {*frame.keys, *frame.gone, *frame.folders, *frame.gone_folders}
        trie, old.trie = old.trie, None
        new.tree, new.trie = self._seal(TREE_LEAF, old, new, changed, trie)
        if self._times:
            trie, old.times_trie = old.times_trie, None
            new.times, new.times_trie = self._seal(TIMES_LEAF, old, new, changed, trie)
        return new

    def _seal(
        self, header: bytes, old: Folder, new: Folder, changed: set[str], trie: Optional[Trie]
    ) -> tuple[bytes, Optional[Trie]]:
        """Digest of the new folder's node, and the trie that made it where the directory is large."""
        payload_of = _tree_payload if header == TREE_LEAF else _times_payload
        before = old.tree if header == TREE_LEAF else old.times
        if len(new.keys) + len(new.folders) <= LEAF_ENTRIES:
            node = encode_leaf(header, ((os.fsencode(name), payload_of(new, name)) for name in (*new.keys, *new.folders)))
            digest = sha256(node)
            if digest != before:
                self._emit(digest, node)
            return digest, None
        if trie is None:
            trie = Trie(header)
            for name in (*old.keys, *old.folders):
                trie.put(os.fsencode(name), payload_of(old, name))
            if before:
                trie.seal(lambda digest, node: None)
        for name in changed:
            was, now = name in old.keys or name in old.folders, name in new.keys or name in new.folders
            if now:
                trie.put(os.fsencode(name), payload_of(new, name))
            elif was:
                trie.remove(os.fsencode(name))
        return trie.seal(self._emit), trie

    def _emit(self, digest: bytes, node: bytes) -> None:
        if self._sink is not None:
            self._sink.add(digest, node)


def _tree_payload(folder: Folder, name: str) -> Payload:
    below = folder.folders.get(name)
    return folder.held[name] if below is None else directory_payload(below.mode, below.tree)


def _times_payload(folder: Folder, name: str) -> Payload:
    below = folder.folders.get(name)
    return time_payload(folder.keys[name][MTIME]) if below is None else times_directory_payload(below.times)


def _over(old: dict[str, _T], put: dict[str, _T], gone: list[str]) -> dict[str, _T]:
    """The old dictionary itself where nothing is put over or taken away."""
    if not put and not gone:
        return old
    new = {**old, **put}
    for name in gone:
        new.pop(name, None)
    return new


def _spare(stack: list[_Frame]) -> None:
    """Close the descriptor of a frame far above: a tree may be deeper than the number of descriptors we may hold."""
    if len(stack) > _OPEN_FRAMES:
        frame = stack[-_OPEN_FRAMES]
        if frame.fd is not None and frame is not stack[0]:
            os.close(frame.fd)
            frame.fd = None


def _return(child: _Frame, parent: _Frame) -> None:
    """Back to the parent; one whose descriptor was closed is found by `..`, and must be the same directory."""
    assert child.fd is not None
    try:
        if parent.fd is None:
            parent.fd = os.open("..", os.O_RDONLY | os.O_DIRECTORY, dir_fd=child.fd)
            if os.fstat(parent.fd).st_ino != parent.key[INODE]:
                raise OSError(errno.ESTALE, "a directory was moved while it was scanned", parent.path)
    finally:
        os.close(child.fd)
        child.fd = None
