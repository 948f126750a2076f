"""Each part of the bench runs, and gives what it says it gives."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from bench import captures, crash_table, table
from bench.captures import FLAT, NESTED
from bench.figure import Figure

linux = pytest.mark.skipif(sys.platform != "linux", reason="watches, and proof that everything is dead, are Linux's")


@linux
def test_captures_are_measured_by_both_engines_beside_the_others_technique(tmp_path: Path) -> None:
    figures = list(captures.measure(tmp_path, trees=((40, NESTED), (40, FLAT)), repeats=2))
    assert all(figure.value > 0 for figure in figures)
    compared = {figure.name for figure in figures if figure.ratio}
    assert compared == {
        f"40 files {shape}: capture of a call, {engine}" for shape in (NESTED, FLAT) for engine in ("scan", "watch")
    }
    assert not any(figure.note for figure in figures), "a watch capture had to scan"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.crash
@linux
def test_a_killed_tool_is_not_repeated_and_the_model_is_told(tmp_path: Path) -> None:
    ours = next(crash_table.crashes(tmp_path, rivals=()))
    assert ours.note == "effect 1 ×, model told, tree put back, finished by itself"
    assert ours.value > 0


def test_the_loop_of_ones_own_repeats_its_effect_unseen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_table, "PYTHON", Path(sys.executable))
    _, other, *_ = crash_table.crashes(tmp_path, rivals=("raw_sqlite",))
    assert other.note == "effect 2 ×, model not told, tree left half changed, finished by itself"


def test_what_is_not_installed_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_table, "PYTHON", tmp_path / "none")
    figures = list(crash_table.turn_costs(tmp_path, count=21, rivals=("langgraph_sqlite",)))
    assert [figure.note for figure in figures[1:]] == ["not installed: `make rivals`"]
    assert math.isnan(figures[1].value)


def test_the_table_has_ratios_targets_and_reasons() -> None:
    figures = [
        Figure("captures", "a call", 1.5, "ms", "<= 2", (), 2345.6, "less than theirs"),
        Figure("killed in a tool", "Other", math.nan, "", note="not installed"),
    ]
    plain, page = table.plain(figures), table.page(figures, "make bench")
    assert "2,346 × less than theirs" in plain and "not installed" in plain and "–" in plain
    assert "| a call | 1.50 ms | 2,346 × less than theirs | <= 2 |  |" in page and "## killed in a tool" in page
