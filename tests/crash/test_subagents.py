"""A session whose subagent is at work, killed at every step: one answer for the call, each effect once or told, nothing left open."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perdure.record import records as r
from perdure.state.state import fold_all
from tests.crash.campaign import Kill, carry_out, for_each, kills
from tests.crash.conftest import NewWorld
from tests.crash.harness import ASKED, World

pytestmark = [pytest.mark.crash, *([pytest.mark.slow] if ASKED else [])]

ANSWERS = ("It is done and was looked at.", "Then it is done.")


def script(path: Path) -> Path:
    def call(tool: str, **args: object) -> dict[str, object]:
        return {"tool": tool, "args": args}

    write = call("write", path="a.txt", content="one\n")
    append = call("bash", command='echo x >> "$EFFECTS/appended"; echo two >> a.txt')
    tasks = {
        "^do it": [{"calls": [write]}, {"calls": [append]}, {"text": "Done."}],
        "^look": [{"calls": [call("read", path="a.txt")]}, {"text": "I have looked."}],
    }
    turns = [
        {"calls": [call("task", prompt="do it"), call("task", prompt="look at it")]},
        {"expect": "Done.*I have looked", "text": ANSWERS[0]},
        {"text": ANSWERS[1]},
    ]
    path.write_text(json.dumps({"turns": turns, "tasks": tasks}))
    return path


def world_of(new_world: NewWorld, tmp_path: Path) -> World:
    return new_world(script(tmp_path / "script.json"))


def check(world: World) -> None:
    records = world.read().records
    state = fold_all(records)
    assert list(state.threads) == ["main"] and not state.calls and not state.submissions
    assert state.threads["main"].answer == ANSWERS[0]
    finished = [stored.body for stored in records if isinstance(stored.body, r.CallFinished)]
    outcomes = {body.call: body.outcome for body in finished}
    assert len(finished) == len(outcomes)
    assert outcomes["main.1.0"] == outcomes["main.1.1"] == "ok"
    appended = (world.effects / "appended").read_text().count("x") if (world.effects / "appended").exists() else 0
    text = "one\ntwo\n" if outcomes["main.1.0.2.0"] == "ok" else "one\n"
    assert (world.root / "a.txt").read_text() == text
    assert appended <= 1 and (appended == 1 or outcomes["main.1.0.2.0"] != "ok")
    opened = [stored.body.name for stored in records if isinstance(stored.body, r.ThreadOpened)]
    assert opened == ["main", "main.1.0", "main.1.1"]


@pytest.mark.parametrize("shard", range(2))
def test_a_subagent_killed_with_its_session_at_any_step_goes_on(shard: int, new_world: NewWorld, tmp_path: Path) -> None:
    undisturbed = world_of(new_world, tmp_path)
    assert undisturbed.run().said == "settled"
    check(undisturbed)
    steps = {role: undisturbed.steps(1, role) for role in ("driver", "spaced")}

    def survive(kill: Kill, world: World) -> None:
        carry_out(kill, world)
        world.settle()
        check(world)

    for_each(kills(steps)[shard::2], survive, lambda: world_of(new_world, tmp_path), steps)
