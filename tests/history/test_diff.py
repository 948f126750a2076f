"""A diff shows exactly what changed between two images, reads no more than it needs, and stays bounded."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Mapping

import pytest

from perdure.history.compare import compare
from perdure.history.diff import Change, Diff, Limits, diff, render
from perdure.record.errors import BlobGoneError
from perdure.record.records import Image
from perdure.spaced import tree as t
from perdure.spaced.trie import encode_directory

DEFAULT = Limits()
Files = Mapping[str, "str | bytes | tuple[str, int] | Files | None"]
"""Names to: a text or bytes, (text, mode), a mapping (a directory), or None (a link to `target`)."""


class Chunks:
    """Images made in memory, and the source that serves them, which counts what it is asked for."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.asked: list[str] = []

    def image(self, files: Files) -> Image:
        return Image(self._directory(files).hex(), "0" * 64, 1)

    async def source(self, digests: Iterable[str]) -> Mapping[str, bytes]:
        asked = list(digests)
        self.asked += asked
        return {digest: self.stored[digest] for digest in asked if digest in self.stored}

    def _keep(self, digest: bytes, data: bytes) -> None:
        self.stored[digest.hex()] = data

    def _directory(self, files: Files) -> bytes:
        return encode_directory(
            t.TREE_LEAF,
            [(name.encode("utf-8", "surrogateescape"), self._payload(value)) for name, value in files.items()],
            self._keep,
        )

    def _payload(self, value: object) -> bytes:
        if value is None:
            return t.link_payload(b"target")
        if isinstance(value, Mapping):
            return t.directory_payload(0o755, self._directory(value))
        text, mode = value if isinstance(value, tuple) else (value, 0o644)
        data = text.encode() if isinstance(text, str) else text
        rows = []
        for offset, length in t.cuts(len(data)):
            piece = data[offset : offset + length]
            if not t.is_hole(piece):
                digest = hashlib.sha256(piece).digest()
                self._keep(digest, piece)
                rows.append(t.Row(offset, length, digest))
        if t.is_single(len(data), tuple(rows)):
            return t.chunk_payload(mode, len(data), rows[0].digest)
        node = t.encode_file(len(data), tuple(rows))
        digest = hashlib.sha256(node).digest()
        self._keep(digest, node)
        return t.rows_payload(mode, digest)


@pytest.fixture
def chunks() -> Chunks:
    return Chunks()


def between(chunks: Chunks, before: Files | None, after: Files | None, limits: Limits = DEFAULT) -> Diff:
    a, b = (None if files is None else chunks.image(files) for files in (before, after))
    return asyncio.run(diff(a, b, chunks.source, limits))


def only(chunks: Chunks, before: Files, after: Files, limits: Limits = DEFAULT) -> Change:
    [change] = between(chunks, before, after, limits).changes
    return change


def test_a_changed_text_is_a_unified_diff(chunks: Chunks) -> None:
    change = only(chunks, {"a.py": "one\ntwo\nthree\n"}, {"a.py": "one\n2\nthree\n"})
    assert change == Change("a.py", "modified", ("@@ -1,3 +1,3 @@", " one", "-two", "+2", " three"))


def test_paths_come_sorted_and_say_what_happened_to_them(chunks: Chunks) -> None:
    found = between(
        chunks, {"gone": "x\n", "same": "s", "d": {"e": {"f": "1\n"}}}, {"new": "y\n", "same": "s", "d": {"e": {"f": "2\n"}}}
    )
    assert [(c.path, c.kind) for c in found.changes] == [("d/e/f", "modified"), ("gone", "removed"), ("new", "added")]
    assert found.changes[2].lines == ("@@ -0,0 +1 @@", "+y")


def test_equal_images_differ_in_nothing_and_nothing_is_read(chunks: Chunks) -> None:
    assert between(chunks, {"a": "1"}, {"a": "1"}) == Diff(())
    assert chunks.asked == []


def test_only_what_differs_is_read(chunks: Chunks) -> None:
    wide: dict[str, Files] = {f"d{n}": {f"f{m}": f"{n} {m}" for m in range(20)} for n in range(50)}
    before = chunks.image(wide)
    after = chunks.image({**wide, "d7": {**wide["d7"], "f3": "other"}})
    asyncio.run(diff(before, after, chunks.source))
    assert len(chunks.asked) == 2 + 2 + 2, "two roots, two directories, two files"


def test_a_directory_of_thousands_is_compared_by_its_parts(chunks: Chunks) -> None:
    many = {f"f{n}": "x" for n in range(5000)}
    change = only(chunks, many, {**many, "f77": "y"})
    assert change.path == "f77"
    assert len(chunks.asked) < 200


def test_nothing_stands_for_an_empty_workspace(chunks: Chunks) -> None:
    assert [c.kind for c in between(chunks, None, {"a": "1\n", "d": {"b": "2\n"}}).changes] == ["added", "added"]
    assert [c.kind for c in between(chunks, {"a": "1\n"}, None).changes] == ["removed"]
    assert between(chunks, None, None) == Diff(())


def test_what_is_no_text_is_said_in_words(chunks: Chunks) -> None:
    assert only(chunks, {"a": ("x", 0o644)}, {"a": ("x", 0o755)}) == Change("a", "modified", (), ("mode 0644 → 0755",))
    assert only(chunks, {"a": b"\0\1"}, {"a": b"\0\1\2"}).notes == ("binary: 2 → 3 bytes",)
    assert only(chunks, {}, {"a": None}).notes == ("a link to target",)
    assert only(chunks, {"a": "x\n"}, {"a": None}).notes == ("a file became a link to target",)
    assert only(chunks, {}, {"a": ""}) == Change("a", "added", (), ("empty",))
    assert only(chunks, {}, {"a": ("#!/bin/sh\n", 0o755)}).notes == ("executable",)


def test_an_empty_directory_is_a_change_and_a_full_one_is_told_by_its_files(chunks: Chunks) -> None:
    assert only(chunks, {}, {"d": {}}) == Change("d", "added", (), ("a directory",))
    assert only(chunks, {"d": {"f": "x\n"}}, {}).path == "d/f"


def test_a_file_in_the_place_of_a_directory(chunks: Chunks) -> None:
    found = between(chunks, {"p": {"f": "x\n"}}, {"p": "now a file\n"}).changes
    assert [(c.path, c.kind) for c in found] == [("p", "modified"), ("p/f", "removed")]
    assert found[0].notes == ("a directory became a file",)


def test_a_missing_last_line_end_shows(chunks: Chunks) -> None:
    lines = only(chunks, {"a": "x\ny"}, {"a": "x\ny\n"}).lines
    assert lines == ("@@ -1,2 +1,2 @@", " x", "-y", "\\ No newline at end of file", "+y")


def test_a_file_of_several_chunks_with_a_hole_is_read_whole(chunks: Chunks) -> None:
    body = b"a\n" * 40_000
    change = only(chunks, {"a": body}, {"a": body + b"end\n"})
    assert change.lines[-1] == "+end"
    hole = only(chunks, {"z": bytes(1 << 20) + b"x"}, {"z": bytes(1 << 20) + b"y"}, Limits(file_bytes=1 << 22))
    assert hole.notes == ("binary: 1,048,577 → 1,048,577 bytes",)


def test_what_is_too_much_is_named_and_not_shown(chunks: Chunks) -> None:
    assert only(chunks, {"a": "x"}, {"a": "y" * 100}, Limits(file_bytes=50)).notes == ("too large to show: 1 → 100 bytes",)
    lines = only(chunks, {"a": "x\n" * 90}, {"a": "y\n" * 80}, Limits(lines=50))
    assert lines == Change("a", "modified", (), ("too many lines to compare: 90 → 80",))
    many = between(chunks, {}, {f"f{n}": "x" for n in range(10)}, Limits(changes=4))
    assert (len(many.changes), many.more) == (4, 6)
    assert list(render(many))[-1].text == "and 6 more paths"


def test_names_that_are_no_text_and_escapes_in_files_are_harmless(chunks: Chunks) -> None:
    found = between(chunks, {"a": "x\n"}, {"a": "\x1b[2J\n", "caf\udce9": "y\n"})
    texts = [line.text for line in render(found)]
    assert not any("\x1b" in text or "\udce9" in text for text in texts)
    assert "added caf\\udce9" in texts and "+\\x1b[2J" in texts


def test_a_missing_chunk_is_an_error_not_an_empty_diff(chunks: Chunks) -> None:
    before, after = chunks.image({"a": "1"}), chunks.image({"a": "2"})
    del chunks.stored[after.tree]
    with pytest.raises(BlobGoneError):
        asyncio.run(compare(before.tree, after.tree, chunks.source))
