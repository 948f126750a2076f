"""What an undo would do, before it does anything.

A plan is written into the state folder with everything that the restore needs to know again: what was seen at each path, and what is wanted there. A
restore that was cut off is resumed by planning again: its own changes bumped the ctimes of directories, so the window rule would judge them anew and
wrongly; therefore only what was approved before it began can be approved then.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import AbstractSet, Any, NamedTuple, Optional

from perdure.spaced import durable, gitstate, salvage
from perdure.spaced.compare import Comparison, Difference
from perdure.spaced.index import CTIME, INODE, MODE, Folder, StatKey, stat_key
from perdure.spaced.paths import DIRECTORY_FLAGS, path_text
from perdure.spaced.target import Fetch, Source
from perdure.spaced.tree import Payload
from perdure.spaced.window import LATER, OURS, Window, judge, window_of
from perdure.spaced.workspace import Workspace


class Item(NamedTuple):
    """A path that the restore may change: what was there, what is wanted. `aside`: what is there goes into quarantine."""

    path: str
    key: Optional[StatKey]
    held: Payload
    want: Optional[Payload]
    mtime_ns: int
    approved: bool
    aside: bool

    @property
    def same_content(self) -> bool:
        """Only mode or time differ."""
        return self.want is not None and bool(self.held) and _content(self.held) == _content(self.want)


class Plan(NamedTuple):
    """As it lies in the state folder. `locks` are git's lock files that may go."""

    target: tuple[str, str]
    window: Optional[tuple[Any, ...]]
    started: bool
    items: dict[str, Item]
    locks: dict[str, StatKey]

    def save(self, state_dir: str) -> None:
        items = [tuple(item) for item in self.items.values()]
        whole = marshal.dumps((self.target, self.window, self.started, items, self.locks))
        durable.replace(os.path.join(state_dir, "plan"), whole)

    @classmethod
    def load(cls, state_dir: str) -> Optional[Plan]:
        try:
            with open(os.path.join(state_dir, "plan"), "rb") as file:
                target, window, started, rows, locks = marshal.loads(file.read())
        except (FileNotFoundError, EOFError, ValueError):
            return None
        items = [Item(*row) for row in rows]
        return cls(target, window, started, {path_text(item.path): item for item in items}, locks)


def make(
    workspace: Workspace,
    target: dict[str, Any],
    fetch: Fetch,
    told_window: Optional[dict[str, Any]],
    known: set[str],
    cancelled: Callable[[], bool],
) -> dict[str, Any]:
    """The plan in the shape of space.Plan, written down for the restore. Nothing is changed in the workspace."""
    window, source = window_of(told_window), Source(fetch)
    index = workspace.scan(cancelled)
    root = index.root
    assert root is not None
    differences = Comparison(source, window, workspace.not_held).run(root, target)
    differences, blocked = _without_opaque(differences, workspace, index.opaque, window)
    differences = _resumed(differences, Plan.load(workspace.state_dir), target, window)
    differences = _spared(differences)
    ours = [difference for difference in differences if difference.verdict == OURS]
    kept = [difference for difference in differences if difference.verdict != OURS]
    in_doubt = [d for d in kept if d.verdict == LATER and window is not None and not window.proven]

    git = _git(workspace, index.git, target.get("git"), source, window)
    blocked = blocked or git.blocked

    lost = salvage.to_be_lost([*ours, *in_doubt], root, known)
    kept_safe = None if blocked else _salvage(workspace, lost, known)
    aside = kept_safe.aside if kept_safe else []
    if kept_safe is not None and kept_safe.blocked:
        blocked = kept_safe.blocked
    if not blocked:
        _write_down(workspace, target, window, differences, aside, git.removable)
    plan: dict[str, Any] = {
        "take_back": _texts(difference.path for difference in ours),
        "take_back_count": len(ours),
        "kept": _texts(difference.path for difference in kept),
        "kept_count": len(kept),
        "doubtful": _texts([*(difference.path for difference in in_doubt), *git.doubtful]),
        "quarantine": _texts(aside),
        "chunks": kept_safe.chunks if kept_safe else {},
        "reaching": workspace.reaching(),
    }
    optional = {"salvage": kept_safe and kept_safe.root, "git_before": git.before, "git_after": git.after, "blocked": blocked}
    return {**plan, **{name: value for name, value in optional.items() if value is not None}}


def _write_down(
    workspace: Workspace,
    target: dict[str, Any],
    window: Optional[Window],
    differences: list[Difference],
    aside: Iterable[str],
    locks: Mapping[str, StatKey],
) -> None:
    aside = set(aside)
    items = {}
    for d in differences:
        items[path_text(d.path)] = Item(d.path, d.key, d.held, d.want, d.mtime_ns, d.verdict == OURS, d.path in aside)
    before = Plan.load(workspace.state_dir)
    told = (target["tree"], target["times"])
    started = before is not None and before.started and (before.target, before.window) == (told, window and tuple(window))
    Plan(told, window and tuple(window), started, items, dict(locks)).save(workspace.state_dir)


def _content(payload: Payload) -> bytes:
    """Type and content without the mode."""
    return payload[:1] + salvage.content_of(payload) if salvage.content_of(payload) else payload


def _resumed(
    differences: list[Difference], before: Optional[Plan], target: dict[str, Any], window: Optional[Window]
) -> list[Difference]:
    """After a restore that began and was cut off: only what it was allowed to do may still be done, and of that everything."""
    if window is None or before is None or not before.started:
        return differences
    if (before.target, before.window) != ((target["tree"], target["times"]), tuple(window)):
        return differences
    return [d._replace(verdict=OURS if _still_allowed(d, before.items.get(path_text(d.path))) else LATER) for d in differences]


def without_ctime(key: StatKey) -> tuple[int, ...]:
    """What stays the same when another name of the same file comes or goes."""
    return (*key[:CTIME], *key[CTIME + 1 :])


def _still_allowed(difference: Difference, item: Optional[Item]) -> bool:
    if item is None or not item.approved:
        return False
    now, then = difference.key, item.key
    if now is None or now == then:
        return True
    if stat.S_ISDIR(now[MODE]):
        made = then is None or not stat.S_ISDIR(then[MODE])
        return now[INODE] == then[INODE] if then is not None and not made else difference.want is not None
    return then is not None and without_ctime(now) == without_ctime(then) and difference.held == item.held


def _spared(differences: list[Difference]) -> list[Difference]:
    """What was moved is not removed where its old name can't be given back: one of the two names must hold it."""
    missing = {salvage.content_of(d.want) for d in differences if d.verdict != OURS and d.key is None} - {b""}
    return [d._replace(verdict=LATER) if d.want is None and salvage.content_of(d.held) in missing else d for d in differences]


# ---- what can't be undone ------------------------------------------------------------------------------------------------------


def _without_opaque(
    differences: list[Difference], workspace: Workspace, opaque: dict[str, StatKey], window: Optional[Window]
) -> tuple[list[Difference], Optional[str]]:
    """The differences that can be judged, and why the call can't count as undone: something that no image holds was changed."""
    apart = {*opaque, *workspace.excluded, *workspace.mounts}
    touched = [path for path, key in opaque.items() if window is not None and judge(window, key[CTIME]) == OURS]
    covered = [d.path for d in differences if apart and _covered(d.path, opaque.keys())]
    if covered or touched:
        paths = ", ".join(_texts(touched or covered)[:5])
        return differences, "too large or unreadable to be held, and changed: %s" % paths
    excluded = next((path for path in workspace.excluded if window and _changed_below(workspace.root_fd, path, window)), None)
    if excluded is not None:
        return differences, "left out by the exclude rules, and changed: %s" % path_text(excluded)
    return [d for d in differences if not (apart and _covered(d.path, apart))], None


def _covered(path: str, by: AbstractSet[str]) -> bool:
    while path:
        if path in by:
            return True
        path = path.rpartition("/")[0]
    return False


def _changed_below(root_fd: int, path: str, window: Window) -> bool:
    """True where anything at or below the path has a ctime inside the window."""
    try:
        status = os.stat(path, dir_fd=root_fd, follow_symlinks=False)
        if judge(window, status.st_ctime_ns) == OURS:
            return True
        if not stat.S_ISDIR(status.st_mode):
            return False
        for _, directories, files, fd in os.fwalk(path, dir_fd=root_fd):
            for name in (*directories, *files):
                ctime_ns = os.stat(name, dir_fd=fd, follow_symlinks=False).st_ctime_ns
                if judge(window, ctime_ns) == OURS:
                    return True
    except FileNotFoundError:
        return True
    return False


class _Git(NamedTuple):
    before: Optional[dict[str, Any]] = None
    after: Optional[dict[str, Any]] = None
    blocked: Optional[str] = None
    doubtful: tuple[str, ...] = ()
    removable: Mapping[str, StatKey] = MappingProxyType({})


def _git(workspace: Workspace, folder: Optional[Folder], root: Optional[str], source: Source, window: Optional[Window]) -> _Git:
    """A repository that the call changed was not undone."""
    if window is None or workspace.own or (folder is None and root is None):
        return _Git()
    if folder is None or root is None:
        made = "made" if root is None else "removed"
        return _Git(blocked="the repository (.git) was %s" % made)
    if folder.tree.hex() == root:
        return _Git()
    fd = os.open(".git", DIRECTORY_FLAGS, dir_fd=workspace.root_fd)
    try:
        before, after = gitstate.in_image(source, root), gitstate.in_workspace(folder, fd)
        states = before.state(), after.state()
        verdicts: dict[str, str] = {}
        for part in gitstate.COMPONENTS:
            if states[0][part] != states[1][part]:
                for path in gitstate.changed_files(before, after, part):
                    verdicts[path] = _git_verdict(fd, path, window)
        locks = {path: key for path, key in _new_locks(fd, states) if judge(window, key[CTIME]) == OURS}
    finally:
        os.close(fd)
    ours = sorted(path for path, verdict in verdicts.items() if verdict == OURS)
    later = tuple(".git/" + path for path, verdict in verdicts.items() if verdict == LATER and not window.proven)
    reason = "git's state was changed: %s" % ", ".join(".git/" + path for path in ours[:5]) if ours else None
    return _Git(*states, reason, later, locks)


def _git_verdict(git_fd: int, path: str, window: Window) -> str:
    """By the window rule, the nearest directory standing for a missing file."""
    own, at = None, path
    while own is None:
        try:
            own = os.stat(at or ".", dir_fd=git_fd, follow_symlinks=False).st_ctime_ns
        except (FileNotFoundError, NotADirectoryError):
            at = at.rpartition("/")[0]
    above = []
    while at:
        at = at.rpartition("/")[0]
        above.append(os.stat(at or ".", dir_fd=git_fd).st_ctime_ns)
    return judge(window, own, tuple(above))


def _new_locks(git_fd: int, states: tuple[dict[str, Any], dict[str, Any]]) -> Iterable[tuple[str, StatKey]]:
    for path in states[1]["locks"]:
        if path not in states[0]["locks"]:
            yield path, stat_key(os.stat(path[len(".git/") :], dir_fd=git_fd, follow_symlinks=False))


# ---- keeping what is about to be lost ----------------------------------------------------------------------------------------


class _Kept(NamedTuple):
    root: Optional[str]
    chunks: dict[str, int]
    aside: list[str]
    blocked: Optional[str]


def _salvage(workspace: Workspace, lost: list[Difference], known: set[str]) -> _Kept:
    into_image, aside = salvage.split(lost)
    batch = workspace.staging.begin()
    root, fits = None, True
    try:
        root = salvage.stage(workspace.root_fd, into_image, batch, known, workspace.max_file_bytes)
        if batch.chunks:
            workspace.staging.append(batch)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        root, fits = None, False
        batch.drop()
    if not fits:
        aside = lost
    moved = [difference.path for difference in aside]
    if moved and os.stat(workspace.state_dir).st_dev != workspace.device:
        size = sum(d.key[1] for d in aside if d.key)
        return _Kept(
            None, {}, [], "%d bytes to be taken back are too many to store, and the state folder lies on another disk" % size
        )
    chunks = {digest.hex(): size for digest, (_, size) in batch.chunks.items()} if fits else {}
    return _Kept(root.hex() if root else None, chunks, moved, None)


def _texts(paths: Iterable[str]) -> list[str]:
    return sorted(map(path_text, paths))
