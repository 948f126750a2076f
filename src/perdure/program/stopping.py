"""When a submission goes no further: it was aborted, its budget or time is used up, or running it keeps crashing.

A limit stops *new* turns and calls; what was begun is recovered and finished first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from perdure.record import records as r
from perdure.record.records import Draft
from perdure.state.state import State, lineage
from perdure.state.submissions import Submission
from perdure.state.usage import Spent

MAX_CRASHES = 10
MAX_LOSSES = 2

Scope = Literal["turn", "session"]
Limit = Literal["turns", "tokens", "wall_s", "failures", "deadline"]


class Stop(Struct, frozen=True):
    """Why a submission goes no further, and the records that say so."""

    outcome: Literal["aborted", "failed"]
    reason: str
    drafts: tuple[Draft, ...] = ()


def given_up(state: State) -> Stop | None:
    """Why everything that is open ends as it is, unrepaired: a person said so, or the repair itself is what keeps crashing."""
    if not state.submissions:
        return None
    if state.session.abandoned:
        return Stop("aborted", "the session was given up")
    if any(call.started for call in state.calls.values()):
        return _crashing(state)
    return None


def _crashing(state: State) -> Stop | None:
    if state.session.crashes < MAX_CRASHES:
        return None
    return Stop("failed", f"{state.session.crashes} drivers in a row crashed without progress")


def stop_of(state: State, submission: Submission, now: float) -> Stop | None:
    if submission.aborted is not None:
        return Stop("aborted", submission.aborted)
    if (outer := _outer(state, submission)) and (stop := stop_of(state, outer, now)):
        return Stop(stop.outcome, stop.reason)
    if crashing := _crashing(state):
        return crashing
    lost = next((what for what, times in state.usage.losses.items() if times >= MAX_LOSSES), None)
    if lost:
        return Stop("failed", f"running this took its Space down twice: {lost[:200]}")
    exhausted = _exhausted(state, submission, now)
    if exhausted is None:
        return None
    scope, limit, value = exhausted
    record = r.BudgetExhausted(submission.id, scope, limit, value)
    return Stop("failed", f"{scope} budget: {limit} of {value:g} is used up", (Draft(record, submission.thread),))


def _outer(state: State, submission: Submission) -> Submission | None:
    """Of a subagent's task the submission in whose name it was given."""
    outer = [id for id in lineage(state, submission.thread) if id != submission.id]
    return state.submissions.get(outer[0]) if outer else None


def _exhausted(state: State, submission: Submission, now: float) -> tuple[Scope, Limit, float] | None:
    """The first limit that is reached: its scope, name and value."""
    if submission.deadline is not None and now >= submission.deadline:
        return "turn", "deadline", submission.deadline
    thread = state.threads.get(submission.thread)
    turn = thread.turn if thread else None
    at_turn_end = turn is None or (turn.responded and len(turn.results) == len(turn.calls))
    for scope, budget, spent in _scopes(state, submission):
        for limit, value in _reached(budget, spent, state.usage.failures, now, at_turn_end):
            return scope, limit, value
    return None


def _reached(budget: r.Budget, spent: Spent, failures: int, now: float, at_turn_end: bool) -> Iterator[tuple[Limit, float]]:
    if budget.turns is not None and at_turn_end and spent.turns >= budget.turns:
        yield "turns", budget.turns
    if budget.tokens is not None and spent.tokens.total >= budget.tokens:
        yield "tokens", budget.tokens
    if budget.wall_s is not None and spent.since is not None and now - spent.since >= budget.wall_s:
        yield "wall_s", budget.wall_s
    if budget.failures is not None and failures >= budget.failures:
        yield "failures", budget.failures


def deadline_of(state: State, submission: Submission) -> float | None:
    """The wall-clock second at which nothing of the submission may run any more."""
    limits = [submission.deadline]
    if outer := _outer(state, submission):
        limits.append(deadline_of(state, outer))
    for _, budget, spent in _scopes(state, submission):
        if budget.wall_s is not None and spent.since is not None:
            limits.append(spent.since + budget.wall_s)
    return min((limit for limit in limits if limit is not None), default=None)


def _scopes(state: State, submission: Submission) -> Iterator[tuple[Scope, r.Budget, Spent]]:
    yield "turn", state.session.turn_budget, state.usage.submissions.get(submission.id, Spent())
    yield "session", state.session.session_budget, state.usage.session
