"""Hooks: what people have run at four points of a session, and what these are told and can answer.

    before_call     a call is about to be decided       may deny it, rewrite its arguments, or allow it without asking a person
    before_request  the model is about to be asked      told
    after_call      a call has its outcome              told
    on_answer       a prompt was answered               told

A hook is a command, which reads its struct as JSON and may print its answer as JSON, or an importable function, which gets the struct and may return
a `Ruling`. Packages give functions names as entry points of the group `perdure.hooks`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

GROUP = "perdure.hooks"
POINTS = ("before_call", "after_call", "before_request", "on_answer")


class Hook(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """`command` for a shell, or `python`, the name of an entry point or `module:function`. `tools`: for calls of these alone."""

    command: str = ""
    python: str = ""
    timeout_s: Annotated[float, Meta(gt=0)] = 30.0
    tools: tuple[Annotated[str, Meta(min_length=1)], ...] = ()

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.python):
            raise ValueError("a hook has either `command` or `python`")

    @property
    def name(self) -> str:
        return self.command or self.python


class Hooks(Struct, frozen=True):
    """In the order in which they run. The first that denies a call is the last that is asked."""

    before_call: tuple[Hook, ...] = ()
    after_call: tuple[Hook, ...] = ()
    before_request: tuple[Hook, ...] = ()
    on_answer: tuple[Hook, ...] = ()

    def __bool__(self) -> bool:
        return any(getattr(self, point) for point in POINTS)


class BeforeCall(Struct, frozen=True, tag="before_call", tag_field="hook"):
    session: str
    thread: str
    call: str
    tool: str
    args: dict[str, Any]


class AfterCall(Struct, frozen=True, tag="after_call", tag_field="hook"):
    """`text` is what the model sees of the result; `changed` are the first of the paths that the call changed."""

    session: str
    thread: str
    call: str
    tool: str
    args: dict[str, Any]
    outcome: str
    text: str
    exit_code: int | None = None
    changed: tuple[str, ...] = ()


class BeforeRequest(Struct, frozen=True, tag="before_request", tag_field="hook"):
    session: str
    thread: str
    turn: int
    attempt: int
    model: str


class OnAnswer(Struct, frozen=True, tag="on_answer", tag_field="hook"):
    session: str
    thread: str
    submission: str
    text: str


Event = BeforeCall | AfterCall | BeforeRequest | OnAnswer


class Ruling(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a `before_call` hook answers. Without a decision and arguments it has nothing to say. With arguments the call is made with those."""

    decision: Literal["allow", "deny"] | None = None
    reason: str = ""
    args: dict[str, Any] | None = None
