"""A driver killed at each of its steps while one model gives nothing and the next one answers: who is asked follows from the log alone."""

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


@pytest.fixture
def scripts(tmp_path: Path) -> str:
    """Both, as the rest of a name that begins with `scripted:`."""
    never = {"text": "never", "error": {"status": 401, "times": 9}}
    call = {"tool": "read", "args": {"path": "notes.txt"}}
    for name, turns in (("first", [never, never]), ("second", [{"text": "Looking.", "calls": [call]}, {"text": "Done."}])):
        (tmp_path / f"{name}.json").write_text(json.dumps({"turns": turns}))
    return f"{tmp_path}/first.json,scripted:{tmp_path}/second.json"


def test_the_next_model_is_asked_wherever_the_driver_died(new_world: NewWorld, scripts: str) -> None:
    undisturbed = new_world(scripts)
    assert undisturbed.run().said == "settled"
    steps = undisturbed.steps(1, "driver")
    for n in range(steps.index("ask.before") + 1, len(steps) + 1):
        world = new_world(scripts)
        ended = world.run(at=Point("driver", n))
        if ended.code == -signal.SIGKILL:
            assert world.run().said == "settled", (n, steps[n - 1])
        log = world.read()
        failed = [body for body in log.bodies(r.ModelFailed) if isinstance(body, r.ModelFailed)]
        responded = [body for body in log.bodies(r.ModelResponded) if isinstance(body, r.ModelResponded)]
        assert [body.next_model for body in failed] == [f"scripted:{scripts.partition(',scripted:')[2]}"], (n, steps[n - 1])
        assert {body.model for body in responded} == {failed[0].next_model}, (n, steps[n - 1])
        assert fold_all(log.records).threads["main"].answer == "Done."
        world.close()
