"""Rules: which calls may be made, which are asked about first, and which are not made.

    [permissions]
    deny = ["bash(rm -rf *)", "write(.env)"]      wins over
    ask = ["bash(git push *)", "edit(deploy/**)"]  wins over
    allow = ["bash(git *)", "read"]                wins over
    default = "ask"

An entry is a tool, or a tool with a pattern in parentheses: of a command for `bash`, of a path for the file tools. Deciding is pure. Rules on commands are
against mistakes: a program can do anything that it is able to. The boundary is the sandbox.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal

import msgspec
from msgspec import Struct

from perdure.program.matching import Line, analysed, may_mean, means
from perdure.program.shell import UNKNOWN, Redirect
from perdure.program.tools import Tool
from perdure.record.errors import UsageError
from perdure.record.parts import Digest

Verdict = Literal["allow", "ask", "deny"]
VERDICTS: tuple[Verdict, ...] = ("deny", "ask", "allow")
"""The strictest first."""

PATH_TOOLS = ("read", "write", "edit", "list", "search")
_ENTRY = re.compile(r"([A-Za-z0-9_.:*-]+)(?:\((.+)\))?", re.DOTALL)
_NOWHERE = ("/dev/null", "/dev/stdout", "/dev/stderr", "/dev/stdin", "/dev/tty")
_MOVING = ("cd", "pushd", "popd")


class Rule(Struct, frozen=True):
    """`where` says which file and line it is of. `pattern` None: whatever the tool is called with."""

    verdict: Verdict
    tool: str
    pattern: str | None = None
    where: str = ""

    def __str__(self) -> str:
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"

    def is_for(self, tool: str) -> bool:
        return means(self.tool, tool)


class Rules(Struct, frozen=True):
    """Without any, everything is allowed."""

    rules: tuple[Rule, ...] = ()
    default: Verdict = "allow"

    def told(self) -> tuple[str, ...]:
        """As a log remembers them; empty where nothing is configured."""
        if self == Rules():
            return ()
        return (*(f"{rule.verdict} {rule}" for rule in self.rules), f"default {self.default}")


def recalled(told: Iterable[str]) -> Rules:
    """The rules that a log remembers (`Rules.told`)."""
    rules, default = [], "allow"
    for verdict, _, entry in (text.partition(" ") for text in told):
        if verdict == "default":
            default = entry
        else:
            rules.append(_rule(verdict, entry, "recorded"))  # type: ignore[arg-type]
    return Rules(tuple(rules), default)  # type: ignore[arg-type]


class Decision(Struct, frozen=True):
    """`rule` is the deciding entry, or in words what else decided."""

    verdict: Verdict
    rule: str = ""
    where: str = ""


def parse(table: Mapping[str, Any], where: str = "permissions") -> Rules:
    """The rules of a `[permissions]` table. UsageError names the entry that is wrong and says what would be right."""
    if unknown := sorted(set(table) - {*VERDICTS, "default"}):
        raise UsageError(f"{where}: there is no `{unknown[0]}` in permissions; there are allow, ask, deny and default")
    default = table.get("default", "allow")
    if default not in VERDICTS:
        raise UsageError(f'{where}: permissions.default is {default!r}; it can be "allow", "ask" or "deny"')
    rules: list[Rule] = []
    for verdict in VERDICTS:
        entries = table.get(verdict, ())
        if not isinstance(entries, list | tuple):
            raise UsageError(f'{where}: permissions.{verdict} is a list of entries, as ["bash(git status *)", "read"]')
        rules += [_rule(verdict, entry, where) for entry in entries]
    return Rules(tuple(rules), default)


def _rule(verdict: Verdict, entry: object, where: str) -> Rule:
    match = _ENTRY.fullmatch(entry.strip()) if isinstance(entry, str) else None
    if match is None:
        raise UsageError(
            f"{where}: {entry!r} in permissions.{verdict} is no rule; write a tool, or a tool with a pattern: "
            '"write", "bash(npm test)", "bash(git status *)", "edit(src/**)"'
        )
    tool, pattern = match.groups()
    if pattern is not None and tool not in ("bash", *PATH_TOOLS):
        known = ", ".join(PATH_TOOLS)
        raise UsageError(
            f'{where}: {entry!r} in permissions.{verdict}: only bash (a command) and {known} (a path) take a pattern; write "{tool}"'
        )
    return Rule(verdict, tool, pattern.strip() if pattern else None, where)


# ---- what is decided about ---------------------------------------------------------------------------------------------------


def subject(tool: str, args: Mapping[str, Any]) -> str:
    """What of a call a word of `always` is about: the command, the path, or all arguments."""
    if tool == "bash":
        return str(args.get("command", ""))
    if tool in PATH_TOOLS:
        return posixpath.normpath(str(args.get("path", ".")))
    return msgspec.json.encode(dict(args), order="deterministic").decode()


def digest(tool: Tool, args: Mapping[str, Any]) -> Digest:
    """What an answer is an answer to: the tool as it is, and the arguments."""
    told = (tool.spec(), tool.effect, tool.place, tool.function or "", dict(args))
    return hashlib.sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()


# ---- deciding ----------------------------------------------------------------------------------------------------------------


def decide(rules: Rules, tool: str, args: Mapping[str, Any], root: str = "/") -> Decision:
    """What the rules say to a call. Deny wins over ask, ask over allow, and all of them over the default. `root` is the working directory."""
    held = [rule for rule in rules.rules if rule.is_for(tool)]
    if tool == "bash":
        return _command(rules, held, str(args.get("command", "")), root)
    path = _normal(str(args.get("path", ".")), root) if tool in PATH_TOOLS else ""
    for verdict in VERDICTS:
        for rule in held:
            if rule.verdict == verdict and (rule.pattern is None or _path_means(rule, path)):
                return Decision(verdict, str(rule), rule.where)
    return Decision(rules.default)


def _command(rules: Rules, held: list[Rule], command: str, root: str) -> Decision:
    if rules == Rules():
        return Decision("allow")
    line = analysed(command)
    redirected = [_redirected(rules, line, redirect, root) for redirect in line.redirects]
    for verdict in ("deny", "ask"):
        for rule in held:
            if rule.verdict == verdict and (rule.pattern is None or _runs(rule.pattern, line, command)):
                return Decision(rule.verdict, str(rule), rule.where)
        for decision in redirected:
            if decision.verdict == verdict and decision.rule:
                return decision
    exact = next((rule for rule in held if rule.verdict == "allow" and rule.pattern == command.strip()), None)
    if exact is None and (doubt := _doubt(held, rules, line)):
        return doubt
    if exact or (exact := next((rule for rule in held if rule.verdict == "allow" and rule.pattern is None), None)):
        return Decision("allow", str(exact), exact.where)
    if _all_allowed(held, line) and all(decision.verdict == "allow" for decision in redirected):
        used = [rule for rule in held if any(_allows(rule, found.text) for found in line.commands)]
        return Decision("allow", ", ".join(dict.fromkeys(map(str, used))), used[0].where)
    return Decision(rules.default)


def _runs(pattern: str, line: Line, command: str) -> bool:
    """Whether some command of the line is for certain one that is meant."""
    if means(pattern, command.strip()):
        return True
    return any(found.certain and any(means(pattern, text) for text in (found.text, *found.others)) for found in line.commands)


def _doubt(held: list[Rule], rules: Rules, line: Line) -> Decision | None:
    """Where nobody can tell whether a command is one that is denied or asked about, a person is asked."""
    patterns = [rule for rule in held if rule.verdict != "allow" and rule.pattern is not None]
    verdict = min("ask", rules.default, key=VERDICTS.index)
    for rule in patterns:
        assert rule.pattern is not None
        if any(may_mean(rule.pattern, text) for found in line.commands for text in (found.text, *found.others)):
            return Decision(verdict, f"{rule}, which this may be", rule.where)
    if line.opaque and patterns:
        return Decision(verdict, f"{patterns[0]}, and nobody can tell what this runs: {line.opaque}", patterns[0].where)
    return None


def _all_allowed(held: list[Rule], line: Line) -> bool:
    needed = [found for found in line.commands if found.needed]
    if line.opaque or not needed:
        return False
    return all(any(_allows(rule, found.text) for rule in held) for found in needed)


def _allows(rule: Rule, text: str) -> bool:
    return rule.verdict == "allow" and rule.pattern is not None and means(rule.pattern, text)


def _redirected(rules: Rules, line: Line, redirect: Redirect, root: str) -> Decision:
    """A redirection is a `write` or a `read` of its file."""
    if redirect.path in _NOWHERE:
        return Decision("allow")
    tool = "write" if redirect.writes else "read"
    moved = any(found.text.split(" ")[0] in _MOVING for found in line.commands)
    if UNKNOWN not in redirect.path and not (moved and not redirect.path.startswith("/")):
        return decide(rules, tool, {"path": redirect.path}, root)
    held = [rule for rule in rules.rules if rule.is_for(tool)]
    strict = next((rule for verdict in VERDICTS[:2] for rule in held if rule.verdict == verdict), None)
    if strict is not None:
        verdict = strict.verdict if strict.pattern is None else min("ask", rules.default, key=VERDICTS.index)
        return Decision(verdict, f"{strict}, which a redirection may be", strict.where)
    whole = any(rule.verdict == "allow" and rule.pattern is None for rule in held)
    return Decision("allow" if whole else rules.default)


# ---- paths -------------------------------------------------------------------------------------------------------------------


def _normal(path: str, root: str) -> str:
    """Relative to the root where it lies inside, else absolute."""
    whole = posixpath.normpath(posixpath.join(root, path))
    base = posixpath.normpath(root).rstrip("/")
    if whole == base:
        return "."
    return whole[len(base) + 1 :] if whole.startswith(base + "/") else whole


def _path_means(rule: Rule, path: str) -> bool:
    """As in a .gitignore: a pattern without a slash means a name at any depth, `**` any folders, and a folder means what is in it.

    What lies outside of the root is meant by a pattern that begins with `//`; to deny and ask also by one of a name.
    """
    assert rule.pattern is not None
    outside = path.startswith("/")
    if rule.pattern.startswith("//"):
        return outside and _glob(rule.pattern[2:]).fullmatch(path[1:]) is not None
    if outside and (rule.verdict == "allow" or "/" in rule.pattern.rstrip("/")):
        return False
    pattern = rule.pattern.removeprefix("./").rstrip("/") or "**"
    if "/" not in pattern and pattern not in ("**", "."):
        return any(_glob(pattern).fullmatch(name) for name in path.split("/"))
    if pattern == "**":
        return True
    return _glob(pattern.removeprefix("/")).fullmatch(path) is not None


@cache
def _glob(pattern: str) -> re.Pattern[str]:
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            parts.append("(?:.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            parts.append(".*")
            at += 2
        else:
            parts.append({"*": "[^/]*", "?": "[^/]"}.get(pattern[at]) or re.escape(pattern[at]))
            at += 1
    return re.compile("".join(parts) + "(?:/.*)?", re.DOTALL)
