"""The model's view of an output is bounded and says so."""

from __future__ import annotations

import os
from pathlib import Path

from perdure.spaced import output


def view(folder: Path, data: bytes) -> tuple[str, bool]:
    (folder / "out").write_bytes(data)
    fd = os.open(folder / "out", os.O_RDONLY)
    try:
        return output.view(fd, "t.1.0")
    finally:
        os.close(fd)


def test_a_short_output_is_shown_as_it_is(tmp_path: Path) -> None:
    assert view(tmp_path, b"") == ("", False)
    assert view(tmp_path, b"one\ntwo") == ("one\ntwo", False)


def test_a_long_output_keeps_its_head_and_its_tail(tmp_path: Path) -> None:
    lines = [f"line {n} {'x' * 90}\n" for n in range(5000)]
    data = "".join(lines).encode()
    text, truncated = view(tmp_path, data)
    assert truncated
    assert len(text.encode()) <= output.VIEW_BYTES + 200
    assert text.startswith(lines[0])
    assert text.endswith(lines[-1])
    shown = text.splitlines(keepends=True)
    (note,) = [line for line in shown if "left out" in line]
    assert "output:t.1.0" in note
    shown.remove(note)
    assert set(shown) <= set(lines)
    assert str(len(data) - sum(map(len, shown))) in note


def test_many_short_lines_are_bounded_too(tmp_path: Path) -> None:
    text, truncated = view(tmp_path, b"".join(b"%d\n" % n for n in range(5000)))
    assert truncated
    assert len(text.splitlines()) == output.VIEW_LINES + 1
    assert text.startswith("0\n1\n")
    assert text.endswith("4998\n4999\n")


def test_one_endless_line_is_cut(tmp_path: Path) -> None:
    text, truncated = view(tmp_path, b"a" * 200_000 + b"\xff" * 10)
    assert truncated
    assert len(text) < output.VIEW_BYTES + 200
    assert text.endswith("a" + "\ufffd" * 10)
