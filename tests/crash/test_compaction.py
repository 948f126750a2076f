"""A driver killed at each of its steps while a conversation is summed up: it is summed up once, and nothing that was done is done again."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from perdure.record import records as r
from perdure.state.state import fold_all
from tests.crash.conftest import NewWorld
from tests.crash.harness import Point

pytestmark = pytest.mark.crash

COUNT = 4


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The model's window is reached before its last turn, and it says so."""
    command = "echo x >> lines.txt; head -c 4000 /dev/zero | tr '\\0' x"
    turns = [{"text": f"Step {n}.", "calls": [{"tool": "bash", "args": {"command": command}}]} for n in range(COUNT)]
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"turns": [*turns, {"text": "Done."}], "window": 3600, "summaries": [{"text": "All went well."}]}))
    return path


def test_it_is_summed_up_once_wherever_the_driver_died(new_world: NewWorld, script: Path) -> None:
    undisturbed = new_world(script)
    assert undisturbed.run().said == "settled"
    steps = undisturbed.steps(1, "driver")
    first = steps.index("ask.failed")
    asked = [n for n, name in enumerate(steps, 1) if n > first]
    assert undisturbed.read().bodies(r.Compacted)
    for n in asked:
        world = new_world(script)
        ended = world.run(at=Point("driver", n))
        if ended.code == -signal.SIGKILL:
            world.settle()
        where = (n, steps[n - 1])
        log = world.read()
        (compacted,) = [body for body in log.bodies(r.Compacted) if isinstance(body, r.Compacted)]
        assert compacted.summary == "All went well.", where
        assert len(list(log.bodies(r.SubmissionPlaced))) == 1, where
        assert (world.root / "lines.txt").read_text() == "x\n" * COUNT, where
        assert fold_all(log.records).threads["main"].answer == "Done.", where
        world.close()
