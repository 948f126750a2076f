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
from tests.stage import bash, play, stage, turn

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
