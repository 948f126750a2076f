"""The directory that a session works in is the one that people see at its path; where it is not, the session waits and says so."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
from pathlib import Path

import pytest

from perdure.record import records as r
from tests.stage import Stage, bash, play, stage, turn

SHOWN = "touch begun; while [ ! -e go ]; do sleep 0.02; done; echo one > one"


async def waits_for(s: Stage, reason: str) -> str:
    answer = await s.run()
    assert (answer.outcome, answer.waiting_for) == ("waiting", reason)
    return answer.detail


@pytest.mark.parametrize("put_back", [True, False])
def test_a_root_that_is_moved_away_while_a_command_runs_is_not_written_to_any_more(tmp_path: Path, put_back: bool) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(SHOWN)), turn("", bash("echo two > two")), "done") as s:
            running = asyncio.create_task(waits_for(s, "root_replaced"))
            await s.file("begun")
            moved = s.root.rename(tmp_path / "moved")
            s.root.mkdir()
            (s.root / "mine").write_text("mine\n")
            (moved / "go").touch()
            assert "another directory" in await running
            assert (await s.finished())["main.1.0"].image is None
            assert not (moved / "two").exists() and os.listdir(s.root) == ["mine"]
            if not put_back:
                return
            s.root.rename(tmp_path / "aside")
            moved.rename(s.root)
            await s.session.drive()
            assert (s.root / "two").read_text() == "two\n"
            assert (tmp_path / "aside" / "mine").read_text() == "mine\n"
            assert any("one" in body.paths for body in await s.bodies(r.WorkspaceChanged))

    play(story())


@pytest.mark.parametrize("command", ['rm -rf "$PWD"', 'd="$PWD"; cd /; rm -rf "$d"; mkdir "$d"; echo new > "$d/new"'])
def test_a_command_that_takes_its_own_root_away_is_the_last_one(tmp_path: Path, command: str) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(command)), turn("", bash("echo two > two")), "done") as s:
            await waits_for(s, "root_replaced")
            assert list(await s.finished()) == ["main.1.0"]
            assert not (s.root / "two").exists()

    play(story())


def test_a_path_that_leads_nowhere_is_a_root_to_be_put_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo one > one")), "done") as s:
            real = s.root.rename(tmp_path / "real")
            s.root.symlink_to(s.root)
            await waits_for(s, "root_replaced")
            s.root.unlink()
            real.rename(s.root)
            await s.session.drive()
            assert (s.root / "one").read_text() == "one\n"

    play(story())


def test_a_directory_that_somebody_holds_is_waited_for_by_name(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo one > one")), "done") as s:
            held = os.open(s.root, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(held, fcntl.LOCK_EX)
            assert "is held by another" in await waits_for(s, "space_unavailable")
            os.close(held)
            await s.session.drive()
            assert (s.root / "one").read_text() == "one\n"

    play(story())


def test_a_watcher_looks_again_whether_a_directory_is_still_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.drive.recovery.HELD_S", 0.2)

    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo one > one")), "done") as s:
            held = os.open(s.root, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(held, fcntl.LOCK_EX)
            await waits_for(s, "space_unavailable")
            watching = asyncio.create_task(s.opened.watch())
            os.close(held)
            await s.file("one")
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    play(story())


def test_a_directory_that_can_not_be_read_is_waited_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", path)

    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo one > one")), "done") as s:
            with monkeypatch.context() as patched:  # nothing is forbidden to root, which runs the tests in containers
                patched.setattr("perdure.engine.hosting.os.scandir", refuse)
                assert "Permission denied" in await waits_for(s, "space_unavailable")
            await s.session.drive()
            assert (s.root / "one").read_text() == "one\n"

    play(story())


def test_a_supervisor_that_can_not_be_started_is_waited_for_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo one > one")), "done") as s:
            with monkeypatch.context() as patched:
                patched.setattr("perdure.space.launch.sys.executable", str(tmp_path / "no-python"))
                patched.setattr("perdure.space.host.START_S", 0.1)
                assert "did not come up" in await waits_for(s, "space_unavailable")
            await s.session.drive()
            assert (s.root / "one").read_text() == "one\n"

    play(story())
