"""The conversation: people's inputs, a model's turns, and the calls between.

`next` asks, in this order: is there something to stop (abort, deadline, budget)? Is a round open? Is a turn to be asked, started or ended? Is an
input waiting? What it decides is records; what it wants done is an Ask or Calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from perdure.program import compaction, delegation
from perdure.program.program import Action, Append, Ask, Calls, Settle, View, Wait
from perdure.program.stopping import Stop, deadline_of, given_up, stop_of
from perdure.record import records as r
from perdure.record.records import Draft
from perdure.state.calls import Call
from perdure.state.state import State
from perdure.state.submissions import Submission
from perdure.state.threads import Thread, Turn

TOO_LONG = (
    "also when everything before the newest input was summed up: give less at once, or name a model that takes more (`--model`); if it does take more, "
    "say so by the model option context_tokens"
)


class Conversation:
    """`effect` gives a tool's effect class; it decides only what may run together."""

    name = "conversation"
    version = 1

    def __init__(self, effect: Callable[[str], r.EffectClass]) -> None:
        self._effect = effect

    def initial(self) -> None:
        return None

    def reduce(self, own: None, stored: r.Stored) -> None:
        return None

    def next(self, view: View[None], now: float) -> Action:
        if stop := given_up(view.state):
            return _give_up(view.state, stop)
        waits: list[Wait] = []
        for thread in view.state.threads.values():
            action = self._thread(view.state, thread, now)
            if not isinstance(action, Wait):
                return action
            waits.append(action)
        return min(waits, key=_soonest, default=Wait())

    def _thread(self, state: State, thread: Thread, now: float) -> Action:
        dropped = next((s for s in _queue(state, thread) if s.aborted is not None or _late(s, now)), None)
        if dropped:
            return _drop(state, thread, dropped, now)
        if thread.active is None:
            return _place(state, thread, now)
        submission = state.submissions[thread.active]
        stop = stop_of(state, submission, now)
        turn = thread.turn
        if turn is None:
            return _settle(thread, submission, stop) if stop else Append((compaction.turn(state, thread, submission),))
        if not turn.responded:
            return self._asking(state, thread, turn, submission, stop, now)
        open_calls = [state.calls[id] for id in turn.calls if id in state.calls]
        if open_calls:
            return self._round(state, thread, open_calls, stop, now)
        compacted = turn.purpose == "compact"
        answered = not turn.calls and not compacted
        if stop and not (answered and stop.outcome == "failed"):
            return _settle(thread, submission, stop)
        if answered:
            # Paid for and there to be read: a limit that it reached stops only what would come after it.
            reason = "" if turn.stop in ("stop", "tool_calls") else turn.stop
            return Settle((_settlement(thread, submission, "answered", reason),))
        if compacted and submission.mode == "compact":
            return Settle((_settlement(thread, submission, "noted", "compacted"),))
        asked = any(s.mode == "compact" for s in _queue(state, thread)) and compaction.possible(thread)
        following = compaction.begin(state, thread, submission) if asked else compaction.turn(state, thread, submission)
        return Append((*_joining(state, thread), following))

    def _asking(self, state: State, thread: Thread, turn: Turn, submission: Submission, stop: Stop | None, now: float) -> Action:
        if stop:
            return _settle(thread, submission, stop)
        failed = turn.failed
        if failed and failed.retry_at is None:
            advisory = f"[perdure] The last request failed and was given up: {failed.message}"
            if failed.failure == "overflow":
                shortening = compaction.after_overflow(state, thread, submission) if turn.purpose == "turn" else None
                if shortening:
                    return Append((shortening,))
                reason = f"model: {failed.message}; {TOO_LONG}"
                return Settle((_settlement(thread, submission, "failed", reason, advisory=advisory),))
            return Settle((_settlement(thread, submission, "failed", f"model: {failed.message}", advisory=advisory),))
        if failed and failed.retry_at is not None and now < failed.retry_at:
            deadline = deadline_of(state, submission)
            return Wait("model_retry", failed.retry_at if deadline is None else min(failed.retry_at, deadline))
        return Ask(thread.name, turn.purpose)

    def _round(self, state: State, thread: Thread, open_calls: list[Call], stop: Stop | None, now: float) -> Action:
        begun = [c for c in open_calls if c.started]
        if carried := [c for c in begun if not delegation.opens_thread(c)]:
            return Calls(thread.name, tuple(c.id for c in carried))
        if begun:
            ended = tuple(draft for c in begun if (draft := delegation.finished(state, c, now)))
            return Append(ended) if ended else Wait("subagent")
        if stop:
            return Append(tuple(_unrun(c, stop.reason) for c in open_calls))
        if any(s.mode == "steer" for s in _queue(state, thread)):
            return Append(tuple(_unrun(c, "steered") for c in open_calls))
        if open_calls[0].awaits_approval:
            return Wait("approval", deadline_of(state, state.submissions[thread.active or ""]))
        return Calls(thread.name, tuple(c.id for c in self._together(state, open_calls)))

    def _together(self, state: State, calls: list[Call]) -> list[Call]:
        """The first call, and what directly follows it and only reads, if it only reads itself."""
        group: list[Call] = []
        for call in calls:
            reads = call.problem is not None or effect_of(state, call.tool, self._effect(call.tool)) == "none"
            if group and (not reads or call.awaits_approval):
                break
            group.append(call)
            if not reads:
                break
        return group


def effect_of(state: State, tool: str, declared: r.EffectClass) -> r.EffectClass:
    """A foreign tool that said it only reads, and was caught at changing the workspace, is not believed again."""
    return "workspace" if declared == "none" and tool in state.session.doubted else declared


# ---- drafts ----------------------------------------------------------------------------------------------------------------


def _soonest(wait: Wait) -> tuple[bool, bool, float, bool]:
    """A time that a driver stays for comes first, then a person's answer, for which it does not stay."""
    approval = wait.reason == "approval"
    return approval or wait.until is None, not approval, float("inf") if wait.until is None else wait.until, not wait.reason


def _queue(state: State, thread: Thread) -> Iterator[Submission]:
    """What was admitted to this thread and is not placed yet."""
    return (s for s in state.submissions.values() if s.thread == thread.name and s.placed is None)


def _late(submission: Submission, now: float) -> bool:
    return submission.deadline is not None and now >= submission.deadline


def _drop(state: State, thread: Thread, queued: Submission, now: float) -> Settle:
    """It never began, so nobody has to wait for what runs."""
    stop = stop_of(state, queued, now)
    assert stop is not None
    return Settle((*_opening(thread), *stop.drafts, _settlement(thread, queued, stop.outcome, stop.reason)))


def _place(state: State, thread: Thread, now: float) -> Action:
    first = next(_queue(state, thread), None)
    if first is None:
        return Wait()
    if first.mode == "note":
        placed = Draft(r.SubmissionPlaced(first.id, "note"), thread.name, first.seq)
        return Settle((*_opening(thread), placed, _settlement(thread, first, "noted")))
    if stop_of(state, first, now):
        return _drop(state, thread, first, now)
    if first.mode == "compact":
        placed = Draft(r.SubmissionPlaced(first.id, "compact"), thread.name, first.seq)
        if not compaction.possible(thread):
            return Settle((*_opening(thread), placed, _settlement(thread, first, "noted", "there is nothing to compact yet")))
        return Append((placed, compaction.begin(state, thread, first)))
    placed = Draft(r.SubmissionPlaced(first.id), thread.name, first.seq)
    return Append((*_opening(thread), placed, compaction.turn(state, thread, first)))


def _opening(thread: Thread) -> tuple[Draft, ...]:
    return () if thread.opened else (Draft(r.ThreadOpened(thread.name), thread.name),)


def _joining(state: State, thread: Thread) -> tuple[Draft, ...]:
    """Steers and notes that come in between two turns."""
    drafts: list[Draft] = []
    for s in _queue(state, thread):
        if s.mode in ("steer", "note", "compact"):
            drafts.append(Draft(r.SubmissionPlaced(s.id, s.mode), thread.name, s.seq))
            drafts.append(_settlement(thread, s, "noted", "joined the work in progress" if s.mode == "steer" else ""))
    return tuple(drafts)


def _give_up(state: State, stop: Stop) -> Settle:
    """Everything ends as it is; nothing is looked at or taken back."""
    drafts = []
    for call in state.calls.values():
        text = f"This call was open when everything was given up ({stop.reason}); its outcome is unknown."
        outcome: r.Outcome = "unknown" if call.started else "aborted"
        drafts.append(Draft(r.CallFinished(call.id, outcome, r.Result(text)), call.thread, call.seq))
    for submission in state.submissions.values():
        thread = state.threads[submission.thread]
        drafts.append(_settlement(thread, submission, stop.outcome, stop.reason))
    return Settle(tuple(drafts))


def _unrun(call: Call, reason: str) -> Draft:
    how = "was cut off and undone each time it ran, and is not run again" if call.undone else "was not run"
    text = f"This call {how}: {reason}."
    return Draft(r.CallFinished(call.id, "aborted", r.Result(text)), call.thread, call.seq)


def _settle(thread: Thread, submission: Submission, stop: Stop) -> Settle:
    advisory = f"[perdure] Your last turn was stopped: {stop.reason}."
    return Settle((*stop.drafts, _settlement(thread, submission, stop.outcome, stop.reason, advisory=advisory)))


def _settlement(thread: Thread, submission: Submission, outcome: str, reason: str = "", *, advisory: str | None = None) -> Draft:
    results = thread.turn.results.values() if thread.turn and thread.active == submission.id else ()
    cut = tuple(result.call for result in results if result.outcome in ("aborted", "interrupted", "unknown"))
    body = r.SubmissionSettled(submission.id, outcome, reason, cut, advisory)  # type: ignore[arg-type]
    return Draft(body, thread.name, submission.seq)
