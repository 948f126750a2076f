"""Whoever was frozen, and thaws after another driver has taken over, finds every door shut.

A driver is stopped when a call's start is committed and it was about to act. Or a slow command is cut off with its driver and its supervisor, and what
recovers it, a driver or the new supervisor, is stopped at a step. A second driver takes over and goes on to the end of the session; then the first one goes on.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.crash.campaign import Undisturbed
from tests.crash.conftest import NewWorld
from tests.crash.harness import ASKED, Point, World, check, finish, wait_for

pytestmark = pytest.mark.crash

STALE = 75


def cut_off(world: World) -> None:
    """The slow command has begun, and everything dies."""
    driver = world.start()
    wait_for((world.root / "slow.txt").exists, "the slow command's first line")
    driver.kill()
    finish(driver)
    world.kill_supervisor()


def recovery(new_world: NewWorld, role: str, first: str, *some: str) -> list[int]:
    """The numbers of a role's steps in an undisturbed recovery: of those names, or of everything between them."""
    world = new_world()
    cut_off(world)
    world.settle()
    names = world.steps(2, role)
    if ASKED:
        return list(range(names.index(first) + 1, names.index(some[-1]) + 2))
    return [names.index(name) + 1 for name in (first, *some)]


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_a_thawed_driver_changes_neither_the_log_nor_the_files(new_world: NewWorld) -> None:
    for n in recovery(new_world, "driver", "acquire.after", "recover.fenced", "recover.undo", "recover.undone"):
        overtake_a_frozen_driver(new_world(), n)


def test_a_thawed_driver_starts_nothing(new_world: NewWorld, undisturbed: Undisturbed) -> None:
    """Its call has been started by another one meanwhile, with its effects outside."""
    acting = [n for n, name in enumerate(undisturbed.steps["driver"], 1) if name.startswith("op.before:")]
    for n in acting if ASKED else [acting[0], acting[2]]:
        world = new_world()
        overtake(world, world.start(at=Point("driver", n, "stop")))
        check(world, undisturbed.log, kills=1)
        world.close()


def test_a_thawed_driver_runs_no_tool_outside_of_the_space(new_world: NewWorld, undisturbed: Undisturbed) -> None:
    """The model has been told meanwhile that the outcome is unknown, and may have looked."""
    world = new_world()
    overtake(world, world.start(at=Point("driver", undisturbed.steps["driver"].index("op.before:charge") + 1, "stop")))
    assert "charge" not in world.counts()
    world.close()


def overtake_a_frozen_driver(world: World, n: int) -> None:
    cut_off(world)
    overtake(world, world.start(at=Point("driver", n, "stop")))
    world.close()


def overtake(world: World, frozen: subprocess.Popen[str]) -> None:
    wait_for(lambda: stopped(frozen.pid), "the stop")
    assert world.run("--take").said == "settled"
    files, records = world.files(), world.read().records
    os.kill(frozen.pid, signal.SIGCONT)
    ended = finish(frozen)
    assert ended.code == STALE, f"stopped at {world.steps(world.runs - 1, 'driver')[-1]} it ended with {ended}"
    assert world.files() == files
    assert world.read().records == records


@pytest.mark.slow
def test_a_thawed_supervisor_changes_nothing(new_world: NewWorld) -> None:
    """It was silent, so whoever came first has killed it; its own driver, which was not frozen, hears so."""
    for n in recovery(new_world, "spaced", "restore", "before unlink", "restored")[:: 1 if ASKED else 2]:
        overtake_a_frozen_supervisor(new_world(), n)


def overtake_a_frozen_supervisor(world: World, n: int) -> None:
    cut_off(world)
    old = world.start(at=Point("spaced", n, "stop"))
    wait_for(lambda: world.fired(2), "the stop")
    pid = world.supervisor()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    world.trace(2).with_name("steps-2.go").touch()
    assert world.run("--take").said == "settled"
    files, records = world.files(), world.read().records
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    ended = finish(old)
    assert ended.code == STALE, f"stopped at {world.steps(2, 'spaced')[n - 1]} its driver ended with {ended}"
    assert world.files() == files
    assert world.read().records == records
    world.close()
