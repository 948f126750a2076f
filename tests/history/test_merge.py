"""Three-way merging: what one side changed is there, what both changed is a conflict, and nothing is dropped."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.history.merge import LIMIT_EDITS, Merged, changes, merge

BASE = b"a\nb\nc\nd\ne\n"
LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n"]), max_size=12)
TEXTS = st.builds(lambda lines, tail: b"".join(lines) + tail, LINES, st.sampled_from([b"", b"x", b"a"]))


@pytest.mark.parametrize(
    ("ours", "theirs", "merged"),
    [
        (BASE, b"a\nB\nc\nd\ne\n", b"a\nB\nc\nd\ne\n"),
        (b"A\nb\nc\nd\ne\n", b"a\nb\nc\nd\nE\n", b"A\nb\nc\nd\nE\n"),
        (b"a\nb\nc\nd\ne\nf\n", b"0\na\nb\nc\nd\ne\n", b"0\na\nb\nc\nd\ne\nf\n"),
        (b"a\nX\nc\nd\ne\n", b"a\nX\nc\nd\ne\n", b"a\nX\nc\nd\ne\n"),
        (b"a\nX\nc\nd\ne\n", b"a\nX\nc\nD\ne\n", b"a\nX\nc\nD\ne\n"),
        (b"a\nc\nd\ne\n", b"a\nb\nc\nd\n", b"a\nc\nd\n"),
        (b"a\r\nb\nc\nd\ne\n", b"a\nb\nc\nd\ne", b"a\r\nb\nc\nd\ne"),
    ],
)
def test_changes_apart_go_together(ours: bytes, theirs: bytes, merged: bytes) -> None:
    assert merge(BASE, ours, theirs) == Merged(merged)


@pytest.mark.parametrize(
    ("ours", "theirs", "line"),
    [
        (b"a\nX\nc\nd\ne\n", b"a\nY\nc\nd\ne\n", 2),
        (b"a\nX\nc\nd\ne\n", b"a\nb\nY\nd\ne\n", 2),
        (b"a\nc\nd\ne\n", b"a\nB\nc\nd\ne\n", 2),
        (BASE + b"x\n", BASE + b"y\n", 6),
        (BASE[:-1], BASE + b"y\n", 5),
    ],
)
def test_what_both_changed_is_a_conflict_that_names_its_line(ours: bytes, theirs: bytes, line: int) -> None:
    assert merge(BASE, ours, theirs) == Merged(None, (line,))


def test_what_is_no_text_or_differs_everywhere_is_not_merged() -> None:
    assert merge(b"\0", b"\0a", b"\0b") == Merged(None)
    lines = [b"%d\n" % i for i in range(2 * LIMIT_EDITS)]
    assert merge(b"".join(lines), b"".join(reversed(lines)), b"x") == Merged(None)


def applied(old: list[bytes], new: list[bytes]) -> list[bytes]:
    out: list[bytes] = []
    at = 0
    hunks = changes(old, new)
    assert hunks is not None
    for hunk in hunks:
        assert hunk.begin >= at and (hunk.begin > at or not out)
        out += old[at : hunk.begin] + new[hunk.first : hunk.last]
        at = hunk.end
    return out + old[at:]


@given(LINES, LINES)
def test_the_changes_of_a_side_make_it_of_the_base_and_are_as_few_as_can_be(old: list[bytes], new: list[bytes]) -> None:
    assert applied(old, new) == new
    hunks = changes(old, new) or []
    kept = len(old) - sum(hunk.end - hunk.begin for hunk in hunks)
    table = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i, line in enumerate(old):
        for j, other in enumerate(new):
            table[i + 1][j + 1] = table[i][j] + 1 if line == other else max(table[i][j + 1], table[i + 1][j])
    assert kept == table[-1][-1]


@settings(max_examples=500)
@given(TEXTS, TEXTS, TEXTS)
def test_laws(base: bytes, ours: bytes, theirs: bytes) -> None:
    assert merge(base, base, theirs) == Merged(theirs)
    assert merge(base, ours, base) == Merged(ours)
    assert merge(base, ours, ours) == Merged(ours)
    one, other = merge(base, ours, theirs), merge(base, theirs, ours)
    assert one.content == other.content
    assert len(one.conflicts) == len(other.conflicts)
    if one.content is not None:
        assert b"x" not in one.content or one.content.endswith(b"x")


@pytest.mark.parametrize("seed", range(200))
def test_every_line_that_somebody_wrote_is_in_the_result_or_in_a_conflict(seed: int) -> None:
    rng = random.Random(seed)
    base = [b"%d\n" % rng.randrange(8) for _ in range(rng.randrange(40))]

    def edited(who: bytes) -> tuple[list[bytes], set[bytes]]:
        lines, wrote = list(base), set()
        for n in range(rng.randrange(6)):
            at, line = rng.randrange(len(lines) + 1), b"%s%d\n" % (who, n)
            lines[at : at + rng.randrange(3)] = [line]
            wrote.add(line)
        return lines, wrote & set(lines)

    (ours, mine), (theirs, other) = edited(b"o"), edited(b"t")
    merged = merge(b"".join(base), b"".join(ours), b"".join(theirs))
    if merged.content is None:
        assert merged.conflicts
    else:
        assert mine | other <= set(merged.content.splitlines(keepends=True))
