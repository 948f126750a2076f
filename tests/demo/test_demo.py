"""The demonstration itself, as `make demo` runs it: three real kills, and an agent that finishes."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.crash
def test_an_agent_that_is_killed_three_times_finishes_with_the_files_right() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from perdure.cli.main import main; main()", "demo"], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✗ SIGKILL") == 3
    assert "still runs, and is followed on" in done.stdout
    assert "taken back: cases/03.json" in done.stdout
    assert "the model goes on from the text that was kept" in done.stdout
    assert "✓ the agent finished, with 4 drivers and 2 supervisors" in done.stdout
    assert "✓ the directory is what the log says" in done.stdout
    assert "✓ the project's tests pass" in done.stdout
    assert "ran once" in done.stdout
