"""One directory in the middle of its scan, and the folder that comes of it: only what differs is made anew."""

from __future__ import annotations

import errno
import os
from typing import Optional

from perdure.spaced.index import INODE, MTIME, SIZE, Folder, StatKey
from perdure.spaced.names import over
from perdure.spaced.touched import Spot
from perdure.spaced.tree import (
    LEAF_ENTRIES,
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
from perdure.spaced.trie import Emit, Trie

_OPEN_FRAMES = 128


class Frame:
    """What is to be put over, or taken from, the old folder."""

    __slots__ = (
        "fd",
        "folders",
        "gone",
        "gone_folders",
        "held",
        "key",
        "keys",
        "name",
        "old",
        "path",
        "pending",
        "racy",
        "rows",
        "spot",
    )

    def __init__(self, fd: int, path: str, name: str, key: StatKey, old: Folder, spot: Optional[Spot]) -> None:
        self.fd: Optional[int] = fd
        self.path, self.name, self.key, self.old, self.spot = path, name, key, old, spot
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


def renewed(frame: Frame, emit: Emit, *, times: bool) -> Folder:
    """The folder as it is now: the old one itself where nothing differs."""
    old = frame.old
    rehashed = any(old.keys.get(name) != key or old.held[name] != frame.held[name] for name, key in frame.keys.items())
    racy = frozenset(old.racy - frame.keys.keys() - set(frame.gone) | frame.racy)
    touched = rehashed or frame.gone or frame.folders or frame.gone_folders or racy != old.racy
    if not touched and frame.key == old.key and old.tree:
        return old
    new = Folder(frame.key)
    new.keys = over(old.keys, frame.keys, frame.gone)
    new.held = over(old.held, frame.held, frame.gone)
    stale = [name for name in (*frame.gone, *frame.held) if name in old.rows and name not in frame.rows]
    new.rows = over(old.rows, frame.rows, stale)
    new.folders = over(old.folders, frame.folders, frame.gone_folders)
    new.racy = racy
    if not touched and old.tree:
        new.tree, new.times, new.entries, new.size_bytes = old.tree, old.times, old.entries, old.size_bytes
        new.trie, new.times_trie = old.trie, old.times_trie
        return new
    _count(new, old, frame)
    changed = {*frame.keys, *frame.gone, *frame.folders, *frame.gone_folders}
    trie, old.trie = old.trie, None
    new.tree, new.trie = _seal(TREE_LEAF, old, new, changed, trie, emit)
    if times:
        trie, old.times_trie = old.times_trie, None
        new.times, new.times_trie = _seal(TIMES_LEAF, old, new, changed, trie, emit)
    return new


def _seal(
    header: bytes, old: Folder, new: Folder, changed: set[str], trie: Optional[Trie], emit: Emit
) -> tuple[bytes, Optional[Trie]]:
    """Digest of the new folder's node, and the trie that made it where the directory is large."""
    payload_of = _tree_payload if header == TREE_LEAF else _times_payload
    before = old.tree if header == TREE_LEAF else old.times
    if len(new.keys) + len(new.folders) <= LEAF_ENTRIES:
        node = encode_leaf(header, _leaf(header, new))
        digest = sha256(node)
        if digest != before:
            emit(digest, node)
        return digest, None
    if trie is None:
        trie = Trie.of(header, ((os.fsencode(name), payload_of(old, name)) for name in (*old.keys, *old.folders)))
        if before:
            trie.seal(lambda digest, node: None)
    for name in changed:
        was, now = name in old.keys or name in old.folders, name in new.keys or name in new.folders
        if now:
            trie.put(os.fsencode(name), payload_of(new, name))
        elif was:
            trie.remove(os.fsencode(name))
    return trie.seal(emit), trie


def _leaf(header: bytes, folder: Folder) -> list[tuple[bytes, Payload]]:
    """Every entry of a small directory, in any order."""
    encode = os.fsencode
    if header == TREE_LEAF:
        files = [(encode(name), payload) for name, payload in folder.held.items()]
        return files + [(encode(name), directory_payload(f.mode, f.tree)) for name, f in folder.folders.items()]
    files = [(encode(name), time_payload(key[MTIME])) for name, key in folder.keys.items()]
    return files + [(encode(name), times_directory_payload(f.times)) for name, f in folder.folders.items()]


def _tree_payload(folder: Folder, name: str) -> Payload:
    below = folder.folders.get(name)
    return folder.held[name] if below is None else directory_payload(below.mode, below.tree)


def _times_payload(folder: Folder, name: str) -> Payload:
    below = folder.folders.get(name)
    return time_payload(folder.keys[name][MTIME]) if below is None else times_directory_payload(below.times)


def _count(new: Folder, old: Folder, frame: Frame) -> None:
    """Entries and bytes below, by what differs: adding up 100,000 sizes for one changed file would be all that a capture does."""
    entries = old.entries + len(new.keys) - len(old.keys)
    size = old.size_bytes + sum(key[SIZE] for key in frame.keys.values())
    size -= sum(old.keys[name][SIZE] for name in {*frame.keys, *frame.gone} if name in old.keys)
    for name in {*frame.folders, *frame.gone_folders}:
        before, after = old.folders.get(name), new.folders.get(name)
        entries += (after.entries + 1 if after else 0) - (before.entries + 1 if before else 0)
        size += (after.size_bytes if after else 0) - (before.size_bytes if before else 0)
    new.entries, new.size_bytes = entries, size


def spare(stack: list[Frame]) -> None:
    """Close the descriptor of a frame far above: a tree may be deeper than the number of descriptors we may hold."""
    if len(stack) > _OPEN_FRAMES:
        frame = stack[-_OPEN_FRAMES]
        if frame.fd is not None and frame is not stack[0]:
            os.close(frame.fd)
            frame.fd = None


def back(child: Frame, parent: Frame) -> None:
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
