"""Rules that leave paths out of the image, in the syntax of .gitignore (git-scm.com/docs/gitignore), one a line; the last that matches decides.

`#` begins a remark, `!` takes in again what an earlier rule left out, a slash at the end means directories only. A pattern with a slash before its
end is anchored at the root, one without matches a name at any depth. `*`, `?` and `[…]` stay within a name; `**` between slashes crosses.
What is below a directory that is left out can't be taken in again. Here `?` and `[…]` stand for a character, in git for a byte.
"""

from __future__ import annotations

import re
from typing import Iterable, List, Optional, Pattern, Tuple

FILE = ".perdureignore"
_NEVER = "(?!)"
_POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "\\x21-\\x7e",
    "lower": "a-z",
    "print": "\\x20-\\x7e",
    "punct": "\\x21-\\x2f\\x3a-\\x40\\x5b-\\x60\\x7b-\\x7e",
    "space": "\\t\\n\\x0b\\x0c\\r ",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


def kept(text: str) -> Tuple[str, ...]:
    """The rules of a file's text, without remarks and empty lines."""
    lines = (line[:-1] if line.endswith("\r") else line for line in text.split("\n"))
    trimmed = (_trimmed(line) for line in lines if not line.startswith("#"))
    return tuple(line for line in trimmed if line)


class Rules:
    def __init__(self, patterns: Iterable[str] = ()) -> None:
        rules = [_Rule(line) for pattern in patterns for line in kept(pattern)]
        self._any = _compile([rule for rule in rules if not rule.directory])
        self._directories = _compile(rules)

    def __bool__(self) -> bool:
        return bool(self._directories)

    def leave_out(self, path: str, *, directory: bool) -> bool:
        """`path` is relative to the root. Parents are asked first: what is below a directory that is left out is never asked for."""
        for out, pattern in self._directories if directory else self._any:
            if pattern.fullmatch(path) is not None:
                return out
        return False


class _Rule:
    def __init__(self, line: str) -> None:
        self.out = not line.startswith("!")
        line = line if self.out else line[1:]
        self.directory = line.endswith("/")
        line = line[:-1] if self.directory else line
        anchored = "/" in line
        self.pattern = _translate(line[1:] if line.startswith("/") else line, anchored=anchored)


def _compile(rules: List[_Rule]) -> List[Tuple[bool, Pattern[str]]]:
    """Rules that say the same in a row are one pattern; the last row comes first."""
    rows: List[Tuple[bool, List[str]]] = []
    for rule in reversed(rules):
        if not rows or rows[-1][0] != rule.out:
            rows.append((rule.out, []))
        rows[-1][1].append(rule.pattern)
    return [(out, re.compile("|".join(patterns), re.DOTALL)) for out, patterns in rows]


def _trimmed(line: str) -> str:
    """Without spaces at the end, but for one behind a backslash."""
    bare = line.rstrip(" ")
    slashes = len(bare) - len(bare.rstrip("\\"))
    return line[: len(bare) + 1] if slashes % 2 and len(line) > len(bare) else bare


def _translate(pattern: str, *, anchored: bool) -> str:
    """The regular expression of a pattern; one that can match nothing where it is cut off in an escape or in brackets."""
    if not pattern:
        return _NEVER
    out = [] if anchored else ["(?:.*/)?"]
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "*":
            end = at
            while end < len(pattern) and pattern[end] == "*":
                end += 1
            # Git compares what stands before the first of *?[\ as it is, and matches from there on: a**/b crosses, as a/**/b does.
            begins = at == 0 or pattern[at - 1] == "/" or not set(pattern[:at]) & set("*?[\\")
            crosses = anchored and end - at > 1 and begins
            if crosses and end == len(pattern):
                out.append(".*")
            elif crosses and pattern[end] == "/":
                out.append("(?:.*/)?")
                end += 1
            else:
                out.append("[^/]*")
            at = end
        elif character == "[":
            found = _brackets(pattern, at)
            if found is None:
                return _NEVER
            inside, at = found
            out.append(inside)
        elif character == "\\":
            if at + 1 == len(pattern):
                return _NEVER
            out.append(re.escape(pattern[at + 1]))
            at += 2
        else:
            out.append("[^/]" if character == "?" else re.escape(character))
            at += 1
    return "".join(out)


def _brackets(pattern: str, at: int) -> Optional[Tuple[str, int]]:
    """`[…]` as a regular expression, and where the pattern goes on. None if it is not closed or names a class that there is not."""
    at += 1
    negated = pattern[at : at + 1] in ("!", "^")
    at += negated
    parts: List[str] = []
    first = True
    while first or pattern[at : at + 1] != "]":
        first = False
        if pattern.startswith("[:", at):
            end = pattern.find("]", at + 2)
            if end < 0:
                return None
            if pattern[end - 1] == ":" and end - 1 >= at + 2:
                name = pattern[at + 2 : end - 1]
                if name not in _POSIX:
                    return None
                parts.append(_POSIX[name])
                at = end + 1
                continue
        low, at = _one(pattern, at)
        if low is None:
            return None
        if pattern[at : at + 1] == "-" and pattern[at + 1 : at + 2] not in ("", "]"):
            high, at = _one(pattern, at + 1)
            if high is None:
                return None
            parts.append("%s-%s" % (_literal(low), _literal(high)) if low <= high else _literal(low))
        else:
            parts.append(_literal(low))
    inside = "".join(parts)
    if negated:
        return ("[^/%s]" % inside), at + 1
    return ("(?!/)[%s]" % inside if inside else _NEVER), at + 1


def _one(pattern: str, at: int) -> Tuple[Optional[str], int]:
    """A character between brackets, perhaps behind a backslash."""
    if pattern[at : at + 1] == "\\":
        at += 1
    return (pattern[at], at + 1) if at < len(pattern) else (None, at)


def _literal(character: str) -> str:
    return "\\" + character if character in "\\]^-[&~|" else character
