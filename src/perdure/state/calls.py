"""Calls that have no result yet, from proposal to finish."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from perdure.record import records as r
from perdure.record.parts import Digest


class Call(Struct, frozen=True):
    """`started` is its newest attempt while that one is open; `attempts` counts all; `undone` those that recovery took back.

    `recovered` is the newest decision about the open attempt, committed but perhaps not carried out; `taken_back` and `salvages` gather
    what all decisions about it took back, since a crash may cut one undo into several. `question` is what a person was asked last, `asked` its
    record, `answer` the word on it.
    """

    id: str
    seq: r.Seq
    thread: str
    tool: str
    args: dict[str, Any]
    turn: int
    index: int
    provider_id: str
    place: r.Place
    submission: str | None
    problem: str | None = None
    verdict: r.CallDecided | None = None
    started: r.CallStarted | None = None
    started_at: float = 0.0
    attempts: int = 0
    undone: int = 0
    recovered: r.Recovered | None = None
    taken_back: tuple[str, ...] = ()
    salvages: tuple[Digest, ...] = ()
    question: r.ApprovalRequested | None = None
    asked: r.Seq = 0
    answer: r.ApprovalAnswered | None = None

    @property
    def awaits_approval(self) -> bool:
        """Whether a person was asked and nobody has decided yet."""
        return self.question is not None and self.answer is None and self.verdict is None and self.started is None


Calls = dict[str, Call]


def signature(tool: str, args: dict[str, Any]) -> str:
    """What makes two calls the same."""
    return f"{tool} {sorted(args.items())!r}"


def reduce(calls: Calls, stored: r.Stored) -> Calls:
    match stored.body:
        case r.CallProposed() as body:
            new = Call(
                id=body.call,
                seq=stored.seq,
                thread=stored.thread or "main",
                tool=body.tool,
                args=body.args,
                turn=body.turn,
                index=body.index,
                provider_id=body.provider_id,
                place=body.place,
                submission=body.submission,
                problem=body.problem,
            )
            return {**calls, body.call: new}
        case r.CallDecided(call=id, args=args) as body if id in calls:
            call = calls[id]
            return {**calls, id: replace(call, verdict=body, args=call.args if args is None else args)}
        case r.ApprovalRequested(call=id, args=args) as body if id in calls:
            call = calls[id]
            return {
                **calls,
                id: replace(call, question=body, asked=stored.seq, answer=None, args=call.args if args is None else args),
            }
        case r.ApprovalAnswered(call=id) as body if id in calls and _answers(calls[id], body):
            return {**calls, id: replace(calls[id], answer=body)}
        case r.CallStarted(call=id, attempt=attempt) as body if id in calls:
            return {**calls, id: replace(calls[id], started=body, started_at=stored.at, attempts=attempt, recovered=None)}
        case r.Recovered(call=str(id)) as body if id in calls:
            return {**calls, id: _recovered(calls[id], body)}
        case r.SpaceRestored(call=str(id)) if id in calls:
            call = calls[id]
            if call.recovered is not None and call.recovered.decision == "undo_start":
                return {**calls, id: replace(call, started=None, recovered=None, undone=call.undone + 1)}
            return calls
        case r.CallFinished(call=id):
            return {key: call for key, call in calls.items() if key != id}
        case _:
            return calls


def _answers(call: Call, body: r.ApprovalAnswered) -> bool:
    return call.awaits_approval and call.question is not None and call.question.digest == body.digest


def _recovered(call: Call, body: r.Recovered) -> Call:
    """`start` opens the way for the next attempt at once; an undo only once it was carried out."""
    if body.decision == "start":
        return replace(call, started=None, recovered=None)
    taken_back = tuple(sorted({*call.taken_back, *body.taken_back}))
    salvages = (*call.salvages, body.salvage) if body.salvage and body.salvage not in call.salvages else call.salvages
    return replace(call, recovered=body, taken_back=taken_back, salvages=salvages)
