"""Calls whose effect outside nobody knows: cut off and not run again, or never seen to end. A repetition of one is told so."""

from __future__ import annotations

from perdure.record import records as r
from perdure.state.calls import Calls, signature

KEPT = 200
"""The oldest are forgotten first: a state stays small."""

Uncertain = dict[str, str]
"""By tool and arguments, the call's id."""


def reduce(uncertain: Uncertain, stored: r.Stored, calls: Calls) -> Uncertain:
    """`calls` are as before this record."""
    match stored.body:
        case r.CallFinished(call=id, outcome=outcome) if id in calls:
            name = signature(calls[id].tool, calls[id].args)
            if outcome in ("unknown", "interrupted") and _reached(calls[id].started):
                others = {key: value for key, value in uncertain.items() if key != name}
                return dict([*others.items(), (name, id)][-KEPT:])
            if outcome == "ok" and name in uncertain:
                return {key: value for key, value in uncertain.items() if key != name}
    return uncertain


def _reached(started: r.CallStarted | None) -> bool:
    return started is not None and started.effect in ("external", "idempotent")
