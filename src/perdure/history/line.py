"""Lines for people: text with a style by name, never a colour. The terminal, the page and the tests each make of it what they can.

Everything that a model or a command wrote passes `plain` on its way here: an escape sequence in a file name must not reach a terminal.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Literal

from msgspec import Struct

Style = Literal[
    "person", "model", "call", "output", "failure", "recovery", "workspace", "session", "kill", "plus", "minus", "hunk"
]
"""Who or what speaks. `failure` is a call or request that did not end well, `workspace` is what others changed."""


class Line(Struct, frozen=True):
    """One line. `at` is the wall-clock time, in seconds, of the record that it comes from, `seq` its number (0: no record)."""

    style: Style
    text: str
    at: float = 0.0
    seq: int = 0


def plain(text: str) -> str:
    """The text with control characters (but newline and tab), bidirectional overrides and bytes that are no UTF-8 as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        _escaped(c) if unicodedata.category(c) in _CONTROL or c in _REORDERING else c for c in text.replace("\r\n", "\n")
    )


def shorten(text: str, limit: int) -> str:
    """One plain line of at most `limit` characters."""
    line = plain(" ".join(text.split()))
    return line if len(line) <= limit else line[: limit - 1] + "…"


def listed(paths: Sequence[str], count: int = 0, *, limit: int = 6) -> str:
    """The first paths, and how many more there are of `count` (or of those given)."""
    more = max(count, len(paths)) - min(len(paths), limit)
    shown = ", ".join(shorten(path, 120) for path in paths[:limit])
    return f"{shown} and {more:,} more" if more and shown else shown or f"{more:,} paths"


def duration(seconds: float) -> str:
    if seconds < 0.95:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.5:
        return f"{seconds:.1f} s"
    return f"{seconds // 60:.0f} min {seconds % 60:02.0f} s"


_CONTROL = {"Cc", "Cs"}
_REORDERING = {chr(code) for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
"""They make a line read other than it is written (Unicode TR 36)."""


def _escaped(char: str) -> str:
    if char in "\n\t":
        return char
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that surrogateescape kept
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
