"""A session killed at every step around two questions: asked once, each call with its own word, answered by another process, in another boot."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from perdure import api
from perdure.record import records as r
from perdure.state.state import fold_all
from tests.crash.conftest import NewWorld
from tests.crash.driver import SESSION
from tests.crash.harness import ASKED, Point, World

pytestmark = [pytest.mark.crash, *([pytest.mark.slow] if ASKED else [])]

RULES = "--rules=" + json.dumps({"ask": ["bash", "write"]})


@pytest.fixture
def script(tmp_path: Path) -> Path:
    calls = [
        {"tool": "write", "args": {"path": "denied.txt", "content": "no\n"}},
        {"tool": "write", "args": {"path": "allowed.txt", "content": "yes\n"}},
    ]
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"turns": [{"calls": calls}, {"text": "Done."}]}))
    return path


def answer(world: World, call: str, verdict: str) -> None:
    async def admit() -> None:
        async with api.open(world.home) as home:
            session = await home.session(SESSION)
            await (session.approve(call) if verdict == "allow" else session.deny(call, reason="no"))

    asyncio.run(admit())


def answered_in_reverse(world: World) -> None:
    """With a driver between, which finds the first call still open."""
    answer(world, "main.1.1", "allow")
    assert world.run(RULES).said == "approval"
    answer(world, "main.1.0", "deny")


def check(world: World) -> None:
    log = world.read()
    decided = [(body.call, body.verdict, body.by) for body in log.bodies(r.CallDecided) if isinstance(body, r.CallDecided)]
    assert sorted(decided) == [("main.1.0", "deny", "person"), ("main.1.1", "allow", "person")]
    asked = [body.call for body in log.bodies(r.ApprovalRequested) if isinstance(body, r.ApprovalRequested)]
    assert asked == ["main.1.0", "main.1.1"]
    assert {id: body.outcome for id, body in log.finished.items()} == {"main.1.0": "denied", "main.1.1": "ok"}
    assert {body.call for body in log.bodies(r.CallStarted) if isinstance(body, r.CallStarted)} == {"main.1.1"}
    assert (world.root / "allowed.txt").read_text() == "yes\n" and not (world.root / "denied.txt").exists()
    assert fold_all(log.records).threads["main"].answer == "Done."


def points(steps: list[str]) -> list[int]:
    every = list(range(1, len(steps) + 1))
    if ASKED:
        return every
    return [n for n in every if steps[n - 1].startswith(("commit", "release")) and steps.index(steps[n - 1]) == n - 1]


def test_a_driver_killed_while_it_asks(new_world: NewWorld, script: Path) -> None:
    undisturbed = new_world(script)
    assert undisturbed.run(RULES).said == "approval"
    steps = undisturbed.steps(1, "driver")
    answered_in_reverse(undisturbed)
    assert undisturbed.run(RULES).said == "settled"
    check(undisturbed)
    for n in points(steps):
        world = new_world(script)
        assert world.run(RULES, at=Point("driver", n)).code == -signal.SIGKILL
        world.reboot()
        assert world.run(RULES).said == "approval", (n, steps[n - 1])
        answered_in_reverse(world)
        assert world.run(RULES).said == "settled", (n, steps[n - 1])
        check(world)
        world.close()


def test_a_driver_killed_while_it_acts_on_the_answers(new_world: NewWorld, script: Path) -> None:
    def asked() -> World:
        world = new_world(script)
        assert world.run(RULES).said == "approval"
        answered_in_reverse(world)
        return world

    undisturbed = asked()
    assert undisturbed.run(RULES).said == "settled"
    steps = undisturbed.steps(undisturbed.runs, "driver")
    for n in points(steps):
        world = asked()
        world.run(RULES, at=Point("driver", n))
        assert world.settle(RULES), (n, steps[n - 1])
        check(world)
        world.close()
