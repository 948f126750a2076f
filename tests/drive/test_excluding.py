"""`.perdureignore`: what is left out of the images, from when on, and what that does to undoing."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from perdure.drive import excluding
from perdure.drive.events import Notice
from perdure.record import records as r
from perdure.space import image, sandbox, supervisor
from perdure.space.launch import bubblewrap
from tests.stage import Stage, bash, play, stage, turn

IGNORED = "/build/\n*.log\n!keep.log\n"
RULES = ("/build/", "*.log", "!keep.log")


async def paths(s: Stage) -> set[str]:
    """What the newest image holds."""
    known = (await s.session.state()).workspace.image
    assert known is not None
    return {os.fsdecode(path) async for path, _ in image.walk(known.tree, s.home.store.blobs.get) if path}


def kill_supervisor(s: Stage) -> None:
    known = supervisor.recorded(s.home.spaces.folder(s.session.id))
    assert known is not None
    os.kill(known.init.pid, 9)


async def left(s: Stage) -> None:
    """Run a prompt; its driver leaves once a command has made `begun`."""
    running = asyncio.create_task(s.run())
    await s.file("begun")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def cut_off(s: Stage) -> None:
    """The same, and the supervisor dies before the next driver comes."""
    await left(s)
    kill_supervisor(s)
    await s.session.drive()


def test_what_the_rules_leave_out_is_in_no_image_and_stays_in_place(tmp_path: Path) -> None:
    async def story() -> None:
        command = "mkdir -p build/deep; touch build/deep/x a.log keep.log kept"
        async with stage(tmp_path, turn("", bash(command)), "done") as s:
            (s.root / ".perdureignore").write_text(IGNORED)
            await s.run()
            assert await paths(s) == {".perdureignore", "keep.log", "kept"}
            finished = (await s.finished())["main.1.0"]
            assert set(finished.changed) == {"keep.log", "kept"}
            (started,) = await s.bodies(r.CallStarted)
            assert started.exclude_digest == excluding.digest(RULES)
            assert (await s.session.state()).session.exclude == RULES
            assert (s.root / "build/deep/x").exists()

    play(story())


def test_without_rules_nothing_is_recorded_of_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("touch x")), "done") as s:
            (s.root / ".perdureignore").write_text("# nothing yet\n")
            await s.run()
            (started,) = await s.bodies(r.CallStarted)
            assert started.exclude_digest is None
            assert all(body.exclude is None for body in await s.bodies(r.SettingsChanged))

    play(story())


def test_an_empty_file_is_no_rule(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("touch x")), "done") as s:
            (s.root / ".perdureignore").write_text("")
            await s.run()
            assert "x" in await paths(s)

    play(story())


@pytest.mark.parametrize("capture", ["scan", "watch"])
def test_other_rules_hold_from_the_next_driver_on(tmp_path: Path, capture: str) -> None:
    async def story() -> None:
        turns = (turn("", bash("echo 1 > a.log; echo 1 > a.txt")), "one", turn("", bash("echo 2 > a.log; echo 2 > a.txt")), "two")
        async with stage(tmp_path, *turns, "three", capture=capture) as s:
            (s.root / ".perdureignore").write_text("*.log\n")
            await s.run()
            assert await paths(s) == {".perdureignore", "a.txt"}
            (s.root / ".perdureignore").write_text("*.txt\n")
            await s.run("again")
            assert await paths(s) == {".perdureignore", "a.log"}
            assert set((await s.finished())["main.3.0"].changed) == {"a.log"}
            (s.root / ".perdureignore").unlink()
            await s.run("and again")
            assert await paths(s) == {"a.log", "a.txt"}
            assert [body.exclude for body in await s.bodies(r.SettingsChanged) if body.exclude is not None] == [
                ("*.log",),
                ("*.txt",),
                (),
            ]
            known = (await s.session.state()).workspace.image
            assert known is not None
            assert await image.read(known.tree, "a.log", s.home.store.blobs.get) == b"2\n"

    play(story())


def test_the_rules_of_a_lost_supervisor_are_those_of_the_next(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("touch a.log a")), "one", turn("", bash("touch b.log b")), "two") as s:
            (s.root / ".perdureignore").write_text("*.log\n")
            await s.run()
            kill_supervisor(s)
            await s.run("again")
            assert await paths(s) == {".perdureignore", "a", "b"}
            assert set((await s.finished())["main.3.0"].changed) == {"b"}

    play(story())


def test_a_lost_call_is_undone_by_the_rules_that_it_began_with(tmp_path: Path) -> None:
    """The file says something else since before the call: what was left out then is not taken for the call's doing, nor is it removed."""

    async def story() -> None:
        first = "touch first; until test -e go.log; do sleep 0.02; done"
        lost = "echo half > half.txt; touch begun; sleep 600"
        async with stage(tmp_path, turn("", bash(first)), turn("", bash(lost)), "done") as s:
            (s.root / ".perdureignore").write_text("*.log\n")
            recovering = asyncio.create_task(cut_off(s))
            await s.file("first")
            (s.root / ".perdureignore").write_text("*.txt\n")
            (s.root / "go.log").touch()
            await recovering
            finished = (await s.finished())["main.2.0"]
            assert finished.outcome == "interrupted"
            assert not (s.root / "half.txt").exists()
            assert (s.root / ".perdureignore").read_text() == "*.txt\n"
            assert (await s.session.state()).session.exclude == ("*.txt",)
            assert await paths(s) == {".perdureignore", "first", "go.log"}

    play(story())


def test_a_call_that_changed_what_is_left_out_can_not_count_as_undone(tmp_path: Path) -> None:
    async def story() -> None:
        command = "echo half > half.txt; echo half > half.log; touch begun; sleep 600"
        told = "left out by the exclude rules, and changed: half.log"
        async with stage(tmp_path, turn("", bash(command)), turn("done", expect=told)) as s:
            (s.root / ".perdureignore").write_text("*.log\n")
            await cut_off(s)
            assert (await s.finished())["main.1.0"].outcome == "unknown"
            assert (s.root / "half.log").exists() and (s.root / "half.txt").exists()

    play(story())


@pytest.mark.skipif(bool(sandbox.problem(bubblewrap())), reason="no sandbox here")
@pytest.mark.parametrize(("rules", "outcome"), [("# none\n", "ok"), ("*.log\n", "interrupted")])
def test_in_a_sandbox_a_command_is_rerun_only_where_nothing_is_left_out(tmp_path: Path, rules: str, outcome: str) -> None:
    async def story() -> None:
        command = "touch begun; while [ ! -e go ]; do sleep 0.02; done"
        async with stage(tmp_path, turn("", bash(command)), "done", space="sandbox") as s:
            (s.root / ".perdureignore").write_text(rules)
            recovering = asyncio.create_task(cut_off(s))
            await s.until(
                lambda body: isinstance(body, r.CallFinished) or (isinstance(body, r.CallStarted) and body.attempt == 2)
            )
            (s.root / "go").touch()
            await recovering
            assert (await s.finished())["main.1.0"].outcome == outcome

    play(story())


def test_an_adopted_call_goes_on_under_its_rules(tmp_path: Path) -> None:
    """The driver left and another came, the file changed between: the call is finished under what it began with, the one after it too."""

    async def story() -> None:
        command = "touch begun; until test -e go.log; do sleep 0.02; done; touch x.txt x.log"
        turns = turn("", bash(command)), turn("", bash("touch y.txt y.log")), "done", turn("", bash("true")), "again"
        async with stage(tmp_path, *turns) as s:
            (s.root / ".perdureignore").write_text("*.log\n")
            await left(s)
            (s.root / ".perdureignore").write_text("*.txt\n")
            (s.root / "go.log").touch()
            await s.session.drive()
            finished = await s.finished()
            assert set(finished["main.1.0"].changed) >= {"x.txt"}
            assert set(finished["main.2.0"].changed) == {"y.txt"}
            digests = [body.exclude_digest for body in await s.bodies(r.CallStarted)]
            assert digests == [excluding.digest(("*.log",))] * 2
            await s.run("more")
            assert await paths(s) == {".perdureignore", "begun", "go.log", "x.log", "y.log"}

    play(story())


def test_a_driver_that_dies_between_the_space_and_the_log_leaves_the_logs_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Space went by other rules already when the driver was cut off; the next one goes by what the log has."""

    async def story() -> None:
        command = "echo half > half.txt; touch begun; until test -e ../go; do sleep 0.02; done"
        async with stage(tmp_path, "one", turn("", bash(command)), "two") as s:
            (s.root / ".perdureignore").write_text("*.log\n")
            await s.run()

            def cut(_: object) -> None:
                raise asyncio.CancelledError

            (s.root / ".perdureignore").write_text("*.txt\n")
            with monkeypatch.context() as patch:
                patch.setattr(excluding, "Draft", cut)
                with pytest.raises(asyncio.CancelledError):
                    await s.session.run("again")
            assert (await s.session.state()).session.exclude == ("*.log",)
            (s.root / ".perdureignore").write_text("*.log\n")
            (tmp_path / "go").touch()
            await s.session.drive()
            assert await paths(s) == {".perdureignore", "half.txt", "begun"}

    play(story())


def test_a_file_that_is_no_list_of_rules_is_not_used_in_part(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("touch x")), "done") as s:
            (s.root / ".perdureignore").write_text("x\n" * (excluding.MAX_BYTES // 2 + 1))
            seen: list[object] = []
            await s.run(emit=seen.append)
            assert [event.text for event in seen if isinstance(event, Notice)] == [
                ".perdureignore has more than 1048576 bytes and is not used; make it shorter"
            ]
            assert "x" in await paths(s)

    play(story())
