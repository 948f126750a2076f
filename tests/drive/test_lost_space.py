"""A supervisor that dies under a living driver: the same way as after a crash, and an end to it."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import perdure
from perdure.record import records as r
from perdure.space import image
from tests.program import functions
from tests.stage import Stage, bash, call, play, stage, turn

DOOMED = "echo half > half.txt; touch begun; sleep 600"


async def kill_supervisor(s: Stage) -> None:
    space = (await s.session.state()).workspace.space
    assert space is not None
    os.kill(space.init.pid, signal.SIGKILL)


async def kill_at(s: Stage, id: str) -> None:
    """As soon as the call has written something."""
    await s.started(id)
    await s.file("begun")
    await kill_supervisor(s)


def test_a_command_that_was_cut_off_is_taken_back_and_not_run_again(tmp_path: Path) -> None:
    async def story() -> None:
        told = "cut off by a crash.*not run again.*Taken back:.*half.txt.*may or may not have happened"
        async with stage(tmp_path, turn("", bash(DOOMED)), turn("I see", expect=told)) as s:
            (s.root / "theirs.txt").write_text("keep me\n")
            running = asyncio.create_task(s.run())
            await kill_at(s, "main.1.0")
            assert (await running).text == "I see"
            finished = (await s.finished())["main.1.0"]
            assert finished.outcome == "interrupted"
            assert [path.name for path in s.root.iterdir()] == ["theirs.txt"]
            assert (s.root / "theirs.txt").read_text() == "keep me\n"
            assert len(await s.bodies(r.CallStarted)) == 1
            assert len(await s.bodies(r.SpaceLost)) == 1

    play(story())


def test_a_repetition_of_what_was_cut_off_is_told_so_once(tmp_path: Path) -> None:
    """It runs, since that is the model's decision; another call, or one after it has succeeded, is no repetition."""

    async def story() -> None:
        again = bash("touch begun; until test -e ../go; do sleep 0.02; done; echo done")
        told = r"^\[the same as main.1.0, which was cut off and may have taken effect outside too: then it has happened twice\]\ndone"
        script = (
            turn("", again),
            turn("", again),
            turn("", again, bash("echo other"), expect=told),
            turn("done", expect="^done\n\nother"),
        )
        async with stage(tmp_path, *script) as s:
            running = asyncio.create_task(s.run())
            await s.file("begun")
            await kill_at(s, "main.1.0")
            (tmp_path / "go").touch()
            assert (await running).text == "done"

    play(story())


def test_what_was_taken_back_can_be_read(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(DOOMED)), "never asked") as s:
            running = asyncio.create_task(s.run())
            await kill_at(s, "main.1.0")
            await running
            salvage = next(body.salvage for body in await s.bodies(r.Recovered) if body.salvage)
            assert await image.read(salvage, "half.txt", s.home.store.blobs.get) == b"half\n"

    play(story())


def test_a_command_that_takes_its_space_down_twice_is_given_up(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, *[turn("", bash(DOOMED))] * 3, "alive") as s:
            running = asyncio.create_task(s.run())
            await kill_at(s, "main.1.0")
            await s.started("main.2.0")
            await kill_at(s, "main.2.0")
            answer = await running
            assert answer.outcome == "failed"
            assert "took its Space down twice" in answer.reason
            assert [f.outcome for f in (await s.finished()).values()] == ["interrupted", "interrupted"]

    play(story())


def test_calls_that_ran_together_are_started_again(tmp_path: Path) -> None:
    """They only read, so there is nothing to take back and nothing to tell."""

    async def story() -> None:
        searches = [call("search", pattern="needle"), call("search", pattern="hay")]
        async with stage(tmp_path, turn("", *searches), turn("found", expect="needle.*hay")) as s:
            for n in range(3000):
                (s.root / f"{n}.txt").write_text("hay\n" * 500 + "needle\n" * (n == 2999))
            running = asyncio.create_task(s.run())
            await s.started("main.1.1")
            await kill_supervisor(s)
            assert (await running).text == "found"
            assert all(f.outcome == "ok" for f in (await s.finished()).values())

    play(story())


def test_a_function_outside_the_space_does_not_die_with_it(tmp_path: Path) -> None:
    async def story() -> None:
        tools = [perdure.from_function(functions.meet)]
        meet = call("meet", folder=str(tmp_path), me="a", other="b")
        async with stage(tmp_path, turn("", meet), turn("", bash("echo on")), "done", tools=tools) as s:
            running = asyncio.create_task(s.run())
            await s.started("main.1.0")
            await kill_supervisor(s)
            (tmp_path / "b").touch()
            assert (await running).text == "done"
            finished = await s.finished()
            assert finished["main.1.0"].result.text == "a met b"
            assert finished["main.2.0"].result.text == "on\n"

    play(story())
