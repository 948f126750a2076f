"""Carry a plan out: make the approved paths as the image has them, touch nothing else.

Every path is looked at again right before it is changed, and a file once more when it is out of its place (`perdure.spaced.exchange`); one that is
not as the plan saw it is somebody's and stays. The floor is asked before each
change, so that a supervisor that was overtaken stops at once. Order: what must go, deepest first; directories, top down; files and links, each
complete under a temporary name and then renamed; modes of directories, deepest first. Killed anywhere and planned again it goes on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from perdure.spaced import aside, exchange, gitstate
from perdure.spaced.content import READ_FLAGS
from perdure.spaced.descent import Descent, changing
from perdure.spaced.errors import FencedError, ProtocolError
from perdure.spaced.files import write_all
from perdure.spaced.index import INODE, MODE, StatKey, stat_key
from perdure.spaced.paths import path_text
from perdure.spaced.plan import Item, Plan
from perdure.spaced.steps import step
from perdure.spaced.target import BATCH_BYTES, Fetch, Source
from perdure.spaced.temporary import temporary_name
from perdure.spaced.tree import CHUNK, DIRECTORY, LINK, Entry, decode_payload
from perdure.spaced.workspace import Workspace

_T = TypeVar("_T")

QUARANTINE = "quarantine"
"""In the state folder: what was too large to be salvaged, each file below a number under the path that it had."""


def carry_out(
    workspace: Workspace,
    target: dict[str, Any],
    fetch: Fetch,
    told: dict[str, Any],
    also: Iterable[str],
    cancelled: Callable[[], bool],
) -> dict[str, Any]:
    """The plan as it was carried out and the capture after it, in the shape of space.Restored.

    Raises ProtocolError where the state folder does not hold this plan (plan again), FencedError as soon as `cancelled()` is true.
    """
    workspace.check_root()
    plan = Plan.load(workspace.state_dir)
    chosen = {*told.get("take_back", ()), *also}
    if (
        plan is None
        or plan.target != (target["tree"], target["times"])
        or not set(told.get("take_back", ())) <= plan.items.keys()
    ):
        raise ProtocolError("this supervisor does not know the plan any more; ask for a new one")
    items = {path: item._replace(approved=path in chosen) for path, item in plan.items.items()}
    workspace.sweep(cancelled)
    plan._replace(started=True, items=items).save(workspace.state_dir)
    step("restore begins")
    with Descent(workspace.root_fd) as descent:
        work = _Work(workspace, descent, Source(fetch), cancelled)
        work.run([item for path, item in items.items() if path in chosen])
        _remove_locks(workspace, descent, plan, cancelled)
    capture = workspace.capture(target, cancelled=cancelled, audit=True)
    step("restore verified")
    done = sorted(map(path_text, work.done))
    changed = sorted({*told.get("kept", ()), *map(path_text, work.kept)}.difference(done))
    carried = {**told, "take_back": done, "take_back_count": len(done), "kept": changed, "kept_count": len(changed)}
    return {"plan": carried, "capture": {**capture, "left": []}}


class _Work:
    def __init__(self, workspace: Workspace, descent: Descent, source: Source, cancelled: Callable[[], bool]) -> None:
        self.done: list[str] = []
        self.kept: set[str] = set()
        self._cleared: set[str] = set()
        self._names_left: dict[int, StatKey] = {}
        self._descent, self._source, self._cancelled = descent, source, cancelled
        self._quarantine = os.path.join(workspace.state_dir, QUARANTINE)

    def run(self, items: list[Item]) -> None:
        ordered = sorted(items, key=lambda item: item.path)
        top_down = sorted(ordered, key=lambda item: item.path.count("/"))
        for item in reversed(top_down):
            if item.key is not None and _must_go(item):
                self._remove(item)
        self._descent.forget()
        for item in top_down:
            if _wants_directory(item) and not _is_directory(item):
                self._make_directory(item)
        for batch in self._batches([item for item in ordered if item.want is not None and not _wants_directory(item)]):
            self._write_batch(batch)
        for item in reversed(top_down):
            if _wants_directory(item) and item.path not in self.kept:
                self._set_mode(item)

    # ---- what must go ----------------------------------------------------------------------------------------------------

    def _remove(self, item: Item) -> None:
        if not self._as_seen(item):
            return
        fd, name = self._descent.parent(item.path)
        try:
            if _is_directory(item):
                self._change(fd, "rmdir", lambda: os.rmdir(name, dir_fd=fd))
            elif item.aside:
                place = self._aside(item.path)
                if not self._change(fd, "quarantine", lambda: aside.move(fd, name, place)):
                    self.kept.add(item.path)
                    return
            else:
                seen = item.key
                assert seen is not None
                with self._other_names(fd, name):
                    if not self._change(fd, "unlink", lambda: exchange.remove(fd, name, seen)):
                        self.kept.add(item.path)
                        return
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.kept.add(item.path)  # somebody put something into the directory
            return
        finally:
            if _is_directory(item):
                self._descent.forget()
        self._cleared.add(item.path)
        if item.want is None:
            self.done.append(item.path)

    def _aside(self, path: str) -> str:
        """A free place in the quarantine folder, under the path's own name."""
        os.makedirs(self._quarantine, mode=0o700, exist_ok=True)
        number = 1
        while True:
            directory = os.path.join(self._quarantine, str(number), os.path.dirname(path))
            place = os.path.join(directory, os.path.basename(path))
            if not os.path.lexists(place):
                os.makedirs(directory, mode=0o700, exist_ok=True)
                return place
            number += 1

    # ---- what must be there ------------------------------------------------------------------------------------------------

    def _make_directory(self, item: Item) -> None:
        if not self._as_seen(item):
            return
        try:
            fd, name = self._descent.parent(item.path)
        except OSError:
            self.kept.add(item.path)
            return
        self._change(fd, "mkdir", lambda: os.mkdir(name, 0o700, dir_fd=fd))

    def _set_mode(self, item: Item) -> None:
        """Without an item of its own key: the directory may just have been made."""
        mode = _wanted(item).mode
        try:
            fd, name = self._descent.parent(item.path)
            directory = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
        except OSError:
            self.kept.add(item.path)
            return
        try:
            if stat.S_IMODE(os.fstat(directory).st_mode) != mode:
                self._change(fd, "mode of a directory", lambda: os.fchmod(directory, mode))
        finally:
            os.close(directory)
        self.done.append(item.path)

    def _batches(self, items: list[Item]) -> Iterable[list[Item]]:
        """A few MiB of small files at a time, so that one request brings them."""
        batch: list[Item] = []
        size = 0
        for item in items:
            batch.append(item)
            size += _wanted(item).size
            if size >= BATCH_BYTES or len(batch) == 256:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _write_batch(self, batch: list[Item]) -> None:
        small = [_wanted(item).digest for item in batch if not item.same_content and _wanted(item).kind == CHUNK]
        contents = self._source.get(small)
        for item in batch:
            if self._as_seen(item):
                self._write(item, contents)

    def _write(self, item: Item, contents: dict[bytes, bytes]) -> None:
        try:
            fd, name = self._descent.parent(item.path)
        except OSError:
            self.kept.add(item.path)
            return
        if item.same_content and item.path not in self._cleared and not item.aside:
            self._set_attributes(item, fd, name)
            self.done.append(item.path)
            return
        temporary = temporary_name()

        def prepare() -> None:
            if _wanted(item).kind == LINK:
                os.symlink(_wanted(item).target, temporary, dir_fd=fd)
                os.utime(temporary, ns=(item.mtime_ns, item.mtime_ns), dir_fd=fd, follow_symlinks=False)
            else:
                self._write_file(item, fd, temporary, contents)

        self._change(fd, "temporary file", prepare)
        if not self._as_seen(item):
            self._change(fd, "unlink of a temporary file", lambda: os.unlink(temporary, dir_fd=fd))
            return
        if item.aside and item.path not in self._cleared:
            place = self._aside(item.path)
            if not self._change(fd, "quarantine", lambda: aside.move(fd, name, place)):
                self._change(fd, "unlink of a temporary file", lambda: os.unlink(temporary, dir_fd=fd))
                self.kept.add(item.path)
                return
        seen = None if item.aside or item.path in self._cleared else item.key
        with self._other_names(fd, name):
            if self._change(fd, "rename", lambda: exchange.put(fd, temporary, name, seen)):
                self.done.append(item.path)
            else:
                self.kept.add(item.path)

    def _write_file(self, item: Item, directory: int, name: str, contents: dict[bytes, bytes]) -> None:
        want = _wanted(item)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=directory)
        try:
            if want.kind == CHUNK:
                write_all(fd, contents[want.digest])
            else:
                assert item.want is not None
                size, rows = self._source.file(item.want)
                os.ftruncate(fd, size)
                for offset, piece in self._source.pieces(rows):
                    if self._cancelled():
                        raise FencedError
                    os.lseek(fd, offset, os.SEEK_SET)
                    write_all(fd, piece)
            self._keep_owner(fd, directory, item)
            os.fchmod(fd, want.mode)
            os.utime(fd, ns=(item.mtime_ns, item.mtime_ns))
        except OSError:  # A full disk needs no half of a file beside.
            os.unlink(name, dir_fd=directory)
            raise
        finally:
            os.close(fd)

    def _keep_owner(self, fd: int, directory: int, item: Item) -> None:
        """The owner is not held by images: a file keeps the one it has, a new one gets its directory's, as far as we may."""
        with contextlib.suppress(OSError):
            name = item.path.rpartition("/")[2]
            known = item.key is not None and stat.S_ISREG(item.key[MODE]) and item.path not in self._cleared
            status = os.stat(name, dir_fd=directory, follow_symlinks=False) if known else os.fstat(directory)
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                os.fchown(fd, status.st_uid, status.st_gid)

    def _set_attributes(self, item: Item, fd: int, name: str) -> None:
        """Only mode or time differ."""
        want, key = _wanted(item), item.key
        assert key is not None
        if want.kind != LINK and key[MODE] & 0o7777 != want.mode:
            self._change(fd, "mode", lambda: os.chmod(name, want.mode, dir_fd=fd))
        times = (item.mtime_ns, item.mtime_ns)
        self._change(fd, "time", lambda: os.utime(name, ns=times, dir_fd=fd, follow_symlinks=False))
        self._names_left[key[INODE]] = stat_key(os.stat(name, dir_fd=fd, follow_symlinks=False))

    # ---- before every change -----------------------------------------------------------------------------------------------

    def _as_seen(self, item: Item) -> bool:
        """True where the path is still as the plan saw it. A directory's own times move with its entries, its inode does not."""
        seen = None if item.path in self._cleared else item.key
        now = self._descent.key(item.path)
        if seen is not None and now == self._names_left.get(seen[INODE], seen):
            return True
        if now == seen or (now and seen and stat.S_ISDIR(now[MODE]) and stat.S_ISDIR(seen[MODE]) and now[INODE] == seen[INODE]):
            return True
        self.kept.add(item.path)
        return False

    @contextlib.contextmanager
    def _other_names(self, directory: int, name: str) -> Iterator[None]:
        """A file that loses one of its names gets a new ctime; remember it, or its other names would look like somebody's work."""
        try:
            fd = os.open(name, READ_FLAGS, dir_fd=directory)
        except OSError:
            yield
            return
        try:
            yield
            status = os.fstat(fd)
            if status.st_nlink:
                self._names_left[status.st_ino] = stat_key(status)
        finally:
            os.close(fd)

    def _change(self, fd: int, what: str, change: Callable[[], _T]) -> _T:
        if self._cancelled():
            raise FencedError
        step("before " + what)
        changed = changing(fd, change)
        step("after " + what)
        return changed


def _wanted(item: Item) -> Entry:
    assert item.want is not None
    return decode_payload(item.want)


def _wants_directory(item: Item) -> bool:
    return item.want is not None and item.want[:1] == DIRECTORY


def _is_directory(item: Item) -> bool:
    return item.key is not None and stat.S_ISDIR(item.key[MODE])


def _must_go(item: Item) -> bool:
    """Not wanted, or a directory in the place of something else or the reverse, or something that no rename should replace."""
    if item.want is None:
        return True
    assert item.key is not None
    held = stat.S_ISREG(item.key[MODE]) or stat.S_ISLNK(item.key[MODE])
    return _wants_directory(item) != _is_directory(item) or not (held or _is_directory(item))


def _remove_locks(workspace: Workspace, descent: Descent, plan: Plan, cancelled: Callable[[], bool]) -> None:
    """Lock files that the lost call's git left, where no other git can be at work."""
    if not plan.locks or gitstate.git_may_run_outside(workspace.root_path):
        return
    for path, key in plan.locks.items():
        if cancelled():
            raise FencedError
        if descent.key(path) == key:
            fd, name = descent.parent(path)
            step("before unlink of a git lock")
            os.unlink(name, dir_fd=fd)
            step("after unlink of a git lock")
