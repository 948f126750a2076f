"""Subagents: a call that opens a thread with one submission, and is finished with the answer to it.

    call of `task` ─ started ─→ thread_opened, submission_admitted ─→ the thread's own turns and calls ─→ submission_settled ─→ call_finished

The thread shares the session's Space, driver and budget; its conversation begins empty and ends with the call. Nothing of it lives outside of the log,
so a crash in its middle is recovered from like any other: the thread is driven on, and the call waits.
"""

from __future__ import annotations

import re

from perdure.record import records as r
from perdure.record.parts import Text
from perdure.record.records import Draft
from perdure.state.calls import Call
from perdure.state.state import State

TASK = "task"
NOT_NESTED = "A subagent can't give tasks to others: do this yourself."

_OUTCOMES: dict[str, r.Outcome] = {"answered": "ok", "aborted": "aborted"}


def opens_thread(call: Call) -> bool:
    return call.place == "thread"


def opening(call: Call) -> tuple[Draft, ...]:
    """The subagent's thread, and what it is asked."""
    thread = Draft(r.ThreadOpened(call.id, call.thread, call.id), call.id, call.seq)
    prompt = r.SubmissionAdmitted(_submission(call), (Text(str(call.args["prompt"])),))
    return thread, Draft(prompt, call.id, call.seq)


def finished(state: State, call: Call, now: float) -> Draft | None:
    """What the call ends with, if its subagent is done, also with what people have asked it meanwhile."""
    thread = state.threads.get(call.id)
    if thread is None or any(s.thread == call.id for s in state.submissions.values()):
        return None
    ended = thread.settlement
    outcome = _OUTCOMES.get(ended.outcome, "interrupted") if ended else "interrupted"
    text = thread.answer if outcome == "ok" else _cut_short(call, ended, thread.answer)
    body = r.CallFinished(call.id, outcome, r.Result(text), attempt=call.attempts, duration_s=max(0.0, now - call.started_at))
    return Draft(body, call.thread, call.seq)


def _submission(call: Call) -> str:
    return f"{TASK}:{call.id}"


def is_subagents(submission: str) -> bool:
    """Whether a subagent's task may get this id: then nobody else may."""
    return re.fullmatch(rf"{TASK}:.+\.\d+\.\d+", submission) is not None


def _cut_short(call: Call, ended: r.SubmissionSettled | None, answer: str) -> str:
    reason = f" ({ended.reason})" if ended and ended.reason else ""
    said = f" The last that it said:\n{answer}" if answer else ""
    return f"The subagent {call.id} was stopped before it was done{reason}. What it did to the files stays.{said}"
