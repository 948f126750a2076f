"""The timeline: what was killed and when, and what became of it. One line an event, in seconds since the session began.

The log can't know that something was killed, only that it was gone; whoever kills says so with `Kill`, and the two are laid side by side by the wall
clock. Both must come from one machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct

from perdure.history.line import Line, Style, listed, shorten
from perdure.history.transcript import changed_by, described, ended, recovered
from perdure.record import records as r
from perdure.record.parts import text_of
from perdure.record.records import Stored


class Kill(Struct, frozen=True):
    """Somebody sent SIGKILL at this wall-clock time, in seconds, to `what`: "the driver and the supervisor"."""

    at: float
    what: str


class Tally(Struct, frozen=True):
    """What a session came to. `twice` counts calls that were started again, which is right only where they had been undone."""

    drivers: int
    supervisors: int
    calls: int
    adopted: int
    undone: int
    unknown: int
    twice: int
    settled: bool


def timeline(records: Iterable[Stored], kills: Sequence[Kill] = ()) -> list[Line]:
    """The events in order, kills among them; a call shows its start only where a driver died before its end."""
    stored = list(records)
    if not stored:
        return []
    began = stored[0].at
    calls = {record.body.call: record.body for record in stored if isinstance(record.body, r.CallProposed)}
    cut = _cut_off(stored)
    events = [(kill.at, 0, Line("kill", f"SIGKILL  {kill.what}", kill.at)) for kill in kills]
    for record in stored:
        if (event := _event(record, calls, cut)) is not None:
            events.append((record.at, record.seq, Line(*event, record.at, record.seq)))
    events.sort(key=lambda event: event[:2])
    return [Line(line.style, f"{at - began:7.2f} s  {line.text}", line.at, line.seq) for at, _, line in events]


def tally(records: Iterable[Stored]) -> Tally:
    bodies = [record.body for record in records]
    decisions = [body.decision for body in bodies if isinstance(body, r.Recovered) and body.call]
    started = [body.call for body in bodies if isinstance(body, r.CallStarted)]
    return Tally(
        drivers=sum(isinstance(body, r.EpochRaised) for body in bodies),
        supervisors=len({(b.incarnation, b.instance) for b in bodies if isinstance(b, r.SpaceOpened)}),
        calls=sum(isinstance(body, r.CallFinished) for body in bodies),
        adopted=sum(decision in ("adopt", "attach") for decision in decisions),
        undone=sum(decision.startswith("undo") for decision in decisions),
        unknown=decisions.count("unknown"),
        twice=len(started) - len(set(started)),
        settled=any(isinstance(body, r.SubmissionSettled) for body in bodies),
    )


def _cut_off(stored: Sequence[Stored]) -> set[int]:
    """Sequence numbers of the starts that the next driver found open."""
    open_starts: dict[str, int] = {}
    cut: set[int] = set()
    for record in stored:
        match record.body:
            case r.CallStarted(call=call):
                open_starts[call] = record.seq
            case r.CallFinished(call=call):
                open_starts.pop(call, None)
            case r.EpochRaised():
                cut.update(open_starts.values())
    return cut


def _event(record: Stored, calls: dict[str, r.CallProposed], cut: set[int]) -> tuple[Style, str] | None:
    match record.body:
        case r.EpochRaised(owner=owner):
            return "session", f"driver {record.epoch} (process {owner.pid})"
        case r.SpaceOpened() as body:
            return "session", f"supervisor {body.instance} (process {body.init.pid})"
        case r.SpaceLost() as body:
            return "recovery", f"supervisor {body.instance} is gone: {shorten(body.reason, 100)}"
        case r.CallStarted(call=call) if record.seq in cut:
            return "call", f"{_call(calls, call)}  begins"
        case r.CallFinished() as body:
            well = body.outcome == "ok" and not body.exit_code
            changed = f"  changed {listed(body.changed, body.changed_count, limit=3)}" if body.changed else ""
            return "call" if well else "failure", f"{_call(calls, body.call)}  {ended(body)}{changed}"
        case r.Recovered() as body:
            return "recovery", f"{_call(calls, body.call) if body.call else f'turn {body.turn}'}  {recovered(body)}"
        case r.WorkspaceChanged(found_by=found_by) as body if found_by != "open":
            return "workspace", f"changed {changed_by(body)}: {listed(body.paths, body.path_count)}"
        case r.ModelFailed() as body:
            return "failure", f"model: {body.failure}: {shorten(body.message, 100)}"
        case r.ModelResponded(parts=parts) if text := text_of(parts):
            return "model", shorten(text, 100)
        case r.SubmissionAdmitted(parts=parts):
            return "person", shorten(text_of(parts), 100)
        case r.SubmissionSettled() as body:
            return "session", f"settled: {body.outcome}{f' ({shorten(body.reason, 100)})' if body.reason else ''}"
        case _:
            return None


def _call(calls: dict[str, r.CallProposed], call: str) -> str:
    return described(calls.get(call), limit=60)
