"""What `perdure.toml` may say: each key with its type, what is allowed in words, and what it is where nobody says it.

A key may also say when a project's file that nobody trusts may set it: only where that makes things tighter than they are.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, convert

from perdure.config.quantities import AGE, SIZE
from perdure.engine.home import DEFAULT_BUDGET
from perdure.engine.hosting import KINDS
from perdure.model.catalog import THINKING
from perdure.program.hooks import Hook
from perdure.program.permissions import VERDICTS, Rule, Verdict
from perdure.space.launch import Custody
from perdure.spaced.engine import CHOICES

Tightens = Callable[[Any, Any], bool]
"""Whether the first value leaves less room than the second, which holds without it."""

Word = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]


class Key(Struct, frozen=True):
    """`joins`: what the user's file and the project's say both hold, the user's first. `user_only`: no project's to say."""

    name: str
    type: Any
    allowed: str
    default: Any = None
    tightens: Tightens | None = None
    joins: bool = False
    user_only: bool = False


def _fewer(value: float, held: float | None) -> bool:
    return held is None or value <= held


def _strict(value: Any, held: Any) -> bool:
    return bool(value in (held, "strict"))


def _sandbox(value: Any, held: Any) -> bool:
    return bool(value in (held, "sandbox"))


def _off(value: Any, held: Any) -> bool:
    return value is False


def _proven(value: Any, held: Any) -> bool:
    return bool(value in (held, "pidns"))


def _stricter(value: Any, held: Any) -> bool:
    return VERDICTS.index(value) <= VERDICTS.index(held)


def _always(value: Any, held: Any) -> bool:
    return True


def _one_of(words: tuple[str, ...]) -> str:
    return "one of " + ", ".join(f'"{word}"' for word in words)


_CALLS = 'a list of calls, as "bash(git status *)", "edit(src/**)", "read"'
_HOOKS = 'a list of commands ("./check.sh") and tables ({ command or python, timeout_s, tools })'

KEYS = {
    key.name: key
    for key in (
        Key(
            "model", Word | tuple[Word, ...], 'a model\'s name, as "anthropic:MODEL", or a list of them, the first is asked first'
        ),
        Key(
            "base_url",
            Annotated[str, Meta(pattern="^https?://.")],
            'a URL, as "https://HOST/v1", beside the `model` that it is for',
        ),
        Key("thinking", Literal[THINKING], _one_of(THINKING), tightens=_always),
        Key("context_tokens", Count, "a whole number from 1: what the model takes in one request", tightens=_fewer),
        Key("space", Literal[KINDS], _one_of(KINDS), "host", tightens=_sandbox),
        Key("network", bool, "true or false", False, tightens=_off),
        Key("bind", tuple[Word, ...], "a list of paths", ()),
        Key("custody", Custody, _one_of(get_args(Custody)), "auto", tightens=_proven),
        Key("capture", Literal[CHOICES], _one_of(CHOICES), "auto", tightens=_strict),
        Key("budget.turns", Count, "a whole number from 1", tightens=_fewer),
        Key("budget.tokens", Count, "a whole number from 1", tightens=_fewer),
        Key("budget.seconds", Seconds, "a number above 0", tightens=_fewer),
        Key("budget.failures", Count, "a whole number from 1", DEFAULT_BUDGET.failures, tightens=_fewer),
        Key("permissions.allow", tuple[Word, ...], _CALLS, (), joins=True),
        Key("permissions.ask", tuple[Word, ...], _CALLS, (), tightens=_always, joins=True),
        Key("permissions.deny", tuple[Word, ...], _CALLS, (), tightens=_always, joins=True),
        Key("permissions.default", Verdict, _one_of(VERDICTS), "allow", tightens=_stricter),
        Key("hooks.before_call", tuple[Word | Hook, ...], _HOOKS, (), joins=True),
        Key("hooks.after_call", tuple[Word | Hook, ...], _HOOKS, (), joins=True),
        Key("hooks.before_request", tuple[Word | Hook, ...], _HOOKS, (), joins=True),
        Key("hooks.on_answer", tuple[Word | Hook, ...], _HOOKS, (), joins=True),
        Key("retention.older_than", Annotated[str, Meta(pattern=AGE)], 'a time, as "30d", "12h"', user_only=True),
        Key("retention.keep_bytes", Annotated[str, Meta(pattern=SIZE)], 'a size, as "500MB", "5GiB"', user_only=True),
        Key("skills.folders", tuple[Word, ...], "a list of paths", (), joins=True),
    )
}
TABLES = tuple(dict.fromkeys(name.partition(".")[0] for name in KEYS if "." in name))


def checked(key: Key, value: Any) -> Any:
    """The value as its type. ValidationError tells where in it, as `$[0].name`."""
    found = convert(value, key.type, strict=True)
    if key.name.startswith("hooks."):
        return tuple(Hook(command=hook) if isinstance(hook, str) else hook for hook in found)
    return found


def written(value: Any) -> str:
    """A value as `perdure.toml` would have it."""
    match value:
        case Rule():
            return written(str(value))
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case list() | tuple():
            return "[" + ", ".join(map(written, value)) + "]"
        case dict():
            return "{ " + ", ".join(f"{name} = {written(each)}" for name, each in value.items()) + " }" if value else "{}"
        case Hook(command=command, python="", timeout_s=30.0, tools=()):
            return written(command)
        case Hook():
            parts = {name: getattr(value, name) for name in value.__struct_fields__}
            return written({name: each for name, each in parts.items() if each})
        case _:
            return str(value)
