"""A full disk is waited for by the driver that meets it: nobody has to start another one when there is room again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure.drive import driver
from perdure.record import records as r
from tests.program import functions
from tests.stage import bash, call, play, stage, turn

DISK_BYTES = 4 << 20
WORK = f"head -c {DISK_BYTES // 3} /dev/zero > kept; touch begun; sleep 60"


@pytest.fixture
def small(tmp_path: Path) -> Iterator[None]:
    """The session's directory is a disk of its own."""
    with _disk(tmp_path / "root-s"):
        yield


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    folder.mkdir(mode=0o700, parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=700", "none", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_an_undo_waits_for_room_and_goes_on(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "FULL_RETRY_S", 0.2)
    before = os.urandom(DISK_BYTES // 2)
    notices: list[str] = []

    async def story() -> None:
        async with stage(tmp_path, turn("", bash(WORK)), "done") as s:
            mine = s.root / "mine"

            def emit(event: perdure.Event) -> None:
                """A person who fills the disk behind the crash, and makes room when it is asked for."""
                if isinstance(event, perdure.Recorded) and isinstance(event.stored.body, r.SpaceLost):
                    with contextlib.suppress(OSError):
                        mine.write_bytes(b"m" * DISK_BYTES)
                if isinstance(event, perdure.Notice) and "is full" in event.text:
                    notices.append(event.text)
                    mine.unlink(missing_ok=True)

            (s.root / "kept").write_bytes(before)
            running = asyncio.create_task(s.run("go", emit=emit))
            await s.file("begun")
            os.kill((await s.bodies(r.SpaceOpened))[-1].init.pid, signal.SIGKILL)
            assert (await running).outcome == "answered"
            assert (s.root / "kept").read_bytes() == before
            assert (await s.finished())["main.1.0"].outcome == "interrupted"
            assert notices

    play(story())


def test_a_call_that_found_no_room_to_begin_begins_when_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "FULL_RETRY_S", 0.2)
    notices: list[str] = []

    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo 1 > mine")), "done") as s:
            theirs = s.root / "theirs"

            def emit(event: perdure.Event) -> None:
                """A person who leaves more than the Space can look at, just before the call begins."""
                if isinstance(event, perdure.Recorded) and isinstance(event.stored.body, r.CallStarted) and not notices:
                    theirs.write_bytes(os.urandom(2 * DISK_BYTES))
                if isinstance(event, perdure.Notice) and "is full" in event.text:
                    notices.append(event.text)
                    theirs.unlink(missing_ok=True)

            assert (await s.run("go", emit=emit)).outcome == "answered"
            assert notices
            assert [body.decision for body in await s.bodies(r.Recovered)] == ["start"]
            assert (s.root / "mine").read_text() == "1\n"

    (tmp_path / "home" / "spaces").mkdir(mode=0o700, parents=True)
    (tmp_path / "home").chmod(0o700)
    with _disk(tmp_path / "home" / "spaces" / "s"):
        play(story())


def test_a_command_that_fills_its_disk_ends_with_its_own_error(small: None, tmp_path: Path) -> None:
    fill = bash("head -c 100M /dev/urandom > big && echo whole")
    clear = bash("rm big && echo room > room")

    async def story() -> None:
        async with stage(
            tmp_path, turn("", fill), turn("", call("write", path="new", content="n" * 5000)), turn("", clear), "done"
        ) as s:
            (s.root / "kept").write_text("kept\n")
            assert (await s.run()).outcome == "answered"
            finished = await s.finished()
            assert [body.outcome for body in finished.values()] == ["error", "error", "ok"]
            assert [body.changed for body in finished.values()] == [("big",), (), ("big", "room")]
            for id in ("main.1.0", "main.2.0"):
                assert "No space left on device" in finished[id].result.text
            assert sorted(os.listdir(s.root)) == ["kept", "room"]
            assert not [body for body in await s.bodies(r.WorkspaceChanged) if body.found_by != "open"]

    play(story())


@pytest.fixture
def small_state(tmp_path: Path) -> Iterator[Path]:
    """The Space's own folder is a disk of its own, half of it somebody else's: removing that file makes room."""
    (tmp_path / "home" / "spaces").mkdir(mode=0o700, parents=True)
    (tmp_path / "home").chmod(0o700)
    folder = tmp_path / "home" / "spaces" / "s"
    with _disk(folder):
        theirs = folder / "theirs"
        theirs.write_bytes(bytes(DISK_BYTES // 2))
        yield theirs


class Room:
    """Makes room as soon as it is asked for."""

    def __init__(self, theirs: Path) -> None:
        self.theirs = theirs
        self.asked: list[str] = []

    def __call__(self, event: perdure.Event) -> None:
        if isinstance(event, perdure.Notice):
            self.asked.append(event.text)
            assert "is full" in event.text and "make room" in event.text
            self.theirs.unlink(missing_ok=True)


def test_what_a_command_prints_may_fill_the_disk_that_it_is_kept_on(
    small_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its outcome waits for room, with a name, and so does the next life of a supervisor."""
    monkeypatch.setattr(driver, "FULL_RETRY_S", 0.2)
    room = Room(small_state)

    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo x >> count; yes | head -c 100M")), turn("", bash("echo on")), "done") as s:
            assert (await s.run("go", emit=room)).outcome == "answered"
            assert room.asked and str(small_state.parent / "ledger") in room.asked[0]
            finished = await s.finished()
            assert [body.outcome for body in finished.values()] == ["error", "ok"]
            said = finished["main.1.0"].result.text
            assert "y\ny\n" in said and "may be cut short" in said and "could not be captured" in said
            found = (await s.bodies(r.WorkspaceChanged))[-1]
            assert (found.found_by, found.paths, found.perhaps_by) == ("before_call", ("count",), ("main.1.0",))
            told = await s.told()
            assert "were changed by main.1.0, at whose end they could not be captured, or by someone else" in told
            assert (s.root / "count").read_text() == "x\n"

    play(story())


def test_a_supervisor_that_finds_no_room_to_begin_is_waited_for(
    small_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "FULL_RETRY_S", 0.2)
    room = Room(small_state)
    with contextlib.suppress(OSError):
        small_state.write_bytes(bytes(2 * DISK_BYTES))

    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo on")), "done") as s:
            assert (await s.run("go", emit=room)).outcome == "answered"
            assert room.asked and (await s.finished())["main.1.0"].outcome == "ok"

    play(story())


def test_what_a_function_answered_is_kept_when_there_is_no_room_to_look_at_what_it_changed(
    small_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "FULL_RETRY_S", 0.2)
    room = Room(small_state)

    async def story() -> None:
        scribble = call("scribble", path="big", size_bytes=DISK_BYTES * 3 // 4)
        tools = [perdure.from_function(functions.scribble)]
        async with stage(tmp_path, turn("", scribble), turn("", bash("echo on")), "done", tools=tools) as s:
            assert (await s.run("go", emit=room)).outcome == "answered"
            assert room.asked
            finished = await s.finished()
            assert (finished["main.1.0"].outcome, finished["main.1.0"].result.text) == ("ok", "scribbled")
            assert (tmp_path / "scribbled").read_text() == "once\n"
            found = (await s.bodies(r.WorkspaceChanged))[-1]
            assert (found.paths, found.perhaps_by) == (("big",), ("main.1.0",))

    play(story())
