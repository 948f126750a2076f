"""What the last capture found: the workspace as a tree of folders with stat keys and digests. A cache, never the truth.

A `Folder` is never changed once a scan has ended: a scan makes new folders where something differs and shares the rest, so that a scan
that is cut off leaves the index as it was. On disk the index is one flat list (trees may be deeper than any recursion), with a digest of itself.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import marshal
import sys
import time
from collections.abc import Iterator, Mapping
from operator import attrgetter
from typing import Any, Optional

from perdure.spaced import durable
from perdure.spaced.boot import boot_id
from perdure.spaced.names import plain
from perdure.spaced.staging import Key, Signature
from perdure.spaced.tree import DIRECTORY, Payload, Row, varint
from perdure.spaced.trie import Trie

StatKey = tuple[int, int, int, int, int]
"""(mode, size, mtime_ns, ctime_ns, inode): what must be equal for a path to count as unchanged (R2)."""

stat_key = attrgetter("st_mode", "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino")
MODE, SIZE, MTIME, CTIME, INODE = range(5)

VERSION = 1


class Folder:
    """A directory. `keys` and `held` cover files and symlinks, `rows` the chunks of files that have more than one.

    `racy` names must be hashed again whatever their key (R3, unstable files). `entries` and `size_bytes` count everything below.
    `trie` and `times_trie` are kept for large directories only, and only by the newest folder.
    """

    __slots__ = ("entries", "folders", "held", "key", "keys", "racy", "rows", "size_bytes", "times", "times_trie", "tree", "trie")

    def __init__(self, key: StatKey) -> None:
        self.key = key
        self.keys: Mapping[str, StatKey] = {}
        self.held: Mapping[str, Payload] = {}
        self.rows: Mapping[str, tuple[Row, ...]] = {}
        self.folders: Mapping[str, Folder] = {}
        self.racy: frozenset[str] = frozenset()
        self.tree = self.times = b""
        self.entries = self.size_bytes = 0
        self.trie: Optional[Trie] = None
        self.times_trie: Optional[Trie] = None

    @property
    def mode(self) -> int:
        return self.key[MODE] & 0o7777


def signatures(folder: Folder, path: str) -> Iterator[tuple[str, Signature]]:
    """Every path of a folder, itself first, with what an image says of it."""
    stack = [(path, folder)]
    while stack:
        at, folder = stack.pop()
        yield at, folder_signature(folder)
        for name in folder.held:
            yield at + "/" + name, signature(folder, name)
        stack += ((at + "/" + name, below) for name, below in folder.folders.items())


def digests(top: Folder) -> set[bytes]:
    """Of every chunk and file node below."""
    out: set[bytes] = set()
    stack = [top]
    while stack:
        folder = stack.pop()
        out.update(payload[-32:] for payload in folder.held.values())
        out.update(row.digest for rows in folder.rows.values() for row in rows)
        stack += folder.folders.values()
    return out


def names_of(top: Folder, inodes: set[int], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Paths of files that were found under these inodes."""
    stack = [(prefix, top)]
    while stack:
        prefix, folder = stack.pop()
        for name, key in folder.keys.items():
            if key[INODE] in inodes:
                yield prefix + name, key[INODE]
        stack += ((prefix + name + "/", below) for name, below in folder.folders.items())


def signature(folder: Folder, name: str) -> Signature:
    return Signature(folder.held[name], folder.keys[name][MTIME])


def folder_signature(folder: Folder) -> Signature:
    return Signature(DIRECTORY + varint(folder.mode), None)


class Index:
    """The newest capture's folders, and what decides whether its keys can be believed."""

    def __init__(self, settings: tuple[Any, ...] = ()) -> None:
        self.root: Optional[Folder] = None
        self.git: Optional[Folder] = None
        self.image: Optional[Key] = None
        self.boot = boot_id()
        self.clock = clock_offset()
        self.hot: frozenset[tuple[int, int]] = frozenset()
        self.opaque: dict[str, StatKey] = {}
        self.settings = settings

    @property
    def believable(self) -> bool:
        """False after another boot (R6), or when the wall clock was set back (R5): then everything is hashed."""
        return self.boot == boot_id() and clock_offset()[1] >= self.clock[0]

    def save(self, path: str) -> None:
        folders = [folder and _flat(folder) for folder in (self.root, self.git)]
        state = (self.image, self.boot, self.clock, sorted(self.hot), self.opaque, self.settings, folders)
        data = marshal.dumps((VERSION, sys.version_info[:2], state))
        durable.replace(path, hashlib.sha256(data).digest(), data)

    @classmethod
    def load(cls, path: str, settings: tuple[Any, ...]) -> Index:
        """The saved index, or an empty one where none of the same root and rules can be read: it is only a cache."""
        index = cls(settings)
        with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
            digest, data = file.read(32), file.read()
            if hashlib.sha256(data).digest() == digest and data:
                with _no_collection():
                    version, python, state = marshal.loads(data)
                    if (version, python) == (VERSION, sys.version_info[:2]) and state[-2] == settings:
                        index.image, index.boot, index.clock, hot, index.opaque, index.settings, folders = state
                        index.hot = frozenset(hot)
                        index.root, index.git = (flat and _deep(flat) for flat in folders)
        return index


def _flat(top: Folder) -> list[Any]:
    """Folders in an order where each parent comes before its children: (parent's position, name, contents)."""
    out: list[Any] = []
    stack = [(-1, "", top)]
    while stack:
        parent, name, folder = stack.pop()
        rows = {key: [tuple(row) for row in value] for key, value in folder.rows.items()}
        contents = (folder.key, plain(folder.keys), plain(folder.held), rows, sorted(folder.racy))
        out.append((parent, name, contents, (folder.tree, folder.times, folder.entries, folder.size_bytes)))
        position = len(out) - 1
        stack += ((position, child, below) for child, below in folder.folders.items())
    return out


def _deep(flat: list[Any]) -> Folder:
    folders: list[Folder] = []
    children: list[dict[str, Folder]] = []
    for parent, name, (key, keys, held, rows, racy), (tree, times, entries, size_bytes) in flat:
        folder = Folder(key)
        folder.keys, folder.held, folder.racy = keys, held, frozenset(racy)
        folder.rows = {path: tuple(Row(*row) for row in value) for path, value in rows.items()}
        folder.tree, folder.times, folder.entries, folder.size_bytes = tree, times, entries, size_bytes
        if parent >= 0:
            children[parent][name] = folder
        folders.append(folder)
        children.append({})
        folder.folders = children[-1]
    return folders[0]


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """A million small objects that all live on: the garbage collector would look at them again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


# ---- clocks ----------------------------------------------------------------------------------------------------------------

_COARSE = 5
"""CLOCK_REALTIME_COARSE of Linux, the clock that file systems stamp with."""


def file_clock_ns() -> int:
    """Wall-clock nanoseconds, never later than what the kernel would stamp a file with now."""
    if sys.platform == "linux":
        return time.clock_gettime_ns(_COARSE)
    return time.time_ns()


def clock_offset() -> tuple[int, int]:
    """Bounds of realtime minus boottime in nanoseconds; it falls exactly when the wall clock is set back (R5)."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        before, now, after = time.monotonic_ns(), time.time_ns(), time.monotonic_ns()
        return now - after, now - before
    bounds = []
    for _ in range(3):
        before = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        now = time.time_ns()
        after = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        bounds.append((after - before, now - after, now - before))
    return min(bounds)[1:]
