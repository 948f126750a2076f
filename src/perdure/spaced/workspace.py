"""One workspace: its root, its index and its staged bytes, and the captures that tie them together.

A capture names the image the workspace is now, and tells what the base does not hold. The base is an image that the log has. Where it lies on the
staging chain, the answer is everything behind it; where it does not (the first capture, a lost state folder), the workspace is hashed in full,
and if it then turns out to be the base after all, nothing was staged for it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Optional

from perdure.spaced.descent import Descent
from perdure.spaced.errors import FencedError, ReplacedError
from perdure.spaced.exclude import Rules
from perdure.spaced.grain import grain_ns
from perdure.spaced.index import Index, StatKey, file_clock_ns
from perdure.spaced.paths import DIRECTORY_FLAGS, path_text
from perdure.spaced.scan import Found, Scan
from perdure.spaced.staging import Batch, Change, Signature, Staging, key_of

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
    ) -> None:
        self.root_fd, self.root_path, self.state_dir, self.own = root_fd, os.path.realpath(root_path), state_dir, own
        self.staging = Staging(os.path.join(state_dir, "staging"))
        status = os.fstat(root_fd)
        self.device = status.st_dev
        self.settings = (status.st_dev, status.st_ino, own, tuple(exclude), max_file_bytes)
        self.index = Index.load(self._index_path, self.settings)
        self.not_held: dict[str, StatKey] = {}
        self.mounts: list[str] = []
        self.excluded: list[str] = []
        self.temporary: list[str] = []
        self._rules, self.max_file_bytes = Rules(exclude), max_file_bytes
        self._grain_ns: Optional[int] = None
        self._save_due_s = 0.0

    @property
    def _index_path(self) -> str:
        return os.path.join(self.state_dir, "index")

    def save(self) -> None:
        """Write the index cache, so that the next supervisor need not hash everything."""
        started_s = time.monotonic()
        self.index.save(self._index_path)
        now_s = time.monotonic()
        self._save_due_s = now_s + max(_SAVE_PAUSE_S, (now_s - started_s) * _SAVE_SHARE)

    def _save_when_due(self) -> None:
        """A supervisor may be killed: an index that is a little old still saves its successor most of the hashing."""
        if time.monotonic() >= self._save_due_s:
            with contextlib.suppress(OSError):  # a full disk must not fail a capture for a cache's sake
                self.save()

    def sync(self) -> None:
        """Make the workspace's file system durable (syncfs); elsewhere than on Linux every file system."""
        if sys.platform == "linux":
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.syncfs(self.root_fd) != 0:
                raise OSError(ctypes.get_errno(), "syncfs of %s failed" % self.root_path)
        else:
            os.sync()

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
    ) -> dict[str, Any]:
        """The workspace now, in the shape of space.Capture without `left`. Raises FencedError as soon as `cancelled()` is true.

        `changed` is relative to the base. Where the base was unknown here and differs, `.` is among it: somewhere. None has nothing to differ from.
        Beside the struct's fields there are `not_held` and `mounts`.
        """
        start, hot_now = key_of(base), frozenset(hot)
        known = self.index.root is not None and self.index.image == self.staging.end and self.staging.since(start) is not None
        image, found = self._step(self.index, hot_now, cancelled) if known else self._afresh(start, hot_now, cancelled)
        batches = self.staging.since(start) or []
        changed = {} if base is None else compose(batches)
        opaque_changed = {path for batch in batches for path in batch.opaque}
        self._save_when_due()
        return self._told(image, found, batches, changed, opaque_changed)

    def scan(self, cancelled: Cancelled) -> Index:
        """What is there now, nothing staged: a plan must not need room for what it is going to take back.

        The chain's index stays as it was, so that the next capture still knows what the log lacks; only one that is off the chain is replaced.
        """
        _, found, index = self._run(self.index, None, frozenset(), cancelled)
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
            if key_of(image) == start:
                self.staging.restart(start)
                self._accept(index, found)
                return image, found
        self.staging.restart(start)
        return self._step(Index(self.settings), hot, cancelled, changes=None if start is None else SOMEWHERE)

    def _run(
        self, old: Index, sink: Optional[Batch], hot: frozenset[tuple[int, int]], cancelled: Cancelled
    ) -> tuple[dict[str, Any], Found, Index]:
        self.check_root()
        if self._grain_ns is None:
            self._grain_ns = grain_ns(self.root_fd, self.state_dir)
        clock_ns = file_clock_ns()
        new = Index(self.settings)
        new.hot = hot

        def scan(times: bool) -> Scan:
            return Scan(
                self.device,
                sink=sink,
                rules=self._rules if times else Rules(),
                cancelled=cancelled,
                hot=frozenset(inode for _, inode in hot | old.hot),
                everything=not old.believable,
                racy_from_ns=clock_ns - 2 * self._grain_ns if self._grain_ns else None,
                mounts=mounts_below(self.root_path),
                max_file_bytes=self.max_file_bytes,
                times=times,
            )

        git_fd = self._open_git()
        try:
            files = scan(True)
            new.root = files.run(self.root_fd, old.root, skip=frozenset([".git"]) if git_fd is not None else frozenset())
            if git_fd is not None:
                git = scan(False)
                new.git = git.run(git_fd, old.git, path=".git")
                files.found.unstable += git.found.unstable
        finally:
            if git_fd is not None:
                os.close(git_fd)
        image = {"tree": new.root.tree.hex(), "times": new.root.times.hex(), "clock_ns": clock_ns}
        if new.git is not None:
            image["git"] = new.git.tree.hex()
        new.image, new.opaque = key_of(image), files.found.opaque
        return image, files.found, new

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
            "not_held": sorted(map(path_text, found.not_held)),
            "mounts": sorted(map(path_text, found.mounts)),
        }


def compose(batches: list[Batch]) -> dict[str, Change]:
    """What the batches changed together: a path that ends as it began is not changed."""
    total: dict[str, Change] = {}
    for batch in batches:
        for path, (before, after) in batch.changes.items():
            total[path] = (total[path][0] if path in total else before, after)
    return {path: change for path, change in total.items() if change[0] != change[1]}


def mounts_below(root_path: str) -> frozenset[str]:
    """Mount points below the root, relative to it, from Linux's /proc/self/mountinfo (proc(5)); elsewhere the scan goes by device alone."""
    if sys.platform != "linux":
        return frozenset()
    prefix = os.fsencode(root_path).rstrip(b"/") + b"/"
    with open("/proc/self/mountinfo", "rb") as file:
        points = [_unescaped(line.split(b" ")[4]) for line in file]
    return frozenset(os.fsdecode(point[len(prefix) :]) for point in points if point.startswith(prefix))


def _unescaped(point: bytes) -> bytes:
    for code, char in ((b"\\040", b" "), (b"\\011", b"\t"), (b"\\012", b"\n"), (b"\\134", b"\\")):
        point = point.replace(code, char)
    return point
