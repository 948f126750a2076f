"""What a bash command line would run: its simple commands, those in substitutions, wrappers and scripts given as text among them.

Small and exact rather than complete: what is not understood for certain makes the line *opaque*, and then no pattern allows it. A word's text has
`UNKNOWN` where only bash knows what will stand there. What a program does with its arguments beyond the wrappers named here isn't looked into.
"""

from __future__ import annotations

import re

from msgspec import Struct

UNKNOWN = "\0"
MAX_CHARS = 100_000
MAX_DEPTH = 12

_SIMPLE_PARAMETER = re.compile(r"\$(?:\{[#!]?\w+\}|\w+|[@*#?$!-])")
_PLAIN_ARITHMETIC = re.compile(r"\$\(\([0-9\s+\-*/%<>=]*\)\)")
_ASSIGNMENT = re.compile(r"\w+\+?=")
_DESCRIPTOR = re.compile(r"(?:\d+|\{\w+\})?(<<<|<<-?|<>|<&|>&|>>|>\||&>>|&>|<|>)(?![(])")
_OPENING = ("if", "then", "elif", "else", "while", "until", "do", "!", "{")
_CLOSING = ("fi", "done", "}")


class Word(Struct, frozen=True):
    """`bare`: nothing in it is quoted."""

    text: str
    bare: bool = True

    @property
    def literal(self) -> bool:
        return UNKNOWN not in self.text


class Simple(Struct, frozen=True):
    """One simple command: assignments before it, its words."""

    assigned: tuple[str, ...]
    words: tuple[Word, ...]


class Redirect(Struct, frozen=True):
    writes: bool
    path: str


class OpaqueError(Exception):
    """Why the line can't be told."""


class Script(Struct):
    """What was found until the end, or until `opaque` says why not further."""

    commands: list[Simple]
    redirects: list[Redirect]
    opaque: str = ""


def parse(text: str, depth: int = 0) -> Script:
    found = Script([], [])
    if len(text) > MAX_CHARS:
        found.opaque = "it is too long"
        return found
    try:
        _Parser(text, found, depth).script()
    except OpaqueError as error:
        found.opaque = str(error)
    return found


class _Parser:
    def __init__(self, text: str, found: Script, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise OpaqueError("it is nested too deep")
        self._text = text
        self._found = found
        self._depth = depth
        self._at = 0
        self._here: list[tuple[str, bool, bool]] = []

    def script(self) -> None:
        self._list("")
        if self._at < len(self._text):
            raise OpaqueError(f"`{self._text[self._at]}` has no beginning")
        if self._here:
            raise OpaqueError("a here-document has no end")

    # ---- lists -------------------------------------------------------------------------------------------------------------

    def _list(self, end: str) -> None:
        """Commands up to `end`, which is not consumed, or the end of the text."""
        while True:
            self._blanks()
            if self._at >= len(self._text):
                if end:
                    raise OpaqueError(f"`{end}` is missing")
                return
            char = self._text[self._at]
            if char == ")":
                return
            if char == "\n":
                self._at += 1
                self._documents()
            elif self._text.startswith(";;", self._at) or self._text.startswith("((", self._at):
                raise OpaqueError(f"`{self._text[self._at : self._at + 2]}`")
            elif char in ";&|" and not self._text.startswith(("&>",), self._at):
                self._at += 1
            elif char == "(":
                self._at += 1
                self._list(")")
                self._close()
            else:
                self._command()

    def _close(self) -> None:
        if not self._text.startswith(")", self._at):
            raise OpaqueError("`)` is missing")
        self._at += 1

    def _command(self) -> None:
        assigned: list[str] = []
        words: list[Word] = []
        started = self._at
        while True:
            self._blanks()
            if self._at >= len(self._text) or self._text[self._at] in "\n;|()" or self._lone_ampersand():
                break
            if self._redirect():
                continue
            begun = self._at
            word = self._word()
            if not words and _ASSIGNMENT.match(word.text):
                if not _ASSIGNMENT.match(self._text, begun):
                    raise OpaqueError("an assignment in quotes")
                assigned.append(word.text)
            elif not words and not assigned and word.bare and self._keyword(word.text):
                return
            else:
                words.append(word)
        if self._text.startswith("(", self._at):
            raise OpaqueError("`(` within a command")
        if self._at == started:
            raise OpaqueError(f"`{self._text[self._at]}`")
        if words or assigned:
            self._found.commands.append(Simple(tuple(assigned), tuple(words)))

    def _lone_ampersand(self) -> bool:
        return self._text.startswith("&", self._at) and not self._text.startswith("&>", self._at)

    def _keyword(self, text: str) -> bool:
        """Whether the word was one of the language's own; another command may begin right behind it."""
        if text in ("case", "select", "function", "coproc", "[["):
            raise OpaqueError(f"`{text}`")
        if text == "for":
            self._for()
            return True
        if text == "time":
            self._blanks()
            if match := re.compile(r"-p(?=\s)").match(self._text, self._at):
                self._at = match.end()
            return True
        return text in _OPENING or text in _CLOSING

    def _for(self) -> None:
        self._blanks()
        name = re.compile(r"[a-z_][a-z0-9_]*").match(self._text, self._at)
        if name is None:
            raise OpaqueError("`for` over a variable that other programs may look at")
        self._at = name.end()
        self._blanks()
        if re.compile(r"in[ \t\n;]").match(self._text, self._at):
            self._at += 2
            while True:
                self._blanks()
                if self._at >= len(self._text) or self._text[self._at] in "\n;":
                    return
                if self._text[self._at] in "&|()<>":
                    raise OpaqueError("`for`")
                self._word()

    # ---- redirections ------------------------------------------------------------------------------------------------------

    def _redirect(self) -> bool:
        match = _DESCRIPTOR.match(self._text, self._at)
        if match is None:
            return False
        self._at = match.end()
        operator = match.group(1)
        self._blanks()
        if self._at >= len(self._text) or self._text[self._at] in "\n;|&()<>":
            raise OpaqueError(f"`{operator}` leads nowhere")
        begun = self._at
        word = self._word()
        if operator in ("<<", "<<-"):
            if not word.literal or "\\" in self._text[begun : self._at]:
                raise OpaqueError("a here-document with an unusual end")
            self._here.append((word.text, word.bare, operator == "<<-"))
        elif operator in ("<&", ">&") and re.fullmatch(r"\d*-?", word.text):
            pass
        elif operator != "<<<":
            self._found.redirects.append(Redirect(operator not in ("<", "<&"), word.text))
        return True

    def _documents(self) -> None:
        """The here-documents that begin on this line."""
        for end, expands, tabs in self._here:
            while True:
                if self._at >= len(self._text):
                    raise OpaqueError("a here-document has no end")
                stop = self._text.find("\n", self._at)
                stop = len(self._text) if stop < 0 else stop
                line = self._text[self._at : stop]
                self._at = min(stop + 1, len(self._text))
                if (line.lstrip("\t") if tabs else line) == end:
                    break
                if expands and ("`" in line or "$(" in line or "${" in line or "$[" in line or line.endswith("\\")):
                    raise OpaqueError("a here-document with substitutions")
        self._here = []

    # ---- words -------------------------------------------------------------------------------------------------------------

    def _blanks(self) -> None:
        """Spaces, continued lines, and a comment if there is one."""
        while self._at < len(self._text):
            if self._text[self._at] in " \t":
                self._at += 1
            elif self._text.startswith("\\\n", self._at):
                self._at += 2
            elif self._text[self._at] == "#" and (self._at == 0 or self._text[self._at - 1] in " \t\n;&|("):
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                return

    def _word(self) -> Word:
        parts: list[str] = []
        bare, begun = True, self._at
        while self._at < len(self._text):
            char = self._text[self._at]
            if char in " \t\n;|)" or self._lone_ampersand() or self._text.startswith("&>", self._at):
                break
            if char == "(":
                break
            if char in "<>":
                if not self._text.startswith(("<(", ">("), self._at):
                    break
                self._at += 2
                parts.append(self._nested(")"))
            elif self._text.startswith(("\\\n ", "\\\n\t"), self._at):
                break
            elif char == "\\":
                bare = False
                parts.append(self._escaped())
            elif char == "'":
                bare = False
                parts.append(self._until("'"))
            elif char == '"':
                bare = False
                self._at += 1
                parts.append(self._double())
            elif char in "$`":
                bare = bare and char == "$"
                parts.append(self._expansion())
            else:
                self._at += 1
                if char in "*?[]{}~" and not self._is_brace(begun):
                    parts.append(UNKNOWN)
                elif char != " " and (char.isspace() or not char.isprintable()):
                    raise OpaqueError(f"the character {char!r}")
                else:
                    parts.append(char)
        text = "".join(parts)
        if "[" in self._text[begun : self._at] and "=" in text:
            raise OpaqueError("an element of an array is assigned")
        return Word(text, bare)

    def _is_brace(self, begun: int) -> bool:
        """A word that is nothing but a brace, or `{}`, stands for itself."""
        word = re.compile(r"[^ \t\n;&|()<>]*").match(self._text, begun)
        return word is not None and word.group() in ("{", "}", "{}", "[", "]")

    def _escaped(self) -> str:
        if self._at + 1 >= len(self._text):
            raise OpaqueError("it ends in `\\`")
        char = self._text[self._at + 1]
        if char == "\n":
            raise OpaqueError("a line that goes on within a word")
        self._at += 2
        return char

    def _until(self, quote: str) -> str:
        end = self._text.find(quote, self._at + 1)
        if end < 0:
            raise OpaqueError(f"a quote ({quote}) has no end")
        text = self._text[self._at + 1 : end]
        self._at = end + 1
        return text

    def _double(self) -> str:
        parts: list[str] = []
        while True:
            if self._at >= len(self._text):
                raise OpaqueError('a quote (") has no end')
            char = self._text[self._at]
            if char == '"':
                self._at += 1
                return "".join(parts)
            if char == "\\" and self._text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\", "\n"):
                parts.append(self._escaped())
            elif char in "$`":
                parts.append(self._expansion(quoted=True))
            else:
                self._at += 1
                parts.append(char)

    def _expansion(self, *, quoted: bool = False) -> str:
        rest = self._text[self._at : self._at + 2]
        if rest.startswith("`"):
            inner = self._backticks()
            self._inner(re.sub(r"\\([`$\\])", r"\1", inner))
            return UNKNOWN
        if match := _PLAIN_ARITHMETIC.match(self._text, self._at):
            self._at = match.end()
            return UNKNOWN
        if self._text.startswith("$((", self._at) or rest == "$[":
            raise OpaqueError("arithmetic")
        if rest == "$(":
            self._at += 2
            return self._nested(")")
        if match := _SIMPLE_PARAMETER.match(self._text, self._at):
            self._at = match.end()
            return UNKNOWN
        if rest == "${":
            raise OpaqueError("an expansion with an operator")
        if rest == "$'" and not quoted:
            raise OpaqueError("a quote with escapes ($')")
        if rest == '$"' and not quoted:
            self._at += 2
            return self._double()
        self._at += 1
        return "$"

    def _backticks(self) -> str:
        at = self._at + 1
        while at < len(self._text):
            if self._text[at] == "\\":
                at += 2
            elif self._text[at] == "`":
                text = self._text[self._at + 1 : at]
                self._at = at + 1
                if '\\"' in text:
                    raise OpaqueError("escaped quotes between backticks")
                return text
            else:
                at += 1
        raise OpaqueError("a backtick has no end")

    def _inner(self, text: str) -> None:
        _Parser(text, self._found, self._depth + 1).script()

    def _nested(self, end: str) -> str:
        """A substitution from here to its end, its commands among the others."""
        if self._here:
            raise OpaqueError("a substitution behind a here-document")
        if self._depth + 1 > MAX_DEPTH:
            raise OpaqueError("it is nested too deep")
        self._depth += 1
        self._list(end)
        self._close()
        if self._here:
            raise OpaqueError("a here-document has no end")
        self._depth -= 1
        return UNKNOWN


def joined(words: tuple[Word, ...]) -> str:
    return " ".join(word.text for word in words)
