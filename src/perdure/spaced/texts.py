"""A file's bytes as the text that a model sees, and back without changing what it does not mean to change.

Read: the byte order mark, encoding and line ends of the file are recognised; the model sees `\\n` only. Edit: texts are matched on what the model
saw, and what is written keeps the file's encoding, mark and line ends, mixed ones included.
"""

from __future__ import annotations

import codecs
from bisect import bisect_left
from typing import Any, NamedTuple

from perdure.spaced.errors import OpError

_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_SNIFFED_BYTES = 8192
_LINES_TOLD = 5


class Binary(ValueError):
    """Not a text."""


class Decoded(NamedTuple):
    """`mark` is the byte order mark, `text` everything behind it with the file's own line ends."""

    mark: bytes
    encoding: str
    text: str

    @property
    def seen(self) -> str:
        """The text as a model sees it."""
        return self.text.replace("\r\n", "\n")

    def encode(self, text: str) -> bytes:
        return self.mark + text.encode(self.encoding)


class Span(NamedTuple):
    """Where the only occurrence of an edit's old text is in the seen text; `number` counts edits from 1."""

    start: int
    end: int
    number: int
    new_text: str


def decode(data: bytes) -> Decoded:
    """Raises Binary for what is no text: UTF-32, or a NUL near the start without a mark."""
    mark, encoding = next(((mark, name) for mark, name in _MARKS if data.startswith(mark)), (b"", "utf-8"))
    if data.startswith(codecs.BOM_UTF32_LE) or (encoding == "utf-8" and b"\0" in data[:_SNIFFED_BYTES]):
        raise Binary
    body = data[len(mark) :]
    try:
        return Decoded(mark, encoding, body.decode(encoding))
    except UnicodeDecodeError:
        if mark:
            raise Binary from None
        return Decoded(b"", "latin-1", body.decode("latin-1"))


def replace(decoded: Decoded, edits: list[dict[str, Any]], path: str) -> tuple[str, list[int]]:
    """The text with every edit made, and the lines (from 1) where. Raises OpError; then nothing is to be written."""
    if not edits:
        raise OpError("no edits were given for %s" % path)
    seen = decoded.seen
    spans = sorted(_span(seen, edit, number, len(edits), path) for number, edit in enumerate(edits, 1))
    for index in range(1, len(spans)):
        before, after = spans[index - 1], spans[index]
        if after.start < before.end:
            numbers = min(before.number, after.number), max(before.number, after.number)
            raise OpError("edits %d and %d overlap in %s; make them one edit. Nothing was changed." % (*numbers, path))
    ends = _line_ends(decoded.text)
    out: list[str] = []
    at = 0
    for span in spans:
        first, last = (position + _carriage_returns(ends, position) for position in (span.start, span.end))
        out += (decoded.text[at:first], _with_line_ends(span.new_text, decoded.text[first:last], decoded.text))
        at = last
    text = "".join([*out, decoded.text[at:]])
    if text == decoded.text:
        raise OpError("the edits make no difference to %s" % path)
    return text, [seen.count("\n", 0, span.start) + 1 for span in spans]


def _span(seen: str, edit: dict[str, Any], number: int, total: int, path: str) -> Span:
    old, new = edit["old_text"].replace("\r\n", "\n"), edit["new_text"].replace("\r\n", "\n")
    which = "old_text" if total == 1 else "old_text of edit %d" % number
    if not old:
        raise OpError("%s is empty; use write to create a file" % which)
    starts = []
    at = seen.find(old)
    while at >= 0:
        starts.append(at)
        at = seen.find(old, at + 1)
    if not starts:
        raise OpError(
            "%s was not found in %s; it must match exactly, blanks included. Nothing was changed.%s"
            % (which, path, _hint(seen, old))
        )
    if len(starts) > 1:
        lines = ", ".join(str(seen.count("\n", 0, start) + 1) for start in starts[:_LINES_TOLD])
        more = ", …" if len(starts) > _LINES_TOLD else ""
        raise OpError(
            "%s occurs %d times in %s (lines %s%s); add surrounding lines to make it unique. Nothing was changed."
            % (which, len(starts), path, lines, more)
        )
    return Span(starts[0], starts[0] + len(old), number, new)


def _hint(seen: str, old: str) -> str:
    """Where the text would match if blanks did not count."""
    wanted = [line.strip() for line in old.strip().split("\n")]
    lines = [line.strip() for line in seen.split("\n")]
    for number in range(len(lines) - len(wanted) + 1):
        if lines[number] == wanted[0] and lines[number : number + len(wanted)] == wanted:
            return " Line %d is the same but for blanks." % (number + 1)
    return ""


def _line_ends(text: str) -> list[int]:
    """Where the line feeds of `\\r\\n` are in the text that the model sees."""
    ends: list[int] = []
    at = text.find("\r\n")
    while at >= 0:
        ends.append(at - len(ends))
        at = text.find("\r\n", at + 2)
    return ends


def _carriage_returns(ends: list[int], position: int) -> int:
    """How many carriage returns the file has before that position of the seen text."""
    return bisect_left(ends, position)


def _with_line_ends(new_text: str, replaced: str, text: str) -> str:
    """The n-th line of the new text ends as the n-th that it replaces, further ones as the last; without any, as most of the file."""
    styles = [("\r\n" if line.endswith("\r\n") else "\n") for line in replaced.splitlines(True) if line.endswith("\n")]
    if not styles:
        windows = text.count("\r\n")
        styles = ["\r\n" if windows * 2 > text.count("\n") else "\n"]
    lines = new_text.split("\n")
    out = [lines[0]]
    for number, line in enumerate(lines[1:]):
        out += (styles[min(number, len(styles) - 1)], line)
    return "".join(out)
