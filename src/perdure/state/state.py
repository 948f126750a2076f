"""A session's whole state, and the one fold that makes it."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct, field

from perdure.record import records as r
from perdure.state import calls, changes, session, submissions, threads, uncertain, usage, workspace


class State(Struct, frozen=True):
    """`seq` is the newest record in it. Every part is immutable: an older state stays valid."""

    seq: r.Seq = 0
    session: session.Session = session.Session()
    submissions: submissions.Submissions = {}
    threads: threads.Threads = field(default_factory=dict)
    calls: calls.Calls = {}
    workspace: workspace.Workspace = workspace.Workspace()
    usage: usage.Usage = usage.Usage()
    uncertain: uncertain.Uncertain = {}
    changes: changes.Changes = changes.Changes()

    @property
    def busy(self) -> bool:
        """Whether a submission waits for an answer."""
        return any(s.mode != "note" for s in self.submissions.values())


def fold(state: State, stored: r.Stored) -> State:
    """The state after one more record. Pure."""
    assert stored.seq == state.seq + 1, f"record {stored.seq} does not follow {state.seq}"
    return State(
        stored.seq,
        session.reduce(state.session, stored),
        submissions.reduce(state.submissions, stored),
        threads.reduce(state.threads, stored, state.calls, state.submissions, state.changes),
        calls.reduce(state.calls, stored),
        workspace.reduce(state.workspace, stored, state.calls),
        usage.reduce(state.usage, stored, state.calls, lambda: lineage(state, stored.thread or "main")),
        uncertain.reduce(state.uncertain, stored, state.calls),
        changes.reduce(state.changes, stored),
    )


def lineage(state: State, thread: str) -> tuple[str, ...]:
    """The submission that a thread works on, and of a subagent those in whose name it does, outwards."""
    ids: list[str] = []
    at = state.threads.get(thread)
    while at is not None:
        if at.active is not None:
            ids.append(at.active)
        opener = state.calls.get(at.call) if at.call is not None else None
        at = state.threads.get(opener.thread) if opener else None
    return tuple(ids)


def fold_all(records: Iterable[r.Stored], state: State | None = None) -> State:
    state = state or State()
    for stored in records:
        state = fold(state, stored)
    return state
