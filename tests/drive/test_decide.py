"""The decision table, row by row, and what no evidence may ever lead to."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.drive.decide import MAX_RERUNS, Adopt, Evidence, Known, Start, Stay, Undo, Unknown, classify, decide
from perdure.record.records import CallStarted, EffectClass, Image, Incarnation
from perdure.space.space import Status, Traits

HERE = Incarnation("g", "boot", "ledger")
BASE = Image("a" * 64, "b" * 64, 1)
EFFECTS: tuple[EffectClass, ...] = ("none", "workspace", "idempotent", "external")
PLAIN = Traits("pidns")


def started(effect: EffectClass = "external", **changes: object) -> CallStarted:
    fields: dict[str, object] = {"base": None if effect == "none" else BASE, "incarnation": HERE} | changes
    return CallStarted("main.1.0", 1, "log:main.1.0:1", effect, **fields)  # type: ignore[arg-type]


def known(status: Status | None, **changes: object) -> Known:
    fields: dict[str, object] = {"incarnation": HERE, "position": 5, "logged": 5, "traits": PLAIN} | changes
    return Known(status, **fields)  # type: ignore[arg-type]


# ---- evidence --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "evidence"),
    [
        (known(Status("running")), "running"),
        (known(Status("ended", cause="self")), "ended"),
        (known(Status("ended", cause="timeout")), "ended"),
        (known(Status("ended", cause="abort")), "ended"),
        (known(Status("ended", cause="fenced")), "lost"),
        (known(Status("ended", cause="shutdown")), "lost"),
        (known(Status("lost")), "lost"),
        (known(Status("none")), "never_began"),
        (known(Status("none"), traits=Traits("pidns", rollback_free=False)), "lost"),
        (known(Status("ended", cause="self"), incarnation=Incarnation("g", "another boot", "ledger")), "lost"),
        (known(Status("ended", cause="self"), incarnation=Incarnation("another", "boot", "ledger")), "lost"),
        (known(Status("ended", cause="self"), incarnation=Incarnation("g", "boot", "another")), "lost"),
        (known(Status("ended", cause="self"), position=4), "lost"),
        (known(None), "lost"),
        (known(Status("running"), survivors=True), "survivors"),
    ],
)
def test_evidence_is_classified_in_its_order(what: Known, evidence: Evidence) -> None:
    assert classify(started(), what) == evidence


def test_a_call_without_a_ledger_is_lost_whatever_else_is_known() -> None:
    assert classify(started(ledgered=False), known(Status("ended", cause="self"))) == "lost"


# ---- the table -------------------------------------------------------------------------------------------------------------

TABLE = [
    *(("ended", effect, Adopt()) for effect in EFFECTS),
    *(("running", effect, Adopt()) for effect in EFFECTS),
    *(("never_began", effect, Start()) for effect in EFFECTS),
    *(("survivors", effect, Stay()) for effect in EFFECTS),
    ("lost", "none", Start()),
    ("lost", "workspace", Undo(rerun=True)),
    ("lost", "idempotent", Undo(rerun=True)),
    ("lost", "external", Undo(rerun=False)),
]


@pytest.mark.parametrize(("evidence", "effect", "decision"), TABLE)
def test_each_cell_of_the_table_for_a_file_tool(evidence: Evidence, effect: EffectClass, decision: object) -> None:
    assert decide(started(effect), evidence, command=False, reruns=0) == decision


def test_a_lost_command_is_rerun_only_if_it_ran_hermetically_without_excluded_paths_and_at_most_twice() -> None:
    """What counts is the class that was recorded at its start, whatever the Space is today."""
    effects: tuple[EffectClass, ...] = ("workspace", "external")
    for effect, excluded, reruns in itertools.product(effects, (None, "e" * 64), range(4)):
        call = started(effect, exclude_digest=excluded)
        decision = decide(call, "lost", command=True, reruns=reruns)
        assert decision == Undo(rerun=effect == "workspace" and excluded is None and reruns < MAX_RERUNS)


@pytest.mark.parametrize("effect", ["workspace", "idempotent", "external"])
def test_what_is_never_undone_ends_unknown(effect: EffectClass) -> None:
    assert isinstance(decide(started(effect, policy={"undo": "never"}), "lost", command=True, reruns=0), Unknown)
    assert isinstance(decide(started(effect), "lost", command=True, reruns=0, undo=False), Unknown)
    assert isinstance(decide(started(effect, base=None), "lost", command=True, reruns=0), Unknown)


def test_a_lost_tool_outside_of_the_space_is_started_again_only_if_that_is_declared_harmless() -> None:
    for effect in EFFECTS:
        decision = decide(started(effect, ledgered=False), "lost", command=False, reruns=0)
        assert isinstance(decision, Start if effect in ("none", "idempotent") else Unknown)


@given(
    effect=st.sampled_from(EFFECTS),
    evidence=st.sampled_from(["lost", "ended", "running", "never_began", "survivors"]),
    ledgered=st.booleans(),
    command=st.booleans(),
    reruns=st.integers(0, 5),
    undo=st.booleans(),
    base=st.booleans(),
)
def test_an_effect_that_may_have_happened_is_never_simply_repeated(
    effect: EffectClass,
    evidence: Evidence,
    ledgered: bool,
    command: bool,
    reruns: int,
    undo: bool,
    base: bool,
) -> None:
    call = started(effect, ledgered=ledgered, base=BASE if base else None)
    decision = decide(call, evidence, command=command, reruns=reruns, undo=undo)
    repeats = isinstance(decision, Start) or decision == Undo(rerun=True)
    if effect == "external" and evidence != "never_began":
        assert not repeats
    if isinstance(decision, Start) and evidence == "lost":
        assert effect in ("none", "idempotent")
    if evidence == "survivors":
        assert decision == Stay()
    if isinstance(decision, Undo):
        assert base and undo and ledgered
