"""What becomes of a call that something cut off: one pure function over what is known.

The table is the design's (docs/architecture.md has it for readers). It reads what `call_started` recorded (class, policy, base image, exclude
rules), never today's configuration: an upgrade between crash and resume must not make a call more daring than it was.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from perdure.record.records import CallStarted, Incarnation
from perdure.space.space import Status, Traits

Evidence = Literal["lost", "ended", "running", "never_began", "survivors"]

MAX_RERUNS = 2
"""How often a command that was undone may be run again by itself, in a hermetic Space."""


class Adopt(Struct, frozen=True):
    """It ended, or runs: wait for its outcome and take that over."""


class Start(Struct, frozen=True):
    """Nothing happened: start it, as the next attempt."""


class Undo(Struct, frozen=True):
    """Take back what it changed, then start it again or end it `interrupted`."""

    rerun: bool


class Unknown(Struct, frozen=True):
    """It may have happened and can't be undone: capture what is there, tell the model, end `unknown`."""

    why: str


class Stay(Struct, frozen=True):
    """Processes may still act. Wait, naming them."""


Decision = Adopt | Start | Undo | Unknown | Stay


class Known(Struct, frozen=True):
    """What is known of the Space that a call was started in.

    `status` is the ledger's word on its key, None where there is no ledger for it; `position` the ledger's present position, `logged`
    the greatest one that the log has seen; `survivors` says that processes are left whose death can't be proven.
    """

    status: Status | None
    incarnation: Incarnation | None
    position: int
    logged: int
    traits: Traits
    survivors: bool = False


def classify(started: CallStarted, known: Known) -> Evidence:
    """The evidence, in the order in which it counts."""
    if known.survivors:
        return "survivors"
    if not started.ledgered or known.status is None or known.incarnation is None:
        return "lost"
    if started.incarnation != known.incarnation or known.position < known.logged:
        return "lost"
    match known.status.state:
        case "lost":
            return "lost"
        case "ended":
            return "lost" if known.status.cause in ("fenced", "shutdown") else "ended"
        case "running":
            return "running"
        case "none":
            return "never_began" if known.traits.rollback_free else "lost"


def decide(started: CallStarted, evidence: Evidence, *, command: bool, reruns: int, undo: bool = True) -> Decision:
    """What to do. `command` tells an arbitrary command from a file tool; `reruns` counts earlier undone attempts; `undo` False: never."""
    match evidence:
        case "survivors":
            return Stay()
        case "ended" | "running":
            return Adopt()
        case "never_began":
            return Start()
        case "lost":
            return _lost(started, command=command, reruns=reruns, undo=undo)


def _lost(started: CallStarted, *, command: bool, reruns: int, undo: bool) -> Decision:
    if started.effect == "none":
        return Start()
    if not started.ledgered:
        if started.effect == "idempotent":
            return Start()
        return Unknown("it acts outside of the workspace, where nothing can be taken back")
    if not undo or started.policy.get("undo") == "never":
        return Unknown("this tool's changes are never taken back")
    if started.base is None:
        return Unknown("no image of the workspace before it is known")
    if started.effect == "idempotent":
        return Undo(rerun=True)
    if started.effect == "external":
        return Undo(rerun=False)
    if not command:
        return Undo(rerun=True)
    # Class `workspace` was recorded of a command because its Space had just been found hermetic: it can't have reached outside.
    return Undo(rerun=started.exclude_digest is None and reruns < MAX_RERUNS)
