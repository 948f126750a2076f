"""Bringing a session's changes home: into a directory that went its own way meanwhile, with nothing of it overwritten.

    lock the directory → finish what a killed apply began → plan → note what is to be there → change → on the disk → `applied` in the log

The directory is locked as a session's supervisor would lock it. Each path is changed only if it is still what was looked at. The note lies in the home
and is there before the first change: from it the next apply sees what a killed one did, and counts it as done.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct, field

from perdure.engine import copies, landing
from perdure.engine.home import Home
from perdure.history.apply import Bases, Change, Resolved, changes, decide, readable, resolve, same, within
from perdure.history.merge import LIMIT_BYTES
from perdure.log.store import Admission, SessionId
from perdure.record import records as r
from perdure.record.errors import UsageError
from perdure.record.parts import printable
from perdure.record.records import Draft, Image
from perdure.space import image
from perdure.space.directory import Directory, InTheWay, Seen, entry_of
from perdure.spaced.steps import step
from perdure.spaced.temporary import temporary_name
from perdure.spaced.tree import DIRECTORY, Entry

PATHS_TOLD = 1000
KEPT = "it holds other files here"
JUST_NOW = "it changed just now"


class Conflict(Struct, frozen=True):
    """A path that was left as it is, and why. `theirs` is the session's version as a file, where its copy has one."""

    path: str
    why: str
    theirs: str | None = None


class Applied(Struct, frozen=True):
    """`paths` were changed in the directory, `merged` are those of them that hold changes of both sides; `removed` are gone from it.

    `already` were there. `record` is None where nothing was done. `at_work`: the session goes on, and its newest image was taken.
    `fetch` is the copy's repository where commits were made in it, which `git fetch` brings.
    """

    directory: str
    paths: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    already: int = 0
    conflicts: tuple[Conflict, ...] = ()
    record: int | None = None
    at_work: bool = False
    fetch: str | None = None


class Wish(Struct, frozen=True):
    """What to apply: `only` these paths and what lies below them (none: all). Of conflicts `theirs` takes the session's version, `ours` leaves what is here for
    good; they may name directories too."""

    only: tuple[str, ...] = ()
    ours: tuple[str, ...] = ()
    theirs: tuple[str, ...] = ()


EVERYTHING = Wish()


class _Note(Struct, frozen=True):
    """An apply that has begun. `results` are what is to be at each path (None: nothing), what was there, and the temporary name that is used beside it."""

    image: Image
    only: tuple[str, ...]
    conflicts: tuple[str, ...]
    results: tuple[tuple[bytes, _Result | None, _Result | None, str], ...]


class _Result(Struct, frozen=True):
    kind: bytes
    mode: int
    size: int
    digest: bytes
    target: bytes


class Planned(Struct, frozen=True):
    """A change, what is to become of it, and what was looked at."""

    change: Change
    resolved: Resolved
    seen: Seen
    temporary: str = field(default_factory=temporary_name)

    @property
    def path(self) -> str:
        return os.fsdecode(self.change.path)


def paths(names: Iterable[str]) -> tuple[str, ...]:
    """As a person gives them, relative to the directory's root. UsageError for one that leads out of it."""
    found = tuple(dict.fromkeys(os.path.normpath(name) for name in names))
    for name in found:
        if name.startswith("/") or name.split("/")[0] == "..":
            raise UsageError(
                f"'{printable(name)}' is not below the directory; name paths as `perdure apply --dry-run` shows them"
            )
    return tuple(map(printable, found))


async def apply(
    home: Home,
    session: SessionId,
    directory: str | os.PathLike[str] | None = None,
    *,
    wish: Wish = EVERYTHING,
    dry_run: bool = False,
) -> Applied:
    """As `Session.apply`."""
    root = await landing.target(home, session, directory)
    if dry_run:
        with Directory(root) as here:
            return (await Applying(home, session, here, wish).plan())[0]
    async with landing.locked(home, session, root):
        with Directory(root) as here:
            work = Applying(home, session, here, wish)
            await work.finish_killed()
            return await work.run()


class Applying:
    """One directory, and what a session is to bring there."""

    def __init__(self, home: Home, session: SessionId, here: Directory, wish: Wish) -> None:
        self._home = home
        self._session = session
        self._here = here
        self._wish = wish
        self._source = home.store.blobs.get
        self._target = hashlib.sha256(os.fsencode(here.path)).hexdigest()
        self._note = copies.folder(home.path, session) / f"applying-{self._target[:16]}.json"

    # ---- planning ----------------------------------------------------------------------------------------------------------

    async def plan(self) -> tuple[Applied, list[Planned], Image]:
        """What would be done, nothing changed."""
        row = await self._home.store.row(self._session)
        bases, newest = await self.between()
        found, committed = await changes(bases, newest, self._source, self._wish.only)
        self._check_wish(found)
        planned: list[Planned] = []
        giving_way: set[bytes] = set()
        for change in found:
            planned.append(await self._resolved(change, below_new=not giving_way.isdisjoint(_above(change.path))))
            if _gives_way(planned[-1]):
                giving_way.add(change.path)
        workspace = await self._home.store.binding(self._session)
        place = Path(workspace.directory) if workspace else None
        taken = [each for each in planned if each.resolved.verdict in ("take", "merge")]
        shown = Applied(
            str(self._here.path),
            tuple(readable(each.change.path) for each in taken if each.resolved.entry is not None),
            tuple(readable(each.change.path) for each in taken if each.resolved.verdict == "merge"),
            tuple(readable(each.change.path) for each in taken if each.resolved.entry is None),
            sum(each.resolved.verdict == "already" for each in planned),
            tuple(_conflict(each, place) for each in planned if each.resolved.verdict == "conflict"),
            at_work=row.rest.busy,
            fetch=str(place) if committed and place else None,
        )
        return shown, planned, newest

    async def between(self) -> tuple[Bases, Image]:
        """What both sides began with, and the session's side."""
        workspace = (await self._home.state(self._session)).workspace
        if workspace.first is None or workspace.image is None:
            raise UsageError(f"session {self._session} has changed nothing yet: its log holds no image")
        records = [stored.body async for stored in self._home.store.read(self._session)]
        applied = [body for body in records if isinstance(body, r.Applied) and body.target == self._target]
        return Bases(workspace.first, applied), workspace.image

    def _check_wish(self, found: Sequence[Change]) -> None:
        texts = [readable(change.path) for change in found]
        for name in (*self._wish.only, *self._wish.ours, *self._wish.theirs):
            if not any(within(text, (name,)) for text in texts):
                raise UsageError(f"session {self._session} has no change at '{name}' to apply; `--dry-run` lists what there is")

    async def _resolved(self, change: Change, *, below_new: bool) -> Planned:
        """`below_new`: what is above it gives way to a directory, so nothing is there by then."""
        path, text = os.fsdecode(change.path), readable(change.path)
        try:
            seen = Seen() if below_new else self._here.look(path)
            content = None
            if decide(change, seen.entry) == "merge":
                content = self._here.content(path, seen, LIMIT_BYTES)
            resolved = await resolve(change, seen.entry, content, self._source)
        except InTheWay as obstacle:
            if change.theirs is None:
                return Planned(change, Resolved("already"), Seen())  # what is to go is not there
            return Planned(change, Resolved("conflict", why=str(obstacle)), Seen())
        if resolved.verdict == "conflict" and _named(text, self._wish.ours):
            return Planned(change, Resolved("already"), seen)
        if resolved.verdict == "conflict" and _named(text, self._wish.theirs):
            return Planned(change, Resolved("take", change.theirs), seen)
        if resolved.verdict == "merge" and resolved.content is not None and resolved.entry is not None:
            resolved = Resolved("merge", entry_of(resolved.content, resolved.entry.mode), resolved.content)
        return Planned(change, resolved, seen)

    # ---- changing ----------------------------------------------------------------------------------------------------------

    async def run(self) -> Applied:
        shown, planned, newest = await self.plan()
        doing = [each for each in planned if each.resolved.verdict in ("take", "merge")]
        if all(each.resolved.verdict == "conflict" for each in planned):
            return shown  # nothing that the log should know
        self._write_note(newest, doing, shown.conflicts)
        step("apply.noted")
        failed = {readable(each.change.path): why for each in _ordered(doing) if (why := await self._changed(each, newest))}
        workspace = await self._home.store.binding(self._session)
        place = Path(workspace.directory) if workspace else None
        late = [
            Conflict(readable(each.change.path), failed[readable(each.change.path)], _theirs(each, place))
            for each in doing
            if readable(each.change.path) in failed
            and not (each.resolved.entry is None and failed[readable(each.change.path)] == KEPT)
        ]
        conflicts = tuple(sorted((*shown.conflicts, *late), key=lambda conflict: conflict.path))
        record = await self._record(newest, self._wish.only, [readable(each.change.path) for each in doing], conflicts)
        return msgspec.structs.replace(
            shown,
            paths=tuple(path for path in shown.paths if path not in failed),
            merged=tuple(path for path in shown.merged if path not in failed),
            removed=tuple(path for path in shown.removed if path not in failed),
            conflicts=conflicts,
            record=record,
        )

    async def _changed(self, each: Planned, newest: Image) -> str:
        """Make it so; else say why not, in words."""
        step("apply.change")
        path, entry, seen, here = each.path, each.resolved.entry, each.seen, self._here
        try:
            if seen.entry is not None and (entry is None or (entry.kind == DIRECTORY) != (seen.entry.kind == DIRECTORY)):
                if seen.entry.kind == DIRECTORY and not here.remove_directory(path):
                    return KEPT
                if seen.entry.kind != DIRECTORY and not here.remove(path, seen):
                    return JUST_NOW
                seen = Seen()
            if entry is None:
                return ""
            await self._parents(path, newest)
            if entry.kind == DIRECTORY:
                done = here.make_directory(path, entry.mode) if seen.entry is None else here.set_mode(path, entry.mode, seen)
            else:
                done = await here.put(path, entry, each.resolved.content, seen, self._source, each.temporary)
        except InTheWay as obstacle:
            return str(obstacle)
        except OSError as error:
            return f"it can't be changed ({error.strerror or error})"
        return "" if done else JUST_NOW

    async def _parents(self, path: str, newest: Image) -> None:
        """Directories that were removed here and are needed again."""
        names = path.split("/")
        for i in range(1, len(names)):
            above = "/".join(names[:i])
            if self._here.look(above).entry is None:
                entry = await image.lookup(newest.tree, os.fsencode(above), self._source)
                self._here.make_directory(above, entry.mode if entry else 0o755)

    # ---- remembering -------------------------------------------------------------------------------------------------------

    def _write_note(self, newest: Image, doing: Sequence[Planned], conflicts: Iterable[Conflict]) -> None:
        results = tuple(
            (each.change.path, _result(each.resolved.entry), _result(each.seen.entry), each.temporary) for each in doing
        )
        note = _Note(newest, self._wish.only, tuple(conflict.path for conflict in conflicts), results)
        self._note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = self._note.with_suffix(".new")
        with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(note))
            file.flush()
            os.fsync(file.fileno())
        beside.rename(self._note)

    async def finish_killed(self) -> None:
        """Say in the log what an apply did that was killed."""
        try:
            note = msgspec.json.decode(self._note.read_bytes(), type=_Note)
        except FileNotFoundError:
            return
        for path, result, before, temporary in note.results:
            with contextlib.suppress(InTheWay, OSError):
                self._here.tidy(os.fsdecode(path), temporary, _entry(before), landed=self._landed(path, result))
        undone = [readable(path) for path, result, *_ in note.results if not self._landed(path, result)]
        step("apply.finish")
        conflicts = [Conflict(path, "") for path in (*note.conflicts, *undone)]
        await self._record(note.image, note.only, [readable(path) for path, *_ in note.results], conflicts)

    def _landed(self, path: bytes, result: _Result | None) -> bool:
        try:
            return same(self._here.look(os.fsdecode(path)).entry, _entry(result))
        except InTheWay:
            return result is None

    async def _record(self, newest: Image, only: tuple[str, ...], doing: Sequence[str], conflicts: Sequence[Conflict]) -> int:
        self._here.sync()
        step("apply.synced")
        left = {conflict.path for conflict in conflicts}
        paths = [path for path in doing if path not in left]
        body = r.Applied(newest, self._target, tuple(paths[:PATHS_TOLD]), len(paths), tuple(sorted(left)), only)
        admission = Admission(uuid.uuid4().hex, Draft(body), needs_driver=False, busy=False)
        receipt = await self._home.store.admit(self._session, admission)
        step("apply.recorded")
        self._note.unlink(missing_ok=True)
        return receipt.seq


def _ordered(doing: Sequence[Planned]) -> list[Planned]:
    """What goes first, the deepest of it before all; then top down. Where a file gives way to a directory or the reverse, that is in the first part."""
    goes = [each for each in doing if each.resolved.entry is None]
    comes = [each for each in doing if each.resolved.entry is not None]
    return [*sorted(goes, key=lambda each: each.change.path, reverse=True), *sorted(comes, key=lambda each: each.change.path)]


def _above(path: bytes) -> set[bytes]:
    names = path.split(b"/")
    return {b"/".join(names[:i]) for i in range(1, len(names))}


def _gives_way(each: Planned) -> bool:
    """Another thing becomes a directory."""
    entry, before = each.resolved.entry, each.seen.entry
    takes = each.resolved.verdict == "take" and entry is not None and entry.kind == DIRECTORY
    return takes and before is not None and before.kind != DIRECTORY


def _conflict(each: Planned, place: Path | None) -> Conflict:
    return Conflict(readable(each.change.path), each.resolved.why, _theirs(each, place))


def _theirs(each: Planned, place: Path | None) -> str | None:
    return printable(str(place / each.path)) if place is not None and each.change.theirs is not None else None


def _named(path: str, names: Sequence[str]) -> bool:
    return bool(names) and within(path, names)


def _result(entry: Entry | None) -> _Result | None:
    return None if entry is None else _Result(entry.kind, entry.mode, entry.size, entry.digest, entry.target)


def _entry(result: _Result | None) -> Entry | None:
    return None if result is None else Entry(result.kind, result.mode, result.size, result.digest, result.target)


async def unapplied(home: Home, session: SessionId) -> str | None:
    """What a session's copy has that was never brought home, in words; None where there is nothing, or no copy."""
    state = await home.state(session)
    first, newest = state.workspace.first, state.workspace.image
    if copies.origin(home.path, session) is None or first is None or newest is None:
        return None
    applied = [stored.body async for stored in home.store.read(session) if isinstance(stored.body, r.Applied)]
    found, committed = await changes(Bases(first, applied), newest, home.store.blobs.get)
    if found:
        return f"has changes in its copy that were not applied ({readable(found[0].path)}{', …' if len(found) > 1 else ''})"
    return "has commits in its copy that may not be fetched" if committed else None
