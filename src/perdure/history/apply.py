"""What a session changed, against a directory that went its own way: three-way, a path at a time.

The base is the image that the directory began with (the session's first), or the one that was applied to it last; theirs is what the session has
now, ours what the directory has. What the session did not change is not looked at. Git's own files are left out: commits come home by `git fetch`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Struct

from perdure.history.compare import Difference, compare
from perdure.history.merge import LIMIT_BYTES, merge
from perdure.record import records as r
from perdure.record.parts import Digest, printable
from perdure.record.records import Image
from perdure.space import image
from perdure.space.space import ChunkSource
from perdure.spaced.tree import CHUNK, DIRECTORY, ROWS, Entry

GIT = b".git"
Verdict = Literal["already", "take", "merge", "conflict"]


class Change(Struct, frozen=True):
    """A path that the session changed since `base`, and what it made of it. None: nothing is there."""

    path: bytes
    base: Entry | None
    theirs: Entry | None


class Resolved(Struct, frozen=True):
    """What is to become of a path. `entry` is to be there afterwards (None: nothing), with `content` where it was merged; `why` there is a conflict."""

    verdict: Verdict
    entry: Entry | None = None
    content: bytes | None = None
    why: str = ""


class Bases:
    """Which image each path of one directory was brought up to, from the session's records about it, the oldest first."""

    def __init__(self, first: Image, applied: Iterable[r.Applied]) -> None:
        self._first = first
        self._applied = [(each, frozenset(each.conflicts)) for each in applied]

    def images(self) -> list[Digest]:
        return list(dict.fromkeys([self._first.tree, *(each.image.tree for each, _ in self._applied)]))

    def of(self, path: bytes) -> Digest:
        text = readable(path)
        for each, conflicts in reversed(self._applied):
            if text not in conflicts and within(text, each.only):
                return each.image.tree
        return self._first.tree


def readable(path: bytes) -> str:
    """The path as records and people have it."""
    return printable(os.fsdecode(path))


def within(path: str, only: Sequence[str]) -> bool:
    """Whether it is one of these paths or lies below one; no paths at all mean every path."""
    return not only or any(each == "." or path == each or path.startswith(f"{each}/") for each in only)


async def changes(bases: Bases, theirs: Image, source: ChunkSource, only: Sequence[str] = ()) -> tuple[list[Change], bool]:
    """What the session changed, sorted by path, and whether its repository has other references than it began with."""
    found: list[Change] = []
    committed = False
    for base in bases.images():
        for difference in await compare(base, theirs.tree, source):
            if bases.of(difference.path) != base:
                continue
            if GIT in difference.path.split(b"/"):
                committed = committed or _reference(difference)
            elif within(readable(difference.path), only):
                found.append(Change(difference.path, difference.before, difference.after))
    return sorted(found, key=lambda change: change.path), committed


def _reference(difference: Difference) -> bool:
    names = difference.path.split(b"/")
    return (
        names[:1] == [GIT]
        and names[1:2] in ([b"refs"], [b"packed-refs"])
        and not (difference.after is not None and difference.after.kind == DIRECTORY)
    )


# ---- one path --------------------------------------------------------------------------------------------------------------


def decide(change: Change, ours: Entry | None) -> Verdict:
    """By what is there alone; `merge` needs the contents."""
    base, theirs = change.base, change.theirs
    if same(ours, theirs):
        return "already"
    if same(ours, base) or _half_done(base, theirs, ours) or (_is(base, DIRECTORY) and theirs is None and _is(ours, DIRECTORY)):
        return "take"
    return "merge" if base and theirs and ours and _file(base) and _file(theirs) and _file(ours) else "conflict"


async def resolve(change: Change, ours: Entry | None, ours_content: bytes | None, source: ChunkSource) -> Resolved:
    """`ours_content` is needed where `decide` says merge; None: it is too large."""
    verdict = decide(change, ours)
    if verdict != "merge":
        return Resolved(verdict, change.theirs, why=words(change, ours) if verdict == "conflict" else "")
    base, theirs = change.base, change.theirs
    assert base is not None and theirs is not None and ours is not None
    mode = theirs.mode if ours.mode == base.mode else ours.mode
    if theirs.mode not in (base.mode, mode):
        return Resolved("conflict", why=f"its mode was made {theirs.mode:04o} there and {ours.mode:04o} here")
    if _bytes(ours) in (_bytes(base), _bytes(theirs)):
        return Resolved("take", theirs._replace(mode=mode))
    if _bytes(theirs) == _bytes(base):
        return (
            Resolved("take", ours._replace(mode=mode), ours_content)
            if ours_content is not None
            else Resolved("conflict", why="its mode")
        )
    old, new = await _text(base, source), await _text(theirs, source)
    if old is None or new is None or ours_content is None:
        return Resolved("conflict", why=words(change, ours))
    merged = merge(old, ours_content, new)
    if merged.content is None:
        lines = ", ".join(map(str, merged.conflicts[:5]))
        return Resolved("conflict", why=words(change, ours) + (f", at line {lines} here" if lines else ""))
    return Resolved("merge", ours._replace(mode=mode), merged.content)


def words(change: Change, ours: Entry | None) -> str:
    """Why nothing can be chosen."""
    if change.theirs is None:
        return "removed there, changed here"
    if ours is None:
        return "changed there, removed here"
    return "added there and here" if change.base is None else "changed there and here"


def same(one: Entry | None, other: Entry | None) -> bool:
    """Of directories their modes alone count; what lies in them has paths of its own."""
    if one is None or other is None or one.kind != DIRECTORY or other.kind != DIRECTORY:
        return one == other
    return one.mode == other.mode


def _half_done(base: Entry | None, theirs: Entry | None, ours: Entry | None) -> bool:
    """What an apply that was cut off leaves where a file and a directory take each other's place."""
    return ours is None and base is not None and theirs is not None and _is(base, DIRECTORY) != _is(theirs, DIRECTORY)


def _is(entry: Entry | None, kind: bytes) -> bool:
    return entry is not None and entry.kind == kind


def _file(entry: Entry) -> bool:
    return entry.kind in (CHUNK, ROWS)


def _bytes(entry: Entry) -> tuple[bytes, int, bytes]:
    return entry.kind, entry.size, entry.digest


async def _text(entry: Entry, source: ChunkSource) -> bytes | None:
    size, _ = await image.layout(entry, source)
    return await image.content(entry, source) if size <= LIMIT_BYTES else None
