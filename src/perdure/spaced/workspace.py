"""One workspace: its root, its index and its staged bytes, and the captures that tie them together.

A capture names the image the workspace is now, and tells what the base does not hold. The base is an image that the log has. Where it lies on the
staging chain, the answer is everything behind it; where it does not (the first capture, a lost state folder), the workspace is hashed in full,
and if it then turns out to be the base after all, nothing was staged for it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Optional

from perdure.spaced import durable
from perdure.spaced.descent import Descent
from perdure.spaced.engine import SCAN, Engine
from perdure.spaced.errors import FencedError, ReplacedError
from perdure.spaced.exclude import Rules
from perdure.spaced.grain import grain_ns
from perdure.spaced.index import Index, StatKey, file_clock_ns
from perdure.spaced.mounts import mounts_below as mounts_below
from perdure.spaced.paths import DIRECTORY_FLAGS, path_text
from perdure.spaced.scan import Found, Scan
from perdure.spaced.staging import Batch, Change, Signature, Staging, key_of
from perdure.spaced.touched import Spot, Touched, spots_of

CHANGED_TOLD = 1000
_SAVE_PAUSE_S = 10.0
_SAVE_SHARE = 50
"""The index is saved at most once in ten seconds, and for at most a fiftieth of the time."""

_REPLACED = "%s %s; put that one back, then `perdure resume`, or give the session up: `perdure abandon`"
SOMEWHERE: dict[str, Change] = {".": (None, Signature(b"", None))}
"""The workspace differs from a base whose content is not known here."""
Cancelled = Callable[[], bool]


class Workspace:
    """`own`: Perdure made it, so a top-level `.git` is ordinary content. Not for use by two threads at once.

    `not_held`, `mounts` and `excluded` are the relative paths that the newest scan left out, and why by their name.
    """

    def __init__(
        self,
        root_fd: int,
        root_path: str,
        state_dir: str,
        *,
        own: bool,
        exclude: tuple[str, ...] = (),
        max_file_bytes: int = 1 << 30,
        capture: str = SCAN,
    ) -> None:
        self.root_fd, self.root_path, self.state_dir, self.own = root_fd, os.path.realpath(root_path), state_dir, own
        self.staging = Staging(os.path.join(state_dir, "staging"))
        status = os.fstat(root_fd)
        self.device = status.st_dev
        self.settings = (status.st_dev, status.st_ino, own, tuple(exclude), max_file_bytes)
        self.index = Index.load(self._index_path, self.settings)
        self.not_held: dict[str, StatKey] = {}
        self._linked_outside: dict[int, str] = {}
        self.mounts: list[str] = []
        self.excluded: list[str] = []
        self.temporary: list[str] = []
        self._rules, self.max_file_bytes = Rules(exclude), max_file_bytes
        self._grain_ns: Optional[int] = None
        self._again: list[str] = []
        self._audit = False
        self._save_due_s = 0.0
        self.engine = Engine(capture, root_fd, self.root_path, self.device, self._wanted)

    @property
    def _index_path(self) -> str:
        return os.path.join(self.state_dir, "index")

    def save(self) -> None:
        """Write the index cache, so that the next supervisor need not hash everything."""
        started_s = time.monotonic()
        self.index.save(self._index_path)
        now_s = time.monotonic()
        self._save_due_s = now_s + max(_SAVE_PAUSE_S, (now_s - started_s) * _SAVE_SHARE)

    def save_when_due(self) -> None:
        """A supervisor may be killed: an index that is a little old still saves its successor most of the hashing."""
        if self.index.root is not None and time.monotonic() >= self._save_due_s:
            with contextlib.suppress(OSError):  # a full disk must not fail a capture for a cache's sake
                self.save()

    def sync(self) -> None:
        """Make the workspace's file system durable."""
        durable.sync_file_system(self.root_fd)

    def check_root(self) -> None:
        """Raises ReplacedError where the path leads elsewhere: people see another directory there than the one that was opened."""
        try:
            now = os.stat(self.root_path)
        except OSError as error:
            raise ReplacedError(error.errno, _REPLACED % (self.root_path, "can't be reached")) from error
        if (now.st_dev, now.st_ino) != self.settings[:2]:
            raise ReplacedError(errno.ESTALE, _REPLACED % (self.root_path, "is another directory than the session works in"))

    def capture(
        self,
        base: Optional[dict[str, Any]],
        *,
        hot: Iterable[tuple[int, int]] = (),
        cancelled: Cancelled = lambda: False,
        audit: bool = False,
    ) -> dict[str, Any]:
        """The workspace now, in the shape of space.Capture without `left`. Raises FencedError as soon as `cancelled()` is true.

        An audit looks at everything, whatever events told.
        `changed` is relative to the base. Where the base was unknown here and differs, `.` is among it: somewhere. None has nothing to differ from.
        Beside the struct's fields there are `not_held` and `mounts`.
        """
        start, hot_now = key_of(base), frozenset(hot)
        known = self.index.root is not None and self.index.image == self.staging.end and self.staging.since(start) is not None
        self._audit = audit
        image, found = self._step(self.index, hot_now, cancelled) if known else self._afresh(start, hot_now, cancelled)
        batches = self.staging.since(start) or []
        changed = {} if base is None else compose(batches)
        opaque_changed = {path for batch in batches for path in batch.opaque}
        if self.engine.why:
            self.save_when_due()
        return self._told(image, found, batches, changed, opaque_changed)

    def scan(self, cancelled: Cancelled) -> Index:
        """What is there now, nothing staged: a plan must not need room for what it is going to take back.

        The chain's index stays as it was, so that the next capture still knows what the log lacks; only one that is off the chain is replaced.
        """
        seen = self.engine.watch.peek() if self.engine.watch is not None else Touched()
        with self._started(frozenset()) as start:
            found, index = self._everything(self.index, None, cancelled, seen, start, watch=False)
        self._named(index, start)
        self._note_links(found, whole=True)
        index.opaque = found.opaque
        if self.index.root is None or self.index.image != self.staging.end:
            self.index = index
        self._note(found)
        return index

    def sweep(self, cancelled: Cancelled) -> None:
        """Remove what a killed write or restore left unfinished, as far as the newest scan met it."""
        with Descent(self.root_fd) as descent:
            while self.temporary:
                if cancelled():
                    raise FencedError
                with contextlib.suppress(OSError):
                    fd, name = descent.parent(self.temporary[-1])
                    os.unlink(name, dir_fd=fd)
                self.temporary.pop()

    # ---- captures --------------------------------------------------------------------------------------------------------

    def _step(
        self,
        old: Index,
        hot: frozenset[tuple[int, int]],
        cancelled: Cancelled,
        *,
        changes: Optional[dict[str, Change]] = None,
    ) -> tuple[dict[str, Any], Found]:
        """One more link of the chain, or none where nothing changed. `changes` are known better than from the old index."""
        batch = self.staging.begin()
        try:
            image, found, index = self._run(old, batch, hot, cancelled)
            index.opaque = found.opaque
            batch.opaque = sorted(p for p in {*found.opaque, *old.opaque} if found.opaque.get(p) != old.opaque.get(p))
            batch.image, batch.changes = key_of(image), found.changes if changes is None else changes
            told = bool(batch.opaque) or batch.image != self.staging.end
            if told:
                self.staging.append(batch)
        except BaseException:
            batch.drop()
            raise
        if not told:
            batch.drop()
        self._accept(index, found)
        return image, found

    def _afresh(
        self, start: Optional[tuple[str, str, Optional[str]]], hot: frozenset[tuple[int, int]], cancelled: Cancelled
    ) -> tuple[dict[str, Any], Found]:
        """A new chain from a base that the chain does not know."""
        if start is not None:
            image, found, index = self._run(self.index, None, hot, cancelled)
            index.opaque = found.opaque
            if key_of(image) == start:
                self.staging.restart(start)
                self._accept(index, found)
                return image, found
        self.staging.restart(start)
        return self._step(Index(self.settings), hot, cancelled, changes=None if start is None else SOMEWHERE)

    def _run(
        self, old: Index, sink: Optional[Batch], hot: frozenset[tuple[int, int]], cancelled: Cancelled
    ) -> tuple[dict[str, Any], Found, Index]:
        with self._started(hot) as start:
            other = "the repository came or went" if (old.git is None) != (start.git_fd is None) else ""
            touched, known = self.engine.take(old, scan="an audit" if self._audit else other)
            done = self._partly(old, sink, cancelled, touched, start) if known else None
            whole = done is None
            if done is None:
                with self.engine.afresh():
                    done = self._everything(old, sink, cancelled, touched, start)
        found, new = done
        self._note_links(found, whole=whole)
        image = self._named(new, start)
        self._again = found.again
        self.engine.keep(new)
        return image, found, new

    @contextlib.contextmanager
    def _started(self, hot: frozenset[tuple[int, int]]) -> Iterator[_Start]:
        self.check_root()
        if self._grain_ns is None:
            self._grain_ns = grain_ns(self.root_fd, self.state_dir)
        git_fd = self._open_git()
        try:
            yield _Start(file_clock_ns(), hot, git_fd)
        finally:
            if git_fd is not None:
                os.close(git_fd)

    def _scan(
        self, old: Index, sink: Optional[Batch], cancelled: Cancelled, start: _Start, *, only: bool, watch: bool
    ) -> tuple[Scan, Scan]:
        """Of the files and of git. The second has no rules and no times."""

        def scan(times: bool) -> Scan:
            return Scan(
                self.device,
                sink=sink,
                rules=self._rules if times else Rules(),
                cancelled=cancelled,
                hot=frozenset(inode for _, inode in start.hot | old.hot),
                everything=not old.believable,
                racy_from_ns=start.clock_ns - 2 * self._grain_ns if self._grain_ns else None,
                mounts=self.engine.mounts.now(),
                max_file_bytes=self.max_file_bytes,
                times=times,
                only=only,
                watch=self.engine.watch if watch else None,
            )

        return scan(True), scan(False)

    def _everything(
        self,
        old: Index,
        sink: Optional[Batch],
        cancelled: Cancelled,
        touched: Touched,
        start: _Start,
        *,
        watch: bool = True,
    ) -> tuple[Found, Index]:
        """A scan; what is known to be touched is hashed whatever its key."""
        files, git = self._scan(old, sink, cancelled, start, only=False, watch=watch)
        spot, new = touched.spots(), Index(self.settings)
        new.root = files.run(self.root_fd, old.root, skip=start.skip, spot=spot)
        if start.git_fd is not None:
            new.git = git.run(start.git_fd, old.git, path=".git", spot=spot.below.get(".git"))
        return _together(files, git), new

    def _partly(
        self, old: Index, sink: Optional[Batch], cancelled: Cancelled, touched: Touched, start: _Start
    ) -> Optional[tuple[Found, Index]]:
        """What events told of and all that hangs together with it; None where that leaves a doubt."""
        files, git = self._scan(old, sink, cancelled, start, only=True, watch=True)
        unheld = [*old.opaque, *self.not_held, *self.mounts, *self.temporary, *self._again]
        touched.paths |= self.engine.also(old, (inode for _, inode in start.hot | old.hot), unheld)
        touched.paths |= self.engine.names_of(touched.inodes)
        new, spot, done = Index(self.settings), touched.spots(), set(touched.paths)
        new.root, new.git = old.root, old.git
        assert new.root is not None
        while spot.names or spot.below:
            new.root = files.run(self.root_fd, new.root, skip=start.skip, spot=spot)
            if start.git_fd is not None and (".git" in spot.names or ".git" in spot.below):
                new.git = git.run(start.git_fd, new.git, path=".git", spot=spot.below.get(".git") or Spot())
            missing = self.engine.more(old, [files.found, git.found], touched.inodes, done)
            spot = spots_of(missing)
            done |= missing
        if files.found.doubtful or git.found.doubtful:
            self.engine.why = "an event was about a file that its name does not lead to"
            return None
        return _together(files, git), new

    def _named(self, new: Index, start: _Start) -> dict[str, Any]:
        assert new.root is not None
        image = {"tree": new.root.tree.hex(), "times": new.root.times.hex(), "clock_ns": start.clock_ns}
        if new.git is not None:
            image["git"] = new.git.tree.hex()
        new.image, new.hot = key_of(image), start.hot
        return image

    def _wanted(self, path: str) -> bool:
        """True for a directory that is looked at, as far as its own path decides."""
        if not self.own and (path == ".git" or path.startswith(".git/")):
            return True
        return not (self._rules and self._rules.leave_out(path, directory=True))

    def _open_git(self) -> Optional[int]:
        """The top-level `.git` directory of an in-place root."""
        if self.own:
            return None
        try:
            return os.open(".git", DIRECTORY_FLAGS, dir_fd=self.root_fd)
        except OSError:
            return None

    def _accept(self, index: Index, found: Found) -> None:
        self.index = index
        self._note(found)

    def _note(self, found: Found) -> None:
        self.not_held, self.mounts, self.excluded, self.temporary = found.not_held, found.mounts, found.excluded, found.temporary

    def _note_links(self, found: Found, *, whole: bool) -> None:
        """Files of which some name lies outside of the workspace."""
        if whole:
            self._linked_outside = {}
        for inode in found.relinked:
            self._linked_outside.pop(inode, None)
        for inode, paths in found.linked.items():
            if found.links[inode] > len(paths):
                self._linked_outside[inode] = min(paths)
            else:
                self._linked_outside.pop(inode, None)

    def reaching(self) -> list[str]:
        """What leads out of the workspace, or into it from outside: FIFOs, sockets, devices, mounts, and files with a name outside."""
        paths = [*self.not_held, *self.mounts, *self._linked_outside.values()]
        return sorted(map(path_text, paths))[:CHANGED_TOLD]

    def _told(
        self, image: dict[str, Any], found: Found, batches: list[Batch], changed: dict[str, Change], opaque_changed: set[str]
    ) -> dict[str, Any]:
        assert self.index.root is not None
        paths = sorted(path_text(path) for path in changed)
        return {
            "image": image,
            "changed": paths[:CHANGED_TOLD],
            "changed_count": len(paths),
            "chunks": {digest.hex(): size for batch in batches for digest, (_, size) in batch.chunks.items()},
            "opaque": sorted(map(path_text, found.opaque)),
            "opaque_changed": sorted(map(path_text, opaque_changed)),
            "unstable": sorted(map(path_text, found.unstable)),
            "entries": self.index.root.entries,
            "total_bytes": self.index.root.size_bytes,
            "reaching": self.reaching(),
            "not_held": sorted(map(path_text, found.not_held)),
            "mounts": sorted(map(path_text, found.mounts)),
        }


class _Start(NamedTuple):
    """What is the same for all of one capture. `git_fd` is the top-level `.git` of an in-place root."""

    clock_ns: int
    hot: frozenset[tuple[int, int]]
    git_fd: Optional[int]

    @property
    def skip(self) -> frozenset[str]:
        return frozenset() if self.git_fd is None else frozenset([".git"])


def _together(files: Scan, git: Scan) -> Found:
    """What is told of a capture. Of git only what changed while it was read, and what no image holds."""
    files.found.not_held.update(git.found.not_held)
    files.found.mounts += git.found.mounts
    files.found.links.update(git.found.links)
    files.found.relinked |= git.found.relinked
    for inode, paths in git.found.linked.items():
        files.found.linked.setdefault(inode, set()).update(paths)
    files.found.unstable += git.found.unstable
    files.found.again += git.found.again
    return files.found


def compose(batches: list[Batch]) -> dict[str, Change]:
    """What the batches changed together: a path that ends as it began is not changed."""
    total: dict[str, Change] = {}
    for batch in batches:
        for path, (before, after) in batch.changes.items():
            total[path] = (total[path][0] if path in total else before, after)
    return {path: change for path, change in total.items() if change[0] != change[1]}
