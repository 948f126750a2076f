"""The reducers over simulated logs: any prefix folds, and a snapshot may stand for any prefix."""

from __future__ import annotations

import pytest

from perdure.record import codec
from perdure.record import records as r
from perdure.record.parts import ToolCall
from perdure.state import snapshot
from perdure.state.state import State, fold, fold_all
from perdure.state.threads import Answered, Returned, Thread
from tests.simulated import Simulation, logs

SIMULATIONS = list(logs(60, 120))


def test_every_prefix_of_every_log_folds_and_older_states_stay_as_they_were() -> None:
    for simulation in SIMULATIONS[:20]:
        states = [State()]
        for stored in simulation.records:
            states.append(fold(states[-1], stored))
        for n in range(0, len(states), 17):
            assert states[n] == fold_all(simulation.records[:n])


def test_a_snapshot_of_any_prefix_and_the_rest_make_the_whole() -> None:
    for simulation in SIMULATIONS:
        whole = fold_all(simulation.records)
        for n in range(0, len(simulation.records), 13):
            restored = snapshot.decode(snapshot.encode(fold_all(simulation.records[:n])))
            assert restored is not None
            assert fold_all(simulation.records[n:], restored) == whole


def test_a_damaged_or_foreign_snapshot_is_void() -> None:
    data = snapshot.encode(fold_all(SIMULATIONS[0].records))
    assert snapshot.decode(data[: len(data) // 2]) is None
    assert snapshot.decode(b"") is None
    assert snapshot.decode(data.replace(bytes([snapshot.STATE_VERSION]), b"\x7f", 1)) is None


def test_records_survive_their_encoding() -> None:
    for simulation in SIMULATIONS:
        for stored in simulation.records:
            assert codec.decode(codec.encode(stored.body), seq=stored.seq, v=stored.v) == stored.body


def test_the_simulated_logs_hold_every_kind_that_changes_a_state() -> None:
    kinds = {codec.kind_of(stored.body) for s in SIMULATIONS for stored in s.records}
    unused = {
        "session_forked", "note_added", "redacted", "epoch_released", "recovery_answered", "compacted", "space_lost", "synced", "applied",
    }  # fmt: skip
    assert kinds >= codec.KINDS - unused


def pairs_hold(thread: Thread) -> None:
    """What every provider demands: each response's calls are followed by exactly their results, in order."""
    entries = list(thread.entries)
    open_round = thread.turn is not None and len(thread.turn.results) < len(thread.turn.calls)
    for i, entry in enumerate(entries):
        if not isinstance(entry, Answered):
            continue
        wanted = [part.id for part in entry.parts if isinstance(part, ToolCall)]
        following = entries[i + 1 : i + 1 + len(wanted)]
        if len(following) < len(wanted) or not all(isinstance(f, Returned) for f in following):
            assert open_round and i == len(entries) - 1, f"entry {i} has calls without results"
        else:
            assert [f.provider_id for f in following if isinstance(f, Returned)] == wanted


def test_a_transcript_keeps_calls_and_results_together_after_every_record() -> None:
    for simulation in SIMULATIONS:
        state = State()
        proposing = False
        for stored in simulation.records:
            state = fold(state, stored)
            proposing = isinstance(stored.body, r.ModelResponded) or (proposing and isinstance(stored.body, r.CallProposed))
            if not proposing:
                for thread in state.threads.values():
                    pairs_hold(thread)


@pytest.mark.parametrize("seed", range(40))
def test_every_session_settles_when_it_is_left_alone(seed: int) -> None:
    simulation = Simulation(seed)
    for _ in range(80):
        simulation.step()
    simulation.random.random = lambda: 0.9  # type: ignore[method-assign]  # models answer, nothing crashes
    assert simulation.settle()
    assert not simulation.state.submissions
    assert not simulation.state.calls
    admitted = {s.body.submission for s in simulation.records if isinstance(s.body, r.SubmissionAdmitted)}
    settled = [s.body.submission for s in simulation.records if isinstance(s.body, r.SubmissionSettled)]
    assert sorted(settled) == sorted(admitted), "each admitted submission settles exactly once"
