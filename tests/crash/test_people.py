"""Whatever dies, and whenever a person works in the same directory: every byte of hers stays, and becomes `workspace_changed`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from perdure.drive.recovery import STAMP_SLACK_NS
from perdure.record import records as r
from perdure.spaced.ledger import coarse_ns
from tests.crash import people, story
from tests.crash.campaign import Kill, Undisturbed, carry_out, for_each, kills
from tests.crash.conftest import NewWorld
from tests.crash.harness import ASKED, Log, Point, World, check, finish, wait_for
from tests.crash.story import Files

pytestmark = [pytest.mark.crash, *([pytest.mark.slow] if ASKED else [])]

SHARDS = 8
BEFORE, BETWEEN, LATER = TIMES = ("before", "between", "later")
"""Before the crash; between crash and resume; between settlement and a reboot."""
SECOND_TURN = 25
"""About the driver's step at which the second turn is asked for, and no call is open."""


def hers(*worked: str) -> Files:
    """Her folders: those in which she has worked, and the others."""
    files: Files = {}
    for when in TIMES:
        files.update(people.after(when) if when in worked else people.before(when))
    return files


def expected(world: World, *worked: str) -> Files:
    """The workspace, from the calls' outcomes and from when she has worked."""
    outcomes = {id: body.outcome for id, body in world.read().finished.items()}
    return {**story.after(outcomes), **hers(*worked)}


@pytest.fixture
def her_world(new_world: NewWorld) -> NewWorld:
    """Makes a world in which she is at home."""

    def make() -> World:
        world = new_world(more=hers())
        for when in TIMES:
            people.pack(world.root, when)
        return world

    return make


@pytest.mark.parametrize("shard", range(SHARDS))
def test_what_a_person_does_at_any_time_stays(undisturbed: Undisturbed, shard: int, her_world: NewWorld) -> None:
    def survive(kill: Kill, world: World) -> None:
        world.run(at=Point("driver", undisturbed.steps["driver"].index("ask.before") + 1))
        world.kill_supervisor()
        people.work(world.root, BEFORE)
        carry_out(kill, world)
        after_the_last_sign_of_life(world)
        people.work(world.root, BETWEEN)
        world.settle()
        assert world.files() == expected(world, BEFORE, BETWEEN)
        people.work(world.root, LATER)
        ledger = world.ledger()
        world.reboot()
        world.settle("--say=again")
        assert world.files() == {**expected(world, *TIMES), story.AGAIN: "again\n"} == world.read().files
        check(world, undisturbed.log, kills=1, theirs={**hers(*TIMES), story.AGAIN: "again\n"}, ledger=ledger)
        log = world.read()
        told = log.changed_by_others()
        assert people.paths(BEFORE) <= told and people.paths(LATER) <= told
        assert people.paths(BETWEEN) <= told | (of_unknown_calls(log) if kill.both else the_calls(log))

    for_each(kills(undisturbed.steps, part=6)[shard::SHARDS], survive, her_world, undisturbed.steps)


def after_the_last_sign_of_life(world: World, *, ledger_counts: bool = True) -> None:
    """Wait until no lost call could be thought to have done what happens now.

    Where the ledger does not count any more, as after a reboot, a call that only the log knows of may have begun as well.
    """
    seen_ns = world.last_sign_of_life()
    if not ledger_counts:
        seen_ns = max(seen_ns or 0, coarse_ns())
    if seen_ns is not None:
        wait_for(lambda: coarse_ns() > seen_ns + STAMP_SLACK_NS, "the end of the window")


def test_work_that_fell_into_the_window_of_a_lost_call_is_salvaged(her_world: NewWorld, undisturbed: Undisturbed) -> None:
    world = her_world()
    driver = begin_the_slow_command(world)
    people.work(world.root, BEFORE)
    driver.kill()
    finish(driver)
    world.kill_supervisor()
    world.settle()
    check(world, undisturbed.log, kills=1, theirs=hers())
    (recovered,) = (body for body in world.read().bodies(r.Recovered) if body.salvage)  # type: ignore[union-attr]
    salvaged = asyncio.run(world.image(recovered.salvage))  # type: ignore[union-attr]
    was, done = people.before(BEFORE), people.after(BEFORE)
    new = {path: content for path, content in done.items() if content is not None and content not in was.values()}
    assert new.items() <= salvaged.items()


def test_what_she_makes_of_a_lost_calls_file_stays(her_world: NewWorld, undisturbed: Undisturbed) -> None:
    """The slow command's own file, which she has edited since the crash: the session asks, and keeps it."""
    world = her_world()
    driver = begin_the_slow_command(world)
    driver.kill()
    finish(driver)
    world.kill_supervisor()
    after_the_last_sign_of_life(world)
    (world.root / "slow.txt").write_text("hers now\n")
    assert world.run().said == "changed_after_crash"
    assert (world.root / "slow.txt").read_text() == "hers now\n"
    world.settle("--answer=changed_after_crash=keep")
    check(world, undisturbed.log, kills=1, theirs={**hers(), "slow.txt": "hers now\n"})


def test_a_reboot_before_the_resume_takes_nothing_of_hers(her_world: NewWorld, undisturbed: Undisturbed) -> None:
    """With a call cut off, whose Space's memory is gone with the boot, and with none, where a torn file may be mended."""
    for begin in (begin_the_slow_command, begin_the_second_turn):
        world = her_world()
        driver = begin(world)
        driver.kill()
        finish(driver)
        world.kill_supervisor()
        after_the_last_sign_of_life(world, ledger_counts=False)
        people.work(world.root, BETWEEN)
        world.reboot()
        people.work(world.root, LATER)
        world.settle()
        files = world.files()
        assert {path: files.get(path) for path in hers(BETWEEN, LATER)} == hers(BETWEEN, LATER)
        assert not files.keys() & (hers().keys() - hers(BETWEEN, LATER).keys())
        world.close()


def test_a_second_death_does_not_stretch_the_window(her_world: NewWorld, undisturbed: Undisturbed) -> None:
    """The successor of a lost call's supervisor dies too, and that is seen: she had worked before."""
    world = her_world()
    driver = begin_the_slow_command(world)
    driver.kill()
    finish(driver)
    world.kill_supervisor()
    after_the_last_sign_of_life(world)
    people.work(world.root, BETWEEN)
    probe = world.start(at=Point("spaced", 4, "stop"))
    wait_for(lambda: world.fired(world.runs), "the successor's first answer")
    probe.kill()
    finish(probe)
    pid = world.supervisor()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # a driver kills what is silent, and sees it die
    world.settle()
    check(world, undisturbed.log, kills=2, theirs=hers(BETWEEN))


def test_a_second_session_on_the_same_directory_keeps_its_work(new_world: NewWorld, tmp_path: Path) -> None:
    """It works when the first one has settled and dies in the middle; the first one goes on afterwards."""
    first = _script(tmp_path / "first.json", "echo first >> both.txt", "echo again >> both.txt")
    second = _script(tmp_path / "second.json", "echo second >> both.txt; mv old.txt moved.txt; sleep 0.2; rm -r stale")
    world = new_world(first)
    assert world.run().said == "settled"
    world.script = second
    driver = world.start("--session=second")
    wait_for((world.root / "moved.txt").exists, "the second session's command")
    driver.kill()
    finish(driver)
    assert world.run("--session=second").said == "settled"
    world.script = first
    assert world.run("--say=again").said == "settled"
    kept = {path: content for path, content in story.BEFORE.items() if not path.startswith(("old", "stale"))}
    assert world.files() == {**kept, "moved.txt": "old\n", "both.txt": "first\nsecond\nagain\n"}
    assert {"moved.txt", "stale/a"} <= world.read().changed_by_others()


def _script(path: Path, *commands: str) -> Path:
    turns: list[dict[str, object]] = []
    for command in commands:
        turns += [{"calls": [{"tool": "bash", "args": {"command": command}}]}, {"text": "Done."}]
    path.write_text(json.dumps({"turns": turns}))
    return path


def begin_the_slow_command(world: World) -> subprocess.Popen[str]:
    driver = world.start()
    wait_for((world.root / "slow.txt").exists, "the slow command's first line")
    return driver


def begin_the_second_turn(world: World) -> subprocess.Popen[str]:
    driver = world.start(at=Point("driver", SECOND_TURN, "stop"))
    wait_for(lambda: world.fired(world.runs), "the second turn")
    return driver


def the_calls(log: Log) -> set[str]:
    """The paths that changed while a call ran."""
    return {path for body in log.finished.values() for path in body.changed}


def of_unknown_calls(log: Log) -> set[str]:
    """The paths that changed since the start of a call of which nothing is known."""
    return {path for body in log.finished.values() if body.outcome == "unknown" for path in body.changed}
