"""The ledger survives any death of its supervisor, and says what is not known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.spaced import ledger as module
from perdure.spaced.errors import ProtocolError
from perdure.spaced.ledger import Ledger

OP = {"type": "exec", "command": "true"}


def ended(ledger: Ledger, key: str, **result: Any) -> None:
    entry, _ = ledger.begin(key, OP, 1)
    ledger.end(entry, "self", {"ok": True, **result}, {"image": "i"})


def state(ledger: Ledger, key: str) -> str:
    entry = ledger.get(key)
    return "none" if entry is None else str(entry.status(ledger.instance)["state"])


def test_an_entry_is_on_file_before_its_operation_and_its_outcome_after(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), 1)
    ledger.begin("k", OP, 3)
    lines = [json.loads(line) for line in (tmp_path / "ledger").read_text().splitlines()]
    assert [(line["n"], line["begin"], line["epoch"], line["instance"]) for line in lines] == [(1, "k", 3, 1)]


def test_the_same_key_is_the_same_entry_and_never_another_operation(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), 1)
    first, new = ledger.begin("k", OP, 1)
    assert new
    assert ledger.begin("k", dict(reversed(OP.items())), 1) == (first, False)
    with pytest.raises(ProtocolError):
        ledger.begin("k", {**OP, "command": "false"}, 1)


def test_the_next_life_keeps_what_ended_and_loses_what_ran(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), 1)
    ended(ledger, "done", text="x")
    ledger.begin("open", OP, 1)
    ledger.stamp()
    seen_ns = ledger.get("open").seen_ns  # type: ignore[union-attr]
    again = Ledger(str(tmp_path), 2)
    assert (state(again, "done"), state(again, "open"), state(again, "never")) == ("ended", "lost", "none")
    lost = again.get("open")
    assert lost is not None
    assert (lost.seen_ns, lost.instance) == (seen_ns, 1)
    assert Ledger(str(tmp_path), 3).get("open").seen_ns == seen_ns  # type: ignore[union-attr]
    assert again.get("done").result == {"ok": True, "text": "x"}  # type: ignore[union-attr]


def test_positions_only_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = []
    monkeypatch.setattr(module, "REWRITE_BYTES", 2000)
    for instance in range(1, 8):
        ledger = Ledger(str(tmp_path), instance)
        ended(ledger, f"k{instance}", text="x" * 500)
        positions.append(ledger.position)
    assert positions == sorted(set(positions))


@pytest.mark.parametrize("cut", [1, 5, 20, 60])
def test_a_torn_last_line_takes_only_itself(tmp_path: Path, cut: int) -> None:
    ledger = Ledger(str(tmp_path), 1)
    ended(ledger, "whole")
    ledger.begin("torn", OP, 1)
    path = tmp_path / "ledger"
    path.write_bytes(path.read_bytes()[:-cut])
    again = Ledger(str(tmp_path), 2)
    assert state(again, "whole") == "ended"
    assert state(again, "torn") in ("lost", "none")
    ended(again, "after")
    assert state(Ledger(str(tmp_path), 3), "after") == "ended"


def test_a_write_that_finds_no_room_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(str(tmp_path), 1)
    write = module.os.write
    monkeypatch.setattr(module.os, "write", lambda fd, data: write(fd, data[:3]) if len(data) > 3 else _full())
    with pytest.raises(OSError, match="no room"):
        ledger.begin("k", OP, 1)
    monkeypatch.undo()
    assert ledger.get("k") is None
    ended(ledger, "k")
    assert state(Ledger(str(tmp_path), 2), "k") == "ended"


def _full() -> int:
    raise OSError(28, "no room")


def test_what_was_reported_is_thinned_at_the_second_settlement_and_never_forgotten(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), 1)
    ended(ledger, "told", text="long", exit_code=0)
    ended(ledger, "untold", text="long")
    ledger.report(ledger.get("told"))  # type: ignore[arg-type]
    assert ledger.settle() == []
    assert [entry.key for entry in ledger.settle()] == ["told"]
    again = Ledger(str(tmp_path), 2)
    told, untold = again.get("told"), again.get("untold")
    assert told is not None
    assert untold is not None
    assert (told.cause, told.result, told.capture) == ("self", {"ok": True, "exit_code": 0}, None)
    assert (untold.result, untold.capture) == ({"ok": True, "text": "long"}, {"image": "i"})
    with pytest.raises(ProtocolError):
        again.begin("told", {**OP, "command": "another"}, 2)


def test_a_rewritten_ledger_says_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(str(tmp_path), 1)
    for n in range(20):
        ended(ledger, f"k{n}", text="x" * 200)
    entry, _ = ledger.begin("open", OP, 1, doubt="sleep")
    ledger.group(entry, 77)
    ledger.stamp()
    monkeypatch.setattr(module, "REWRITE_BYTES", 100)
    again, third = Ledger(str(tmp_path), 2), Ledger(str(tmp_path), 3)
    assert third.position > again.position > ledger.position
    for key in [f"k{n}" for n in range(20)] + ["open"]:
        one, other = ledger.get(key), third.get(key)
        assert one is not None
        assert other is not None
        assert {**vars(one), "position": 0, "reported": 0} == {**vars(other), "position": 0, "reported": 0}


def test_a_ledger_that_finds_no_room_to_be_rewritten_stays_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Ledger(str(tmp_path), 1)
    ended(first, "k", text="x" * 500)
    before = (tmp_path / "ledger").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(module, "REWRITE_BYTES", 100)
        patch.setattr(Ledger, "_append", lambda *_: _full())
        second = Ledger(str(tmp_path), 2)
    assert ((tmp_path / "ledger").read_bytes(), second.position) == (before, first.position)
    ended(second, "l")
    third = Ledger(str(tmp_path), 3)
    assert [state(third, key) for key in ("k", "l")] == ["ended", "ended"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger", "stamp"]


def test_an_orderly_end_is_told_to_the_next_life(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path), 4)
    ended(ledger, "k")
    ledger.close()
    again = Ledger(str(tmp_path), 5)
    assert (again.closed_by, again.older()) == (4, [])
