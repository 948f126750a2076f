"""The conversations: each thread's transcript, and the turn it is in.

A transcript holds what a model is shown, in the order in which it is shown: the results of a round follow their response in the model's order,
however they finished, and what people said or changed meanwhile comes after the round.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.record import records as r
from perdure.record.parts import Digest, Part, Text, ToolCall, shortened, text_of
from perdure.state import compaction
from perdure.state.calls import Calls
from perdure.state.changes import Changes
from perdure.state.entries import BYTES_PER_TOKEN, Answered, Entry, Returned, Said, freed_bytes, size_bytes
from perdure.state.submissions import Submissions
from perdure.state.trail import Trail

LEAST_LIMIT = 2000
CUT_OFF = "[perdure] Your answer was cut off here, since the conversation had become too long. Go on where it stopped."

SCRATCH_GONE = (
    "[perdure] The sandbox was started anew: background processes and what your commands had put into /tmp, /dev/shm or the home "
    "directory are gone. The working directory is as it was."
)


class Turn(Struct, frozen=True):
    """One model response in the making, and its round. `attempts` counts requests; `failures` those the provider failed.

    `model` is the one to ask now, `options` what it is asked with.

    A turn of purpose `compact` makes a summary of what came before record `cut`; it is no response of the thread.

    `partial` is text of cut-off attempts, continued `continued` times. `results` are those of the round's finished calls.
    """

    n: int
    submission: str
    model: str
    started_seq: r.Seq
    started_at: float
    attempts: int = 1
    failures: int = 0
    failed: r.ModelFailed | None = None
    partial: str = ""
    continued: int = 0
    responded: bool = False
    stop: str = ""
    calls: tuple[str, ...] = ()
    results: dict[str, Returned] = {}
    options: dict[str, Any] = {}
    purpose: Literal["turn", "compact"] = "turn"
    cut: r.Seq = 0


class Thread(Struct, frozen=True):
    """`active` is the placed submission that is being worked on, `answer` the newest text that came of it or of the last one.
    `standby` is the model that it fell to, if it did.

    `call` is the call that opened it, if it is a subagent's. `waiting_notes` come after the running round. `seen` maps paths to the SHA-256 of the content
    that the thread's model last read or wrote; `settlement` is the newest of what it worked on; `instructed` are the AGENTS.md below the root that the
    model was told.

    `marks` has for each turn its first record, and how many entries came before it. Of the first `cleared` entries, those before record `cleared_before`,
    long results are not sent any more. `reported` tokens were in the request and answer that came last, `added` bytes came since. `overflows` counts
    requests in a row that were too long; the first of them had `limit` tokens. `instructions` and `uncertain` are what outlives a compaction.
    """

    name: str
    parent: str | None = None
    call: str | None = None
    opened: bool = False
    entries: Trail[Entry] = field(default_factory=Trail)
    waiting_notes: tuple[Said, ...] = ()
    responses: int = 0
    turns: int = 0
    active: str | None = None
    turn: Turn | None = None
    standby: str = ""
    answer: str = ""
    seen: dict[str, Digest] = {}
    settlement: r.SubmissionSettled | None = None
    instructed: tuple[str, ...] = ()
    marks: tuple[tuple[r.Seq, int], ...] = ()
    cleared: int = 0
    cleared_before: r.Seq = 0
    reported: int = 0
    added: int = 0
    overflows: int = 0
    limit: int = 0
    compactions: int = 0
    instructions: tuple[Said, ...] = ()
    uncertain: tuple[Returned, ...] = ()

    @property
    def tokens(self) -> int:
        """What its next request will take, estimated."""
        return self.reported + self.added // BYTES_PER_TOKEN

    def before(self, seq: r.Seq) -> int:
        """How many entries came before the turn that began with this record."""
        return next((index for at, index in self.marks if at >= seq), len(self.entries))


Threads = dict[str, Thread]


def reduce(threads: Threads, stored: r.Stored, calls: Calls, inputs: Submissions, changes: Changes) -> Threads:
    """`calls`, `inputs` and `changes` are as before this record."""
    name = stored.thread or "main"
    thread = threads.get(name) or Thread(name)
    match stored.body:
        case r.ThreadOpened() as body:
            new = Thread(body.name, body.parent, body.call, opened=True)
            return {**threads, body.name: replace(threads.get(body.name, new), opened=True, parent=body.parent, call=body.call)}
        case r.SubmissionAdmitted():
            return threads if name in threads else {**threads, name: thread}
        case r.WorkspaceChanged(found_by=by, path_count=count) as body if by != "open" and count:
            note = Said((Text(_changed_note(body)),), note=True)
            return {key: _note(t, note) for key, t in threads.items()}
        case r.SpaceOpened(scratch_gone=True):
            return {key: _note(t, Said((Text(SCRATCH_GONE),), note=True)) for key, t in threads.items()}
        case r.SettingsChanged(model=str()):
            return {key: replace(t, standby="", limit=0) for key, t in threads.items()}
        case r.Compacted() as body:
            return {**threads, name: _compacted(thread, body, changes)}
        case _:
            changed = _reduce(thread, stored, calls, inputs)
            threads = threads if changed is thread else {**threads, name: changed}
            return _without(threads, stored.body.call) if isinstance(stored.body, r.CallFinished) else threads


def _without(threads: Threads, call: str) -> Threads:
    """A subagent's conversation is over with the call that opened it."""
    return {name: thread for name, thread in threads.items() if thread.call != call} if call in threads else threads


def _reduce(thread: Thread, stored: r.Stored, calls: Calls, inputs: Submissions) -> Thread:
    match stored.body:
        case r.SubmissionPlaced(submission=id, as_mode=mode):
            if mode == "compact":
                return replace(thread, active=thread.active or id)
            said = Said(inputs[id].parts if id in inputs else ())
            thread = _add(thread, *thread.waiting_notes, said)
            if mode == "note":
                return replace(thread, waiting_notes=())
            instructions = compaction.instructed(thread.instructions, said, steer=mode == "steer")
            if mode == "steer":
                return replace(thread, waiting_notes=(), instructions=instructions)
            return replace(thread, waiting_notes=(), instructions=instructions, active=id, answer="")
        case r.TurnStarted() as body:
            return _begun(thread, body, stored)
        case r.ModelFailed() as body if thread.turn:
            too_long = body.failure == "overflow" and thread.turn.purpose == "turn"
            return replace(
                thread,
                turn=_failed(thread.turn, body),
                standby=body.next_model or thread.standby,
                overflows=thread.overflows + too_long,
                limit=_limit(thread, body, too_long),
            )
        case r.Recovered(turn=int()) as body if thread.turn:
            return replace(thread, turn=_cut_off(thread.turn, body))
        case r.ModelResponded() as body if thread.turn:
            return _responded(thread, body)
        case r.CallProposed(call=id) if thread.turn:
            return replace(thread, turn=replace(thread.turn, calls=(*thread.turn.calls, id)))
        case r.CallFinished(call=id) as body if thread.turn and id in thread.turn.calls:
            return _finished(thread, thread.turn, body, calls)
        case r.SubmissionSettled() as body:
            return _settled(thread, body)
        case r.Instructed(path=path, text=text):
            said = Said((Text(_instructions_note(path, text)),), note=True)
            return replace(_add(thread, said), instructed=(*thread.instructed, path))
        case _:
            return thread


def _add(thread: Thread, *entries: Entry) -> Thread:
    if not entries:
        return thread
    return replace(thread, entries=thread.entries.add(*entries), added=thread.added + sum(map(size_bytes, entries)))


def _limit(thread: Thread, body: r.ModelFailed, too_long: bool) -> int:
    if body.next_model:
        return 0
    return max(thread.tokens, LEAST_LIMIT) if too_long and not thread.overflows else thread.limit


def _begun(thread: Thread, body: r.TurnStarted, stored: r.Stored) -> Thread:
    if thread.turn and thread.turn.partial and not thread.turn.responded:
        # Its request became too long on the way: what people have read stays.
        cut = Answered((Text(thread.turn.partial),), thread.turn.model, interrupted=True)
        thread = _add(thread, cut, Said((Text(CUT_OFF),), note=True))
    turn = Turn(body.turn, body.submission, body.model, stored.seq, stored.at, options=body.options, purpose=body.purpose)
    mark = (stored.seq, len(thread.entries))
    if body.purpose == "compact":
        turn = replace(turn, cut=body.context_cut or stored.seq)
        marks = (*thread.marks, mark)
        return replace(thread, turn=turn, turns=body.turn, marks=marks)
    thread = replace(
        _add(thread, *thread.waiting_notes), turn=turn, turns=body.turn, waiting_notes=(), marks=(*thread.marks, mark)
    )
    return _cleared(thread, body.context_cut) if body.context_cut > thread.cleared_before else thread


def _cleared(thread: Thread, before: r.Seq) -> Thread:
    cleared = thread.before(before)
    freed = freed_bytes(thread.entries[thread.cleared : cleared])
    reported = max(0, thread.reported - freed // BYTES_PER_TOKEN)
    return replace(thread, cleared=cleared, cleared_before=before, reported=reported)


def _compacted(thread: Thread, body: r.Compacted, changes: Changes) -> Thread:
    cut = thread.before(body.cut)
    before, behind = thread.entries[:cut], thread.entries[cut:]
    uncertain = compaction.still_uncertain(thread.uncertain, before)
    still = [said for said in thread.instructions if said not in behind]
    entries: list[Entry] = [compaction.note(body.summary, uncertain, still, changes), *behind]
    turn = replace(thread.turn, responded=True, failed=None) if thread.turn and thread.turn.purpose == "compact" else thread.turn
    own = turn.started_seq if turn else 0
    freed = freed_bytes(behind[: max(0, thread.cleared - cut)])
    return replace(
        thread,
        entries=Trail(entries),
        turn=turn,
        marks=tuple((seq, index - cut + 1) for seq, index in thread.marks if body.cut <= seq != own),
        cleared=max(0, thread.cleared - cut + 1) if thread.cleared > cut else 0,
        reported=0,
        added=sum(map(size_bytes, entries)) - freed,
        compactions=thread.compactions + 1,
        uncertain=uncertain,
        instructed=(),
    )


def _note(thread: Thread, note: Said) -> Thread:
    return replace(thread, waiting_notes=(*thread.waiting_notes, note))


def _changed_note(body: r.WorkspaceChanged) -> str:
    shown = "\n".join(f"  {shortened(path)}" for path in body.paths[:50])
    more = f"\n  … and {body.path_count - 50} more" if body.path_count > 50 else ""
    who = (
        f"by {', '.join(body.perhaps_by[:10])}, at whose end they could not be captured, or by someone else"
        if body.perhaps_by
        else "by someone else, not by your calls"
    )
    return f"[perdure] These paths in the workspace were changed {who}. Read them again before you rely on them:\n{shown}{more}"


def _instructions_note(path: str, text: str) -> str:
    return f"[perdure] Instructions for what lies in {path.rpartition('/')[0]}/, from {path}:\n\n{text}"


def _failed(turn: Turn, body: r.ModelFailed) -> Turn:
    continued = turn.continued + 1 if body.partial else turn.continued
    return replace(
        turn,
        model=body.next_model or turn.model,
        attempts=turn.attempts + 1,
        failures=0 if body.next_model else turn.failures + 1,
        failed=body,
        partial=turn.partial + body.partial,
        continued=continued,
    )


def _cut_off(turn: Turn, body: r.Recovered) -> Turn:
    continued = turn.continued + 1 if body.decision == "continue" else turn.continued
    return replace(turn, attempts=turn.attempts + 1, partial=turn.partial + body.partial, continued=continued, failed=None)


def _responded(thread: Thread, body: r.ModelResponded) -> Thread:
    assert thread.turn is not None
    parts, extra = body.parts, body.extra
    if thread.turn.partial:
        parts, extra = _joined(thread.turn.partial, parts), None
    entry = Answered(parts, body.model, extra)
    turn = replace(thread.turn, responded=True, partial="", failed=None, stop=body.stop)
    answer = text_of(parts)
    thread = _add(thread, entry)
    if body.usage.total:
        thread = replace(thread, reported=body.usage.total, added=0)
    return replace(thread, turn=turn, responses=thread.responses + 1, answer=answer, overflows=0)


def _joined(partial: str, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The continued text as one part, as if it had never been cut."""
    for i, part in enumerate(parts):
        if isinstance(part, Text):
            return (*parts[:i], Text(partial + part.text), *parts[i + 1 :])
    return (Text(partial), *parts)


def _finished(thread: Thread, turn: Turn, body: r.CallFinished, calls: Calls) -> Thread:
    call = calls[body.call]
    if body.seen:
        thread = replace(thread, seen={**thread.seen, **body.seen})
    returned = Returned(call.id, call.provider_id, call.tool, body.result.text, body.outcome, body.result.blob)
    results = {**turn.results, call.id: returned}
    if len(results) < len(turn.calls):
        return replace(thread, turn=replace(turn, results=results))
    sealed = [results[id] for id in turn.calls]
    return replace(_add(thread, *sealed, *thread.waiting_notes), turn=replace(turn, results=results), waiting_notes=())


def _settled(thread: Thread, body: r.SubmissionSettled) -> Thread:
    if body.outcome != "noted" and (thread.active == body.submission or thread.settlement is None):
        thread = replace(thread, settlement=body)
    if thread.active != body.submission:
        return thread
    if thread.turn and thread.turn.partial and not thread.turn.responded:
        thread = _add(thread, Answered((Text(thread.turn.partial),), thread.turn.model, interrupted=True))
    notes = thread.waiting_notes
    if body.advisory:
        notes = (*notes, Said((Text(body.advisory),), note=True))
    return replace(thread, waiting_notes=notes, overflows=0, active=None, turn=None, standby="")


def tool_calls(parts: tuple[Part, ...]) -> tuple[ToolCall, ...]:
    return tuple(p for p in parts if isinstance(p, ToolCall))
