"""Whether a command line is one that a pattern means.

A line is taken apart (`perdure.program.shell`); programs that run others (`env`, `timeout`, `sh -c`, `find -exec` …) are looked through. Each command
that was found is *certain* or one that *may* run. What can't be told makes the line opaque.
"""

from __future__ import annotations

import posixpath
import re
from functools import cache

from msgspec import Struct

from perdure.program.shell import UNKNOWN, OpaqueError, Redirect, Simple, Word, joined, parse

SHELLS = frozenset(("sh", "bash", "dash", "zsh", "ksh", "ash", "rbash", "fish", "csh", "tcsh"))
TRANSPARENT = frozenset(("nohup", "setsid", "nice", "timeout", "env", "stdbuf", "command", "builtin"))
"""They do nothing but run another command: allowed with it."""

_OPTIONS: dict[str, tuple[str, str, int]] = {
    "nohup": ("", "", 0),
    "setsid": ("cfw", "", 0),
    "nice": ("", "n", 0),
    "timeout": ("v", "ks", 1),
    "env": ("", "", 0),
    "stdbuf": ("", "ioe", 0),
    "command": ("", "", 0),
    "builtin": ("", "", 0),
    "exec": ("cl", "a", 0),
    "sudo": ("nEHkS", "ugpC", 0),
    "doas": ("n", "u", 0),
    "ionice": ("t", "cn", 0),
    "xargs": ("0rtx", "nPLsda", 0),
}
"""Of wrappers: their options without and with an argument, and how many operands stand before the command."""

_UNKNOWN_WRAPPERS = frozenset(
    (  # noqa: SIM905
        "arch at batch busybox bwrap caffeinate catchsegv chroot chrt daemonize dbus-run-session eatmydata entr expect fakeroot firejail flock gdb gosu "
        "linux32 linux64 ltrace nsenter numactl parallel pipenv pkexec prlimit proxychains rlwrap runuser script setarch setpriv ssh "
        "start-stop-daemon strace su systemd-run taskset time torsocks toybox unbuffer unshare watch xvfb-run"
    ).split()
)
_STRANGE = frozenset(
    ("trap", "alias", "hash", "enable", "bind", "mapfile", "readarray", "complete", "compgen", "let", "source", ".")
)
_EVALUATING = frozenset(
    (
        "declare",
        "typeset",
        "local",
        "readonly",
        "export",
        "test",
        "[",
        "printf",
        "unset",
        "read",
        "wait",
        "set",
        "shopt",
        "getopts",
    )
)
"""Builtins that evaluate what stands in the brackets of a variable's name."""

_RUN_BY_SHELLS = frozenset(("BASH_ENV", "ENV", "PROMPT_COMMAND", "PS0", "PS1", "PS2", "PS4", "SHELLOPTS", "BASHOPTS"))
"""Variables whose text a shell runs, or that say how it runs everything."""

MAX_WORDS = 400
MAX_COMMANDS = 2000
MAX_DEPTH, GUESS_DEPTH = 6, 3
"""How deep scripts in scripts are read, and how deep what only may be one."""


class Found(Struct, frozen=True):
    """`text` and `others` are ways to write it. `needed`: the line is allowed only where a pattern allows this one."""

    text: str
    others: tuple[str, ...] = ()
    needed: bool = True
    certain: bool = True


class Line(Struct, frozen=True):
    commands: tuple[Found, ...]
    redirects: tuple[Redirect, ...]
    opaque: str = ""


def analysed(text: str) -> Line:
    reading = _Reading()
    try:
        reading.script(text, 0)
    except OpaqueError as error:
        reading.opaque = reading.opaque or str(error)
    return Line(tuple(reading.found), tuple(reading.redirects), reading.opaque)


class _Reading:
    def __init__(self) -> None:
        self.found: list[Found] = []
        self.redirects: list[Redirect] = []
        self.opaque = ""

    def script(self, text: str, depth: int, *, certain: bool = True) -> None:
        """OpaqueError only for what is too deep; everything else goes on, marked."""
        if depth > MAX_DEPTH:
            raise OpaqueError("it is nested too deep")
        script = parse(text)
        if certain:
            self.opaque = self.opaque or script.opaque
            self.redirects += script.redirects
        for simple in script.commands:
            self._simple(simple, depth, certain)

    def _unclear(self, why: str, certain: bool) -> None:
        if certain:
            self.opaque = self.opaque or why

    def _simple(self, simple: Simple, depth: int, certain: bool) -> None:
        words = simple.words
        for name, _, value in (each.partition("=") for each in simple.assigned):
            if name.rstrip("+") in _RUN_BY_SHELLS or re.search(r"`|\$[({[]", value):
                self._unclear(f"what is assigned to `{name}` may be run", certain)
        if len(words) > MAX_WORDS:
            self._unclear("it has too many words", certain)
            words = words[:MAX_WORDS]
        if not words:
            self._add(Found(" ".join(simple.assigned), certain=certain))
            return
        self._words(words, depth, certain, before=" ".join(simple.assigned))

    def _words(self, words: tuple[Word, ...], depth: int, certain: bool, before: str = "", needed: bool = True) -> None:
        name = posixpath.basename(words[0].text)
        if not words[0].literal or not name:
            self._unclear("which program runs is not known before it runs", certain)
        text = joined(words)
        bare = joined((Word(name), *words[1:]))
        full = f"{before} {text}" if before else text
        others = tuple({text, bare} - {full})
        inner = self._inner(name, words)
        transparent = name in TRANSPARENT and words[0].text == name and not before and bool(inner)
        script = _script_of(name, words)
        is_eval = name == "eval"
        looked_into = transparent or (
            script is not None and script.literal and not before and words[0].text == name and not _startup(words)
        )
        self._add(Found(full, others, needed=needed and not looked_into and not (is_eval and not before), certain=certain))
        if name in SHELLS:
            self._shell(words, script, depth, certain)
        elif is_eval:
            rest = Word(joined(words[1:]))
            if not rest.literal:
                self._unclear("`eval` of what only the shell knows", certain)
            self.script(rest.text, depth + 1, certain=certain)
        elif name in _STRANGE:
            self._unclear(f"`{name}`", certain)
            self._maybe(words, depth)
        elif name in _EVALUATING and any(
            re.search(r"[`\[]|\$[({]", word.text) for word in words[1:] if word.text not in ("[", "]")
        ):
            self._unclear(f"`{name}` of a computed name", certain)
        elif name in _OPTIONS or name in _UNKNOWN_WRAPPERS or name == "find":
            self._wrapped(name, words, inner, depth, certain)

    def _wrapped(
        self, name: str, words: tuple[Word, ...], inner: tuple[tuple[Word, ...], ...] | None, depth: int, certain: bool
    ) -> None:
        if inner is None:
            self._unclear(f"what `{name}` runs here is not known", certain)
        for each in inner or ():
            if name == "xargs" and posixpath.basename(each[0].text) in (*SHELLS, *_OPTIONS, *_UNKNOWN_WRAPPERS, "eval", "find"):
                self._unclear("what `xargs` runs here is not known", certain)
            self._words(each, depth + 1, certain)
        if inner is None or name == "find":
            self._maybe(words if name != "find" or inner is None else (), depth)

    def _maybe(self, words: tuple[Word, ...], depth: int) -> None:
        """Whatever stands behind a wrapper that is not understood may be a command, or a script in one word."""
        for i in range(1, len(words)):
            rest = words[i:]
            name = posixpath.basename(rest[0].text)
            self._add(Found(joined(rest), (joined((Word(name), *rest[1:])),), needed=False, certain=False))
            script = _script_of(name, rest)
            texts = [rest[0].text, rest[0].text[2:], rest[0].text.partition("=")[2]] + ([script.text] if script else [])
            for text in texts:
                if text and depth < GUESS_DEPTH:
                    self.script(text, depth + GUESS_DEPTH, certain=False)

    def _shell(self, words: tuple[Word, ...], script: Word | None, depth: int, certain: bool) -> None:
        if script is None:
            if len(words) == 1 or any(word.text.startswith(("-", "+")) or not word.literal for word in words[1:2]):
                self._unclear(f"what `{words[0].text}` runs is not in the line", certain)
            return
        if not script.literal:
            self._unclear("a script that only the shell knows", certain)
        self.script(script.text, depth + 1, certain=certain)

    def _inner(self, name: str, words: tuple[Word, ...]) -> tuple[tuple[Word, ...], ...] | None:
        """The commands that a wrapper runs; None where that isn't plain. Empty where it runs none."""
        if name == "find":
            return _executed(words)
        if name == "command" and len(words) > 1 and words[1].text in ("-v", "-V"):
            return ()
        if (name == "env" and len(words) == 1) or (name == "exec" and len(words) == 1):
            return ()
        if name not in _OPTIONS:
            return None
        flags, valued, operands = _OPTIONS[name]
        at = 1
        while at < len(words) and words[at].text.startswith("-"):
            option = words[at]
            if option.text == "--":
                at += 1
                break
            if not option.literal or not re.fullmatch(r"-[A-Za-z0-9]+", option.text):
                return None
            letters = option.text[1:]
            if all(letter in flags for letter in letters):
                at += 1
            elif letters[0] in valued:
                at += 1 if len(letters) > 1 else 2
            else:
                return None
        rest = words[at + operands :]
        if any(not word.literal for word in words[1 : at + operands]) or not rest:
            return None
        if name in ("env", "sudo", "doas") and "=" in rest[0].text:
            return None
        return (rest,)

    def _add(self, found: Found) -> None:
        self.found.append(found)
        if len(self.found) > MAX_COMMANDS:
            raise OpaqueError("it has too many commands")


def _startup(words: tuple[Word, ...]) -> bool:
    """Whether a shell reads more than the script it is given: as a login or interactive one."""
    return any("i" in word.text for word in words[1:-1] if word.text.startswith("-"))


def _script_of(name: str, words: tuple[Word, ...]) -> Word | None:
    """The text behind a shell's `-c`."""
    if name not in SHELLS:
        return None
    given = False
    for at in range(1, len(words)):
        text = words[at].text
        if text.startswith("--") and len(text) > 2:
            return None
        if text[:1] in ("-", "+") and len(text) > 1 and text != "--":
            if re.search("[oO]", text):
                return None
            given = given or ("c" in text and text[0] == "-")
        elif text == "--" or text == "-":
            continue
        else:
            return words[at] if given else None
    return None


def _executed(words: tuple[Word, ...]) -> tuple[tuple[Word, ...], ...] | None:
    found: list[tuple[Word, ...]] = []
    at = 1
    while at < len(words):
        if words[at].text in ("-exec", "-execdir", "-ok", "-okdir"):
            end = next((i for i in range(at + 1, len(words)) if words[i].text in (";", "+")), None)
            if end is None or end == at + 1:
                return None
            found.append(tuple(Word(word.text.replace("{}", UNKNOWN)) for word in words[at + 1 : end]))
            at = end
        elif not words[at].literal and words[at].text.startswith((UNKNOWN, "-")):
            return None
        at += 1
    return tuple(found)


# ---- patterns --------------------------------------------------------------------------------------------------------------


def means(pattern: str, command: str) -> bool:
    """Whether the pattern means the command for certain. `*` is any text; a last ` *` is also none. What is not known only `*` means."""
    return _compiled(pattern).fullmatch(command) is not None


def may_mean(pattern: str, command: str) -> bool:
    """Whether it might, whatever stands where only the shell knows."""
    if UNKNOWN not in command:
        return means(pattern, command)
    patterns = [pattern, pattern[:-2]] if pattern.endswith(" *") else [pattern]
    return any(_meet(each, command) for each in patterns)


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    ending = r"(?: .*)?" if pattern.endswith(" *") else ""
    body = pattern[:-2] if ending else pattern
    return re.compile("".join(".*" if char == "*" else re.escape(char) for char in body) + ending, re.DOTALL)


def _meet(pattern: str, command: str) -> bool:
    """Whether two texts with wildcards (`*` and UNKNOWN) have a text in common."""
    row = [True] + [False] * len(command)
    for j, char in enumerate(command):
        row[j + 1] = row[j] and char == UNKNOWN
    for star in pattern:
        before, row = row, [row[0] and star == "*"] + [False] * len(command)
        for j, char in enumerate(command):
            if star == "*" or char == UNKNOWN:
                row[j + 1] = before[j + 1] or row[j]
            else:
                row[j + 1] = before[j] and star == char
    return row[-1]
