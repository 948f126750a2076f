"""What the evidence of a run adds up to, call by call.

Which call of the log is which of the plan, how far each came, and when people's work may be taken for a call's.
"""

from __future__ import annotations

from collections.abc import Iterator

from perdure.chaos.effects import Extent, Folder
from perdure.chaos.evidence import Evidence
from perdure.chaos.files import below
from perdure.chaos.plan import Call
from perdure.record import records as r

EXTENT: dict[str, Extent] = {"ok": "all", "interrupted": "none", "denied": "none"}
"""By outcome; every other one means a beginning."""

SLACK_NS = 20_000_000
BASE_NS = 700_000_000
"""A call's base image is taken so long before its start at most; what changed since lies in its window too."""


class Account:
    """The evidence, and what several checks ask of it."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence, self.plan = evidence, evidence.plan
        self.ids = _scripted(evidence)
        self.finished: dict[str, r.CallFinished] = {body.call: body for body in evidence.bodies(r.CallFinished)}
        self.started: dict[str, list[r.CallStarted]] = {}
        for body in evidence.bodies(r.CallStarted):
            self.started.setdefault(body.call, []).append(body)
        self.windows = list(_windows(evidence))
        self.contested = {done.deed.kind for done in evidence.happened.done}
        self.emptied = set(self._emptied()) if evidence.happened.dropped else set()

    def _emptied(self) -> Iterator[str]:
        """Folders of undone calls whose undo was killed when it had emptied them, and forgotten with the state folder: they look like somebody's then."""
        for call in self.evidence.plan.calls:
            for effect in call.effects:
                if (
                    isinstance(effect, Folder)
                    and self.extent(call) == "none"
                    and below(self.evidence.files, effect.path).keys() == {effect.path}
                ):
                    yield effect.path

    def extent(self, call: Call) -> Extent:
        id = self.ids.get(call.index)
        if id is None or id not in self.started or id not in self.finished:
            return "none"
        outcome = self.finished[id].outcome
        if outcome == "error" and call.tool != "bash":
            return "none"
        return EXTENT.get(outcome, "part")

    def outcome(self, call: Call) -> str:
        id = self.ids.get(call.index)
        return self.finished[id].outcome if id in self.finished else "never run"


def _scripted(evidence: Evidence) -> dict[int, str]:
    """The calls that the model asked for, by their index in the plan: the nth answer is the script's nth turn."""
    answers = evidence.bodies(r.ModelResponded)
    return {
        call.index: f"main.{body.turn}.{n}"
        for body, turn in zip(answers, evidence.plan.turns, strict=False)
        for n, call in enumerate(turn)
    }


def _windows(evidence: Evidence) -> Iterator[tuple[int, int]]:
    """When each call that was undone may have acted, in ns: what people did then may be taken for its work."""
    begun: dict[tuple[str, int], float] = {}
    for stored in evidence.records:
        match stored.body:
            case r.CallStarted(call=call, attempt=attempt):
                begun[call, attempt] = stored.at
            case r.Recovered(decision="undo_start" | "undo_interrupt", call=str(call), attempt=attempt, window=window):
                from_ns = int(begun[call, attempt] * 1e9) - BASE_NS
                yield (from_ns, window.end_ns + SLACK_NS) if window else (from_ns, int(stored.at * 1e9) + BASE_NS)
            case _:
                pass
