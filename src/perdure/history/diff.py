"""What changed between two images, as people read it: unified text diffs, and words for everything that is no text.

Everything is bounded, since a model may write anything: files above a size, comparisons above a number of lines and changes above a count are named with
their numbers and not shown.
"""

from __future__ import annotations

import difflib
import os
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from perdure.history.compare import Difference, compare
from perdure.history.line import Line, plain
from perdure.record.parts import printable
from perdure.record.records import Image
from perdure.space.image import chunks
from perdure.space.space import ChunkSource
from perdure.spaced.tree import CHUNK, DIRECTORY, LINK, ROWS, Entry, decode_file

Kind = Literal["added", "removed", "modified"]


class Limits(Struct, frozen=True):
    """Beyond these a change is named, not shown. `lines` bounds what differs in one file, since comparing costs its square."""

    changes: int = 1000
    file_bytes: int = 1 << 20
    lines: int = 5000
    context: int = 3


class Change(Struct, frozen=True):
    """One path. `lines` are those of a unified diff, from the first `@@` on, without line ends; `notes` say what no line can."""

    path: str
    kind: Kind
    lines: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Diff(Struct, frozen=True):
    """`more` paths changed beyond the limit."""

    changes: tuple[Change, ...]
    more: int = 0


async def diff(before: Image | None, after: Image | None, source: ChunkSource, limits: Limits = Limits()) -> Diff:
    """The files of `after` against those of `before`; None is an empty workspace. BlobGoneError if a chunk is not stored."""
    return await told(await compare(before.tree if before else None, after.tree if after else None, source), source, limits)


async def told(differences: Sequence[Difference], source: ChunkSource, limits: Limits = Limits()) -> Diff:
    """These differences, sorted by path, as people read them; for who wants only some of them."""
    paths = [difference.path for difference in differences]
    kept = [d for d in differences if not _told_by_its_content(d, paths)]
    changes = [await _change(difference, source, limits) for difference in kept[: limits.changes]]
    return Diff(tuple(changes), len(kept) - len(changes))


def render(diff: Diff) -> Iterator[Line]:
    """The lines of a diff, each with its style."""
    for change in diff.changes:
        yield Line("session", f"{change.kind} {plain(change.path)}")
        for note in change.notes:
            yield Line("output", f"  {plain(note)}")
        for line in change.lines:
            yield Line(_STYLES.get(line[:1], "output"), plain(line))
    if diff.more:
        yield Line("session", f"and {diff.more:,} more paths")


_STYLES: dict[str, Literal["plus", "minus", "hunk"]] = {"+": "plus", "-": "minus", "@": "hunk"}


def _told_by_its_content(difference: Difference, paths: list[bytes]) -> bool:
    """A directory that came or went says nothing that its files don't say; an empty one does. `paths` are sorted."""
    sides = [side for side in (difference.before, difference.after) if side]
    if len(sides) == 2 or sides[0].kind != DIRECTORY:
        return False
    inside = difference.path + b"/"
    at = bisect_left(paths, inside)
    return at < len(paths) and paths[at].startswith(inside)


async def _change(difference: Difference, source: ChunkSource, limits: Limits) -> Change:
    before, after = difference.before, difference.after
    path = printable(os.fsdecode(difference.path))
    kind: Kind = "added" if before is None else "removed" if after is None else "modified"
    notes = []
    if before and after and _type(before) != _type(after):
        return Change(path, kind, notes=(f"{_words(before)} became {_words(after)}",))
    if before and after and before.mode != after.mode:
        notes.append(f"mode {before.mode:04o} → {after.mode:04o}")
    one = after or before
    assert one is not None
    if one.kind == DIRECTORY:
        return Change(path, kind, notes=tuple(notes) or ("a directory",))
    if one.kind == LINK:
        return Change(path, kind, notes=(*notes, " → ".join(_words(side) for side in (before, after) if side)))
    if before and after and before.digest == after.digest:
        return Change(path, kind, notes=tuple(notes))
    if one.mode & 0o111 and not (before and after):
        notes.append("executable")
    lines, note = _compared(await _content(before, source, limits), await _content(after, source, limits), limits)
    return Change(path, kind, lines, (*notes, note) if note else tuple(notes))


def _compared(before: bytes | int, after: bytes | int, limits: Limits) -> tuple[tuple[str, ...], str]:
    """Diff lines, or a note why there are none. An int is the size of something too large to read."""
    if isinstance(before, int) or isinstance(after, int):
        return (), f"too large to show: {_sizes(before, after)}"
    if b"\0" in before or b"\0" in after:
        return (), f"binary: {_sizes(before, after)}"
    old, new = _text_lines(before), _text_lines(after)
    if max(_differing(old, new)) > limits.lines:
        return (), f"too many lines to compare: {len(old):,} → {len(new):,}"
    shown: list[str] = []
    for line in list(difflib.unified_diff(old, new, n=limits.context))[2:]:
        shown.append(line.rstrip("\n"))
        if not line.endswith("\n"):
            shown.append("\\ No newline at end of file")
    return tuple(shown), "" if shown else "empty"


def _differing(old: list[str], new: list[str]) -> tuple[int, int]:
    """How many lines each has beyond what both begin and end with."""
    shorter = min(len(old), len(new))
    begin = 0
    while begin < shorter and old[begin] == new[begin]:
        begin += 1
    end = 0
    while end < shorter - begin and old[-1 - end] == new[-1 - end]:
        end += 1
    return len(old) - begin - end, len(new) - begin - end


async def _content(entry: Entry | None, source: ChunkSource, limits: Limits) -> bytes | int:
    """The bytes of a file (none: of nothing), or its size where that is above the limit."""
    if entry is None:
        return b""
    if entry.kind == CHUNK:
        return entry.size if entry.size > limits.file_bytes else (await chunks([entry.digest], source))[entry.digest]
    size, rows = decode_file((await chunks([entry.digest], source))[entry.digest])
    if size > limits.file_bytes:
        return size
    got = await chunks((row.digest for row in rows), source)
    content = bytearray(size)
    for row in rows:
        content[row.offset : row.offset + row.length] = got[row.digest]
    return bytes(content)


def _text_lines(content: bytes) -> list[str]:
    """Lines end at a line feed only, as in every other diff."""
    pieces = content.decode("utf-8", "surrogateescape").split("\n")
    return [piece + "\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])


def _type(entry: Entry) -> bytes:
    return CHUNK if entry.kind == ROWS else entry.kind


def _words(entry: Entry) -> str:
    if entry.kind == DIRECTORY:
        return "a directory"
    return f"a link to {printable(os.fsdecode(entry.target))}" if entry.kind == LINK else "a file"


def _sizes(before: bytes | int, after: bytes | int) -> str:
    sizes = [side if isinstance(side, int) else len(side) for side in (before, after)]
    return f"{sizes[0]:,} → {sizes[1]:,} bytes"
