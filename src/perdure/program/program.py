"""The protocol of a program, and the five Actions.

A program is pure and synchronous: the same view at the same time gives the same Action, so a driver may ask again whenever a commit was
refused. Its name and version are stored in the session; its own state is rebuilt from the records like everything else.
"""

from __future__ import annotations

from typing import Generic, Literal, Protocol, TypeVar

from msgspec import Struct

from perdure.record.records import Draft, Stored
from perdure.state.state import State

S = TypeVar("S")


class View(Struct, Generic[S], frozen=True):
    """What a program sees: the session's state, and its own."""

    state: State
    own: S


class Ask(Struct, frozen=True):
    """Send the request of the thread's turn, which `turn_started` has committed."""

    thread: str
    purpose: Literal["turn", "compact"] = "turn"


class Calls(Struct, frozen=True):
    """Run these: one mutating call, or adjacent calls of class `none` together."""

    thread: str
    calls: tuple[str, ...]


class Append(Struct, frozen=True):
    """Commit decisions."""

    drafts: tuple[Draft, ...]


class Settle(Struct, frozen=True):
    """Commit a submission's settlement, with what belongs to it before."""

    drafts: tuple[Draft, ...]


class Wait(Struct, frozen=True):
    """Nothing to do before `until` (wall-clock seconds), or before something is admitted. `reason` empty: everything is settled."""

    reason: str = ""
    until: float | None = None


Action = Ask | Calls | Append | Settle | Wait


class Program(Protocol[S]):
    name: str
    version: int

    def initial(self) -> S: ...

    def reduce(self, own: S, stored: Stored) -> S: ...

    def next(self, view: View[S], now: float) -> Action: ...
