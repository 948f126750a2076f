"""A selection of the campaign: sessions under random violence are consistent at their end, in both kinds of Space."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.chaos import campaign, plan
from perdure.chaos.campaign import Options, Result, Summary, seed_of
from perdure.record.errors import UsageError
from perdure.space.launch import namespace_problem

RUNS = 10
SEEDS = (101, 102)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield tmp_path


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("space", ["host", "sandbox"])
@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_inconsistent(seed: int, space: plan.Space, folder: Path) -> None:
    if space == "sandbox" and (problem := namespace_problem()):
        pytest.skip(f"needs namespaces: {problem}")
    told: list[Result] = []
    summary = campaign.run(Options(RUNS, seed, space=space), lambda result, *_: told.append(result))
    assert [(result.seed, result.findings) for result in told if result.findings] == []
    assert len(told) == RUNS
    assert f"runs={RUNS} " in summary.line() and "inconsistent=0" in summary.line()
    assert sum(result.kills for result in told) > RUNS
    assert list(folder.iterdir()) == []


def test_a_run_of_a_campaign_can_be_repeated_alone() -> None:
    seeds = [seed_of(7, n) for n in range(50)]
    assert seeds[0] == 7 and len(set(seeds)) == 50
    again = plan.make(seeds[9], "host", None, 6)
    assert again == plan.make(seed_of(seeds[9], 0), "host", None, 6)


def test_a_plan_draws_everything_there_is() -> None:
    plans = [plan.make(seed_of(1, n), "host", None, 6) for n in range(300)]
    acts = {act for made in plans for life in made.lives for _, act in life.acts}
    assert acts >= set(plan.ACTS)
    assert 0.2 < sum(bool(made.deeds) for made in plans) / len(plans) < 0.45
    assert {made.capture for made in plans} == {"auto", "scan", "watch", "strict"}


@pytest.mark.crash
def test_ctrl_c_ends_a_campaign_with_what_there_is(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "perdure.cli.main", "chaos", "--runs", "500", "--seed", "3"]
    process = subprocess.Popen(
        command,
        env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # the tests may run in the background of a shell
    )
    deadline = time.monotonic() + 30
    while not list(tmp_path.glob("perdure-chaos-*/run-*/out/*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    assert said.startswith("SUMMARY runs=") and process.returncode == 1
    assert list(tmp_path.glob("perdure-chaos-*")) == []
    assert not running(tmp_path)


def running(folder: Path) -> list[str]:
    """Processes that are still about something in the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes() + path.with_name("environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in text and "pytest" not in path.read_text():
            found.append(path.read_text())
    return found


def test_a_campaign_that_can_not_be_says_so_before_it_begins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.space.sandbox.problem", lambda wrap: "no namespaces")
    with pytest.raises(UsageError, match="no sandbox here: no namespaces"):
        campaign.run(Options(1, 1, space="sandbox"), lambda *_: None)
    assert list(folder.iterdir()) == []
    monkeypatch.setattr("tempfile.tempdir", str(folder / "not there"))
    with pytest.raises(UsageError, match="set TMPDIR"):
        campaign.run(Options(1, 1), lambda *_: None)


def test_a_summary_counts_what_came_of_the_runs() -> None:
    summary = Summary()
    summary.results += [Result(1, calls=3, kills=2), Result(2, ("something",), calls=4, stops=1)]
    wanted = "SUMMARY runs=2 calls=7 kills=2 stops=1 people=0 recovered=0 undone=0 salvaged=0 inconsistent=1 seconds=0"
    assert summary.line() == wanted
