"""Three-way merging of texts, line by line (diff3; Khanna, Kunal, Pierce 2007).

Both sides are compared with the base by Myers' algorithm (1986), so that the differences are the fewest there are. What one side changed is taken; what
both changed, or changed next to each other, is a conflict unless they made the same of it. No line that a side wrote is ever dropped silently.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

LIMIT_BYTES = 8 << 20
LIMIT_EDITS = 3000
"""Lines that a side may differ by from the base: comparing costs their square."""


class Hunk(Struct, frozen=True):
    """Lines [begin, end) of the base became lines [first, last) of a side."""

    begin: int
    end: int
    first: int
    last: int


class Merged(Struct, frozen=True):
    """`content` is None where there are conflicts; they begin at these lines of ours, counted from 1. None at all: it is no text, or too much of it."""

    content: bytes | None
    conflicts: tuple[int, ...] = ()


def merge(base: bytes, ours: bytes, theirs: bytes) -> Merged:
    """Both sides' changes to the base, together."""
    if any(len(side) > LIMIT_BYTES or b"\0" in side for side in (base, ours, theirs)):
        return Merged(None)
    old, mine, other = map(_lines, (base, ours, theirs))
    left, right = changes(old, mine), changes(old, other)
    if left is None or right is None:
        return Merged(None)
    out: list[bytes] = []
    conflicts: list[int] = []
    done = ours_at = theirs_at = 0
    for begin, end, ours_hunks, theirs_hunks in _groups(left, right):
        out += old[done:begin]
        ours_at, theirs_at = ours_at + begin - done, theirs_at + begin - done
        ours_end = ours_at + end - begin + _growth(ours_hunks)
        theirs_end = theirs_at + end - begin + _growth(theirs_hunks)
        my_lines, their_lines = mine[ours_at:ours_end], other[theirs_at:theirs_end]
        if not theirs_hunks or my_lines == their_lines:
            out += my_lines
        elif not ours_hunks:
            out += their_lines
        else:
            conflicts.append(ours_at + 1)
        done, ours_at, theirs_at = end, ours_end, theirs_end
    out += old[done:]
    return Merged(None, tuple(conflicts)) if conflicts else Merged(b"".join(out))


def changes(old: Sequence[bytes], new: Sequence[bytes]) -> list[Hunk] | None:
    """The fewest lines that differ, as hunks that don't touch; None beyond the limit."""
    begin = 0
    while begin < min(len(old), len(new)) and old[begin] == new[begin]:
        begin += 1
    end = 0
    while end < min(len(old), len(new)) - begin and old[-1 - end] == new[-1 - end]:
        end += 1
    kept = _kept(old[begin : len(old) - end], new[begin : len(new) - end])
    if kept is None:
        return None
    found: list[Hunk] = []
    at, to = begin, begin
    for i, j in [*((begin + i, begin + j) for i, j in kept), (len(old) - end, len(new) - end)]:
        if (at, to) != (i, j):
            found.append(Hunk(at, i, to, j))
        at, to = i + 1, j + 1
    return found


def _kept(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int]] | None:
    """A longest common subsequence: pairs of indices."""
    if not old or not new:
        return []
    names: dict[bytes, int] = {}
    a = [names.setdefault(line, len(names)) for line in old]
    b = [names.setdefault(line, len(names)) for line in new]
    ends = {1: 0}
    trace: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), LIMIT_EDITS) + 1):
        trace.append({k: ends[k] for k in range(-edits + 1, edits, 2)} if edits else dict(ends))
        for k in range(-edits, edits + 1, 2):
            down = k == -edits or (k != edits and ends[k - 1] < ends[k + 1])
            x = ends[k + 1] if down else ends[k - 1] + 1
            y = x - k
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            ends[k] = x
            if x >= len(a) and y >= len(b):
                return _back(trace, len(a), len(b))
    return None


def _back(trace: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs: list[tuple[int, int]] = []
    for edits in range(len(trace) - 1, -1, -1):
        ends, k = trace[edits], x - y
        down = k == -edits or (k != edits and ends[k - 1] < ends[k + 1])
        before = k + 1 if down else k - 1
        from_x = ends[before]
        from_y = from_x - before
        start_x = from_x if down else from_x + 1
        while x > start_x:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = from_x, from_y
    return pairs[::-1]


def _groups(left: list[Hunk], right: list[Hunk]) -> list[tuple[int, int, list[Hunk], list[Hunk]]]:
    """Hunks of both sides that overlap or touch, together: (begin, end) in the base, and whose they are."""
    groups: list[tuple[int, int, list[Hunk], list[Hunk]]] = []
    for hunk, mine in sorted(
        [*((hunk, True) for hunk in left), *((hunk, False) for hunk in right)], key=lambda each: (each[0].begin, each[0].end)
    ):
        if groups and hunk.begin <= groups[-1][1]:
            begin, end, ours, theirs = groups.pop()
        else:
            begin, end, ours, theirs = hunk.begin, hunk.end, [], []
        (ours if mine else theirs).append(hunk)
        groups.append((begin, max(end, hunk.end), ours, theirs))
    return groups


def _growth(hunks: list[Hunk]) -> int:
    return sum((hunk.last - hunk.first) - (hunk.end - hunk.begin) for hunk in hunks)


def _lines(content: bytes) -> list[bytes]:
    """Lines end at a line feed only."""
    pieces = content.split(b"\n")
    return [piece + b"\n" for piece in pieces[:-1]] + ([pieces[-1]] if pieces[-1] else [])
