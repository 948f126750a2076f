"""On which line of a TOML text each key and each element of an array stands: tomllib does not say.

The text has been read by tomllib before, so it is valid TOML (toml.io/en/v1.0.0), and what is left to do is to step over values.
"""

from __future__ import annotations

import re
import tomllib

Place = tuple[str | int, ...]

_BLANK = re.compile(r"(?:[ \t\n]+|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_LITERAL = re.compile(r"'[^'\n]*'")
_LONG = re.compile(r'"""(?:[^\\]|\\.)*?"""(?:"{0,2})' + "|" + r"'''.*?'''(?:'{0,2})", re.DOTALL)
_SCALAR = re.compile(r"[^,\]}#\n]+")


def lines(text: str) -> dict[Place, int]:
    """Line numbers from 1, by path: `("budget", "turns")`, `("hooks", "before_call", 0, "command")`. `text` has no carriage returns."""
    scanner = _Scanner(text)
    scanner.document()
    return scanner.found


class _Scanner:
    def __init__(self, text: str) -> None:
        self.found: dict[Place, int] = {}
        self._text = text
        self._at = 0
        self._line, self._counted = 1, 0
        self._tables: dict[Place, int] = {}

    def document(self) -> None:
        table: Place = ()
        while self._more():
            if not self._text.startswith("[", self._at):
                self._pair(table)
                continue
            many = self._text.startswith("[[", self._at)
            self._at += 2 if many else 1
            table = self._key((), element=many)
            self._at += 2 if many else 1

    def _more(self) -> bool:
        """Step over blanks and remarks; whether anything follows."""
        found = _BLANK.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._at < len(self._text)

    def _pair(self, table: Place) -> None:
        path = self._key(table)
        self._at = self._text.index("=", self._at) + 1
        self._value(path)

    def _key(self, table: Place, *, element: bool = False) -> Place:
        """A dotted key. Each of its parts gets a line; a part that is an array of tables means its newest element."""
        path = table
        while True:
            self._more()
            path = (*path, self._word())
            self._note(path)
            self._more()
            last = not self._text.startswith(".", self._at)
            if last and element:
                self._tables[path] = self._tables.get(path, -1) + 1
            if path in self._tables:
                path = (*path, self._tables[path])
                self._note(path)
            if last:
                return path
            self._at += 1

    def _word(self) -> str:
        for pattern in (_BARE_KEY, _BASIC, _LITERAL):
            if found := pattern.match(self._text, self._at):
                self._at = found.end()
                word = found.group()
                return word if pattern is _BARE_KEY else str(tomllib.loads(f"key = {word}")["key"])
        raise AssertionError(f"no key at {self._at} of a text that was read")

    def _value(self, path: Place) -> None:
        self._more()
        self._note(path)
        if self._text.startswith("[", self._at):
            self._items("]", path)
        elif self._text.startswith("{", self._at):
            self._items("}", path)
        else:
            for pattern in (_LONG, _BASIC, _LITERAL, _SCALAR):
                if found := pattern.match(self._text, self._at):
                    self._at = found.end()
                    return

    def _items(self, closing: str, path: Place) -> None:
        self._at += 1
        index = 0
        while self._more() and not self._text.startswith(closing, self._at):
            if closing == "}":
                self._pair(path)
            else:
                self._value((*path, index))
                index += 1
            self._more()
            self._at += self._text.startswith(",", self._at)
        self._at += 1

    def _note(self, path: Place) -> None:
        """The line where the path is named first."""
        if path not in self.found:
            self._line += self._text.count("\n", self._counted, self._at)
            self._counted = self._at
            self.found[path] = self._line
