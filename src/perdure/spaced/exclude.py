"""Rules that leave paths out of the image: a small part of what .gitignore can say.

A pattern without a slash matches a name at any depth; with one it is anchored at the root. A slash at the end means directories only. `*` and
`?` stay within a name, `**` crosses. There is no negation: what is left out must be easy to tell.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


class Rules:
    def __init__(self, patterns: Iterable[str] = ()) -> None:
        kept = [line for line in (pattern.strip() for pattern in patterns) if line and not line.startswith("#")]
        self._any = _compile([p for p in kept if not p.endswith("/")])
        self._directories = _compile([p.rstrip("/") for p in kept])

    def __bool__(self) -> bool:
        return self._directories is not None

    def leave_out(self, path: str, *, directory: bool) -> bool:
        """`path` is relative to the root. Parents are asked first: what is below a directory that is left out is never asked for."""
        rules = self._directories if directory else self._any
        return rules is not None and rules.fullmatch(path) is not None


def _compile(patterns: list[str]) -> re.Pattern[str] | None:
    if not patterns:
        return None
    return re.compile("|".join(("" if "/" in p else "(?:.*/)?") + _translate(p.lstrip("/")) for p in patterns), re.DOTALL)


def _translate(pattern: str) -> str:
    out = []
    for piece in re.split(r"(\*\*/|\*\*|\*|\?)", pattern):
        out.append({"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(piece) or re.escape(piece))
    return "".join(out)
