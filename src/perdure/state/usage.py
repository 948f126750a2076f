"""What has been spent, from the log alone: a restart resets nothing."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from perdure.record import records as r
from perdure.record.parts import Usage as Tokens
from perdure.state.calls import Call, Calls, signature

SUPERVISORS_OWN = ("write", "edit")


class Spent(Struct, frozen=True):
    """Of one scope. `since` is the wall clock of its first turn."""

    turns: int = 0
    tokens: Tokens = Tokens()
    since: float | None = None


class Usage(Struct, frozen=True):
    """`failing` is what failed last, `failures` how often in a row it did exactly so.

    `losses` counts, per tool and arguments, how often running them took the Space down, within the active submissions; `lost` are the
    attempts that are counted: a Space that dies again while one is being undone was not taken down by it. `models` is the session's by model.
    """

    session: Spent = Spent()
    submissions: dict[str, Spent] = {}
    failing: str = ""
    failures: int = 0
    losses: dict[str, int] = {}
    lost: frozenset[str] = frozenset()
    models: dict[str, Tokens] = {}


def reduce(usage: Usage, stored: r.Stored, calls: Calls, active: Callable[[], tuple[str, ...]]) -> Usage:
    """`active` tells the submissions that the record's thread works for."""
    match stored.body:
        case r.TurnStarted(submission=id, purpose="turn"):
            own = usage.submissions.get(id, Spent())
            return replace(
                usage, session=_turn(usage.session, stored.at), submissions={**usage.submissions, id: _turn(own, stored.at)}
            )
        case r.ModelResponded(usage=tokens, model=model) | r.ModelFailed(usage=tokens, model=model):
            changed = _spend(usage, tokens, active(), model)
            if isinstance(stored.body, r.ModelFailed):
                return _fail(changed, f"model: {stored.body.message}")
            return changed
        case r.Compacted(usage=tokens, model=model):
            return _spend(usage, tokens, active(), model)
        case r.CallFinished(call=id, outcome=outcome, result=result) if id in calls:
            if outcome == "ok":
                return replace(usage, failing="", failures=0) if usage.failures else usage
            return _fail(usage, f"{signature(calls[id].tool, calls[id].args)}: {outcome}: {result.text[:500]}")
        case r.SpaceLost():
            running = {_run(c): signature(c.tool, c.args) for c in calls.values() if _may_kill(c)}
            running = {key: name for key, name in running.items() if key not in usage.lost}
            losses = {**usage.losses, **{s: usage.losses.get(s, 0) + 1 for s in running.values()}}
            return replace(usage, losses=losses, lost=usage.lost | running.keys())
        case r.SubmissionSettled(submission=id):
            rest = {key: spent for key, spent in usage.submissions.items() if key != id}
            return replace(usage, submissions=rest, losses={}, lost=frozenset(), failing="", failures=0)
        case _:
            return usage


def _may_kill(call: Call) -> bool:
    """A command can take the supervisor down. Its own tools can't, so what took it down in their middle was something else."""
    started = call.started
    return started is not None and started.ledgered and started.effect != "none" and call.tool not in SUPERVISORS_OWN


def _run(call: Call) -> str:
    """What counts once. A command that could not reach outside is run again by itself a bounded number of times, and all of them are one."""
    assert call.started is not None
    return call.id if call.started.effect == "workspace" else call.started.key


def _turn(spent: Spent, at: float) -> Spent:
    return replace(spent, turns=spent.turns + 1, since=at if spent.since is None else spent.since)


def _spend(usage: Usage, tokens: Tokens, active: tuple[str, ...], model: str) -> Usage:
    if tokens == Tokens():
        return usage
    session = replace(usage.session, tokens=usage.session.tokens + tokens)
    submissions = usage.submissions
    own = {id: replace(submissions[id], tokens=submissions[id].tokens + tokens) for id in active if id in submissions}
    models = {**usage.models, model: usage.models.get(model, Tokens()) + tokens}
    return replace(usage, session=session, submissions={**submissions, **own} if own else submissions, models=models)


def _fail(usage: Usage, failing: str) -> Usage:
    return replace(usage, failing=failing, failures=usage.failures + 1 if failing == usage.failing else 1)
