"""The watch engine's ears: what inotify tells of a workspace, as the set of paths that a capture has to look at (docs/architecture.md).

Every directory has a watch, added before the scan of it from which the index comes, and every file with several names one of its own. Events are
queued inside of the system calls that cause them, so once a call's processes are dead, reading until there is nothing more is a barrier. A thread
reads as they come, so that the queue does not overflow and a new directory is watched while it is being filled.

The set is a hint, not a proof. Where an event may have been about another file than the one that its name leads to now, the set is in doubt and
the capture scans: a file that is linked to a new name, written by it and taken off again changed under its old name, and no event says so.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any, Optional

from perdure.spaced import inotify
from perdure.spaced.errors import note_trace
from perdure.spaced.inotify import Event, Inotify
from perdure.spaced.paths import DIRECTORY_FLAGS
from perdure.spaced.temporary import is_temporary
from perdure.spaced.touched import Touched

MOST_LINKED = 20_000
_NAMES = inotify.CREATE | inotify.DELETE | inotify.MOVED_FROM | inotify.MOVED_TO
_WRITES = inotify.MODIFY | inotify.ATTRIB | inotify.CLOSE_WRITE
_DIRECTORY = _NAMES | _WRITES | inotify.DELETE_SELF | inotify.ONLYDIR
_FILE = _WRITES | inotify.DELETE_SELF | inotify.DONT_FOLLOW

_NEW, _WRITTEN, _GONE, _OLD, _OWN = range(5)
"""What a name went through since the last capture: something new is there; that was written; it is gone again; something that the index knows came
or went; or what is new there was seen to have no other name. Nothing at all: it leads where it led."""

_PROVEN_AT_ONCE = 1000


class _Place:
    """A watched directory. `new` ones came after the last capture, so what was in them before their watch is not known."""

    __slots__ = ("kids", "name", "new", "parent", "path", "round", "states", "wd")

    def __init__(self, parent: Optional[_Place], name: str, path: str) -> None:
        self.parent, self.name, self.path = parent, name, path
        self.kids: dict[str, _Place] = {}
        self.states: dict[str, int] = {}
        self.wd, self.round, self.new = -1, 0, False

    def below(self, name: str) -> str:
        return self.path + "/" + name if self.path else name


class Watch:
    """`take` gives the set since the last time. `index` is what the set is told against; whoever captures keeps it.

    `links` are the paths of every file that has several names, `fresh` those of them that were not known before (by inode).
    `wanted` says whether a directory's path is looked at at all. `broken` says why this watch is of no use any more. Raises OSError where there
    is no inotify to be had.
    """

    def __init__(self, root_fd: int, device: int, wanted: Callable[[str], bool]) -> None:
        self.index: Optional[Any] = None
        self.links: dict[int, set[str]] = {}
        self.fresh: set[int] = set()
        self.broken = ""
        self._root_fd, self._device, self._wanted = root_fd, device, wanted
        self._inotify = Inotify()
        self._touched = Touched()
        self._root = _Place(None, "", "")
        self._places: dict[int, _Place] = {}
        self._files: dict[int, int] = {}
        self._file_wds: dict[int, int] = {}
        self._stated: list[_Place] = []
        self._young: list[tuple[_Place, str]] = []
        self._restated: set[tuple[_Place, str]] = set()
        self._moves: dict[int, tuple[Optional[_Place], Optional[int], str]] = {}
        self._round = 0
        self._taking = self._closed = False
        self._lock = threading.RLock()
        self._wake, self._wake_end = os.pipe()
        threading.Thread(target=self._read, name="watch", daemon=True).start()

    def close(self) -> None:
        """The thread goes, and the kernel's watches with it."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.write(self._wake_end, b"x")

    # ---- from captures

    def take(self) -> Touched:
        """Everything up to now. A set that is taken is gone: whoever fails to make use of it must scan."""
        with self._lock:
            self._taking = True
            try:
                while self._drain():
                    pass
            finally:
                self._taking = False
            for place, state, _ in self._moves.values():
                if state in (_NEW, _WRITTEN):
                    self._touched.doubt = "something new was moved out of the workspace"
                if place is not None:
                    self._drop(place)
            self._moves.clear()
            for place in self._stated:
                place.states, place.new = {}, False
            self._stated.clear()
            self._young.clear()
            taken, self._touched = self._touched, Touched()
            return taken

    def peek(self) -> Touched:
        """What `take` would give, left in place."""
        with self._lock:
            while self._drain():
                pass
            seen = Touched()
            seen.paths, seen.whole, seen.inodes = set(self._touched.paths), set(self._touched.whole), set(self._touched.inodes)
            return seen

    @contextlib.contextmanager
    def afresh(self) -> Iterator[None]:
        """Around a scan of everything: what it does not meet is not watched any more."""
        with self._lock:
            self._round += 1
            self.links = {}
        yield
        with self._lock:
            for wd, place in list(self._places.items()):
                if place.round != self._round:
                    self._forget(wd, place)
            for inode in self._file_wds.keys() - self.links.keys():
                self._unwatch_file(inode)
            self.fresh = set()

    def enter(self, fd: int, path: str) -> Optional[_Place]:
        """The scan is about to list this directory."""
        with self._lock:
            if not self.broken:
                try:
                    return self._bind(self._inotify.add("/proc/self/fd/%d" % fd, _DIRECTORY), path)
                except OSError as error:
                    self._break(error)
            return None

    def link(self, fd: int, name: str, path: str, inode: int) -> None:
        """The scan is about to read a file with several names, by this one of them."""
        with self._lock:
            if inode not in self.links:
                self.fresh.add(inode)
            self.links.setdefault(inode, set()).add(path)
            if self.broken or inode in self._file_wds:
                return
            if len(self._file_wds) >= MOST_LINKED:
                self.broken = "more than %d files have several names" % MOST_LINKED
                return
            try:
                wd = self._inotify.add("/proc/self/fd/%d/%s" % (fd, name), _FILE)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EACCES):
                    self._break(error)
                return
            self._files[wd], self._file_wds[inode] = inode, wd

    def relink(self, inode: int, paths: set[str]) -> None:
        """These are the file's names now; without any it has at most one."""
        with self._lock:
            if paths:
                self.links[inode] = paths
            else:
                self.links.pop(inode, None)
                self._unwatch_file(inode)

    # ---- the thread

    def _read(self) -> None:
        poller = select.poll()
        poller.register(self._inotify.fd, select.POLLIN)
        poller.register(self._wake, select.POLLIN)
        while True:
            poller.poll()
            with self._lock:
                while self._drain():
                    pass
                self._prove()
                if self._closed:
                    self._inotify.close()
                    os.close(self._wake)
                    os.close(self._wake_end)
                    return

    def _drain(self) -> bool:
        if self._closed:
            return False
        try:
            events = self._inotify.read()
            for event in events:
                self._apply(event)
        except Exception as error:  # A watch that ended without a word would miss everything from then on.
            note_trace()
            self.broken = "%s: %s" % (type(error).__name__, error)
            self.close()
            return False
        return bool(events)

    def _prove(self) -> None:
        """See that new files have no other name: then it does not matter what becomes of them.

        What is seen at a name is what the event was about if nothing happened to that name until it was seen.
        """
        young, self._young = self._young[-_PROVEN_AT_ONCE:], []
        alone = []
        for place, name in young:
            path = place.below(name)
            with contextlib.suppress(OSError):
                status = os.stat(path, dir_fd=self._root_fd, follow_symlinks=False)
                if status.st_nlink == 1:
                    alone.append((place, name, path))
        self._restated.clear()
        while alone and self._drain():
            pass
        for place, name, path in alone:
            if (place, name) not in self._restated and place.below(name) == path and place.states.get(name) in (_NEW, _WRITTEN):
                place.states[name] = _OWN

    # ---- events

    def _apply(self, event: Event) -> None:
        wd, mask, _, name = event
        if mask & inotify.OVERFLOW:
            self._touched.doubt = "the kernel's queue of events overflowed"
        elif mask & inotify.UNMOUNT:
            self.broken = "unmounted"
        elif wd in self._files:
            self._touched.inodes.add(self._files[wd])
            if mask & inotify.IGNORED:
                self._file_wds.pop(self._files.pop(wd), None)
        elif wd in self._places:
            place = self._places[wd]
            if mask & inotify.IGNORED:
                self._forget(wd, place)
            elif name and is_temporary(name):
                self._touched.paths.add(place.below(name))
            elif name and mask & inotify.ISDIR:
                self._directory_event(place, event)
            elif name:
                self._file_event(place, event)

    def _file_event(self, place: _Place, event: Event) -> None:
        _, mask, cookie, name = event
        path = place.below(name)
        self._touched.paths.add(path)
        state = place.states.get(name)
        if mask & _WRITES:
            if state == _NEW:
                place.states[name] = _WRITTEN
            elif state is None and place.new:
                self._set(place, name, _WRITTEN)
            elif state == _GONE:
                self._touched.doubt = "a new file that was removed was written"
            elif state is None and mask & (inotify.MODIFY | inotify.ATTRIB):
                self._touched.written.add(path)
        elif mask & inotify.CREATE:
            self._set(place, name, _NEW)
            if not self._taking:
                self._young.append((place, name))
        elif mask & inotify.MOVED_TO:
            if state == _WRITTEN:
                self._touched.doubt = "a new file was written and replaced"
            _, came_as, _ = self._moves.pop(cookie, (None, _NEW, ""))
            self._set(place, name, _OLD if came_as is None else came_as)
        elif mask & inotify.MOVED_FROM:
            self._moves[cookie] = (None, _WRITTEN if state is None and place.new else state, path)
            self._set(place, name, _OLD)
        else:
            if state == _WRITTEN or (state is None and place.new):
                self._touched.doubt = "a new file was written and removed"
            self._set(place, name, _GONE if state in (_NEW, _GONE) else _OLD)

    def _directory_event(self, place: _Place, event: Event) -> None:
        _, mask, cookie, name = event
        path = place.below(name)
        self._touched.paths.add(path)
        state = place.states.get(name)
        if mask & (inotify.CREATE | inotify.MOVED_TO):
            self._touched.whole.add(path)
            moved, came_as, _ = self._moves.pop(cookie, (None, _NEW, "")) if mask & inotify.MOVED_TO else (None, _NEW, "")
            self._set(place, name, _OLD if came_as is None else came_as)
            if moved is not None:
                self._attach(moved, place, name)
            elif not self._taking:
                self._adopt(path)
        elif mask & inotify.MOVED_FROM:
            self._moves[cookie] = (place.kids.pop(name, None), _NEW if state is None and place.new else state, path)
            self._set(place, name, _OLD)
        elif mask & inotify.DELETE:
            if state == _NEW or (state is None and place.new):
                self._touched.doubt = "a new directory was removed"
            place.kids.pop(name, None)
            self._set(place, name, _OLD)

    def _set(self, place: _Place, name: str, state: int) -> None:
        if not place.states:
            self._stated.append(place)
        place.states[name] = state
        self._restated.add((place, name))
        self._touched.restated.add(place.below(name))

    # ---- places

    def _adopt(self, path: str) -> None:
        """Watch a directory that is new or was moved, and what is in it already, as fast as can be: it is being filled."""
        ahead = [path]
        while ahead and not self.broken:
            path = ahead.pop()
            if not self._wanted(path):
                continue
            try:
                fd = os.open(path, DIRECTORY_FLAGS, dir_fd=self._root_fd)
            except OSError:  # gone again, or too deep: the next capture lists everything here
                continue
            try:
                if os.fstat(fd).st_dev != self._device:
                    continue
                place = self.enter(fd, path)
                if place is not None and not place.new:
                    place.new = True
                    self._stated.append(place)
                with os.scandir(fd) as entries:
                    ahead += [path + "/" + entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
            except OSError:
                continue
            finally:
                os.close(fd)

    def _bind(self, wd: int, path: str) -> _Place:
        place = self._root
        for name in path.split("/") if path else ():
            kid = place.kids.get(name)
            if kid is None:
                kid = place.kids[name] = _Place(place, name, place.below(name))
            place = kid
        bound = self._places.get(wd)
        if bound is not place:
            if bound is not None:
                bound.wd = -1
            self._places.pop(place.wd, None)
            self._places[wd], place.wd = place, wd
        place.round = self._round
        return place

    def _attach(self, place: _Place, parent: _Place, name: str) -> None:
        place.parent, place.name = parent, name
        parent.kids[name] = place
        ahead = [place]
        while ahead:
            one = ahead.pop()
            assert one.parent is not None
            one.path = one.parent.below(one.name)
            ahead += one.kids.values()

    def _drop(self, place: _Place) -> None:
        """A directory that was moved out of the workspace, with all in it."""
        ahead = [place]
        while ahead:
            one = ahead.pop()
            if one.wd != -1:
                self._forget(one.wd, one)
            ahead += one.kids.values()

    def _forget(self, wd: int, place: _Place) -> None:
        if self._places.pop(wd, None) is place:
            place.wd = -1
            self._inotify.remove(wd)
            if place.parent is not None and place.parent.kids.get(place.name) is place and not place.kids:
                del place.parent.kids[place.name]

    def _unwatch_file(self, inode: int) -> None:
        wd = self._file_wds.pop(inode, None)
        if wd is not None:
            del self._files[wd]
            self._inotify.remove(wd)

    def _break(self, error: OSError) -> None:
        limit = "raise fs.inotify.max_user_watches" if error.errno == errno.ENOSPC else os.strerror(error.errno or 0)
        self.broken = "a directory can't be watched: %s" % limit
