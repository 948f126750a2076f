"""Lines on a terminal or in a pipe: a mark for who speaks, and a colour where somebody can see it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Protocol

from perdure.history.line import Line, Style

_MARKS: Mapping[Style, str] = {
    "person": "> ",
    "model": "",
    "call": "• ",
    "output": "    ",
    "failure": "✗ ",
    "recovery": "↻ ",
    "workspace": "± ",
    "session": "· ",
    "kill": "☠ ",
    "plus": "",
    "minus": "",
    "hunk": "",
}
_COLOURS: Mapping[Style, str] = {
    "person": "1",
    "call": "36",
    "output": "2",
    "failure": "31",
    "recovery": "35",
    "workspace": "33",
    "session": "2",
    "kill": "1;31",
    "plus": "32",
    "minus": "31",
    "hunk": "36",
}


class Out(Protocol):
    """What lines go to."""

    def write(self, text: str, /) -> int: ...

    def flush(self) -> None: ...

    def isatty(self) -> bool: ...


class Paint:
    """For one stream. Colours only on a terminal, and not against NO_COLOR (https://no-color.org) or TERM=dumb."""

    def __init__(self, stream: Out) -> None:
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
        self._coloured = stream.isatty() and not plain

    def line(self, line: Line) -> str:
        return self.text(line.style, _MARKS[line.style] + line.text)

    def text(self, style: Style, text: str) -> str:
        colour = _COLOURS.get(style) if self._coloured else None
        return f"\x1b[{colour}m{text}\x1b[0m" if colour else text
