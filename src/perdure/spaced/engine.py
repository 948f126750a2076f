"""How a workspace is captured: `scan` looks at everything, `watch` at what events told of since the capture before.

A watch capture closes the set first: with a file that has several names go all of them, with what left processes hold open for writing the files
that it was (R4), with racy and unheld paths those paths. Whatever leaves a doubt is a scan, which arms the watch anew.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Optional, Union

from perdure.spaced.index import Folder, Index
from perdure.spaced.index import names_of as names_in
from perdure.spaced.mounts import Mounts
from perdure.spaced.scan import Found
from perdure.spaced.touched import Touched
from perdure.spaced.watch import Watch

AUTO, SCAN, WATCH, STRICT = "auto", "scan", "watch", "strict"
CHOICES = (AUTO, SCAN, WATCH, STRICT)
AGAIN_S = 60.0
"""So long a tree that could not be watched is not tried again."""


class Engine:
    """`why` says what made the newest capture a scan, or is empty where none was needed."""

    def __init__(self, choice: str, root_fd: int, root_path: str, device: int, wanted: Callable[[str], bool]) -> None:
        self.mounts = Mounts(root_path)
        self.why = ""
        self.watch: Optional[Watch] = None
        self._root_fd, self._device, self._wanted = root_fd, device, wanted
        self._unwatchable = "asked for" if choice == SCAN else ""
        self._try_again_s = float("inf") if choice == SCAN else 0.0
        self._mounted: frozenset[str] = frozenset()
        self._hot: dict[int, set[str]] = {}
        if choice != SCAN and sys.platform != "linux":
            self._unwatchable, self._try_again_s = "there is no inotify here", float("inf")
        elif choice in (AUTO, STRICT) and not self.mounts.local():
            self._unwatchable, self._try_again_s = "its file system does not tell of changes made elsewhere", float("inf")

    @property
    def told(self) -> str:
        """In words, for people."""
        return "scan (%s)" % self._unwatchable if self._unwatchable else "watch"

    @property
    def watching(self) -> bool:
        """Whether a capture now would look at what was touched alone, as far as can be told."""
        return self.watch is not None and self.watch.index is not None and not self.watch.broken

    def take(self, old: Index, *, scan: str) -> tuple[Touched, bool]:
        """What is known to have changed since that index, and whether that is all. `scan` says why everything must be looked at, if so."""
        mounted, before = self.mounts.now(), self._mounted
        self._mounted = mounted
        watch = self._listening()
        if watch is None:
            self.why = self._unwatchable
            return Touched(), False
        taken = watch.take()
        if watch.index is None or watch.index is not old:
            self.why = "nothing was watched before"
            watch.index = None
            return taken, False
        self.why = scan or taken.doubt or watch.broken
        if not old.believable:
            self.why = "the clock was set back"
        if mounted != before:
            self.why = "something was mounted"
        watch.index = None  # until it is known what became of the set
        return taken, not self.why

    def keep(self, index: Index) -> None:
        """The set is told against this index from now on. A watch that broke is given up."""
        if self.watch is None:
            return
        if self.watch.broken:
            self._unwatchable, self._try_again_s = self.watch.broken, time.monotonic() + AGAIN_S
            self.close()
        else:
            self.watch.index = index

    @contextlib.contextmanager
    def afresh(self) -> Iterator[None]:
        self._hot = {}
        with self.watch.afresh() if self.watch is not None else contextlib.nullcontext():
            yield

    def also(self, old: Index, hot: Iterable[int], paths: Iterable[str]) -> set[str]:
        """What must be looked at beside the set: left processes' files (R4), and `paths` that no image holds or that must be hashed again."""
        hot = set(hot)
        self._hot = {inode: self._hot[inode] for inode in hot & self._hot.keys()}
        unknown = hot - self._hot.keys()
        if unknown:
            self._hot.update((inode, set()) for inode in unknown)
            for path, found in _names(old.root, old.git, unknown):
                self._hot[found].add(path)
        return set(paths).union(*self._hot.values())

    def names_of(self, inodes: Iterable[int]) -> set[str]:
        """The known names of files with several: an event about one may have come by a name outside alone."""
        assert self.watch is not None
        return set().union(*(self.watch.links.get(inode, ()) for inode in inodes))

    def more(self, old: Index, found: list[Found], inodes: set[int], done: set[str]) -> set[str]:
        """Names that are still missing: each other name of a file with several that was looked at or told of."""
        watch = self.watch
        assert watch is not None
        for one in found:
            for hot, path in one.hot:
                self._hot.setdefault(hot, set()).add(path)
        affected = inodes.union(*(one.relinked for one in found), *(one.linked for one in found))
        if not affected:
            return set()
        names: set[str] = set().union(*(watch.links.get(inode, ()) for inode in affected))
        fresh, watch.fresh = watch.fresh, set()
        if fresh:
            names.update(path for path, _ in _names(old.root, old.git, fresh))
        missing = names - done - set().union(*(paths for one in found for paths in one.linked.values()))
        if not missing:
            for inode in affected:
                watch.relink(inode, set().union(*(one.linked.get(inode, ()) for one in found)))
        return missing

    def close(self) -> None:
        if self.watch is not None:
            self.watch.close()
            self.watch = None

    def _listening(self) -> Optional[Watch]:
        if self.watch is None and time.monotonic() >= self._try_again_s:
            try:
                self.watch = Watch(self._root_fd, self._device, self._wanted)
                self._unwatchable = ""
            except OSError as error:
                self._unwatchable, self._try_again_s = error.strerror or str(error), time.monotonic() + AGAIN_S
        return self.watch


def probe(root: Union[str, os.PathLike[str]]) -> str:
    """What `auto` is on this directory, in the words of `told`, as far as that can be known before its directories are counted."""
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    engine = Engine(AUTO, fd, os.path.realpath(root), os.fstat(fd).st_dev, lambda path: True)
    try:
        engine._listening()
    finally:
        engine.close()
        os.close(fd)
    return engine.told


def _names(root: Optional[Folder], git: Optional[Folder], inodes: set[int]) -> Iterator[tuple[str, int]]:
    if root is not None:
        yield from names_in(root, inodes)
    if git is not None:
        yield from names_in(git, inodes, ".git/")
