"""A full disk is waited for by the driver that meets it: nobody has to start another one when there is room again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest

import perdure
from perdure.drive import driver
from perdure.record import records as r
from tests.stage import bash, play, stage, turn

DISK_BYTES = 4 << 20
WORK = f"head -c {DISK_BYTES // 3} /dev/zero > kept; touch begun; sleep 60"


@pytest.fixture
def small(tmp_path: Path) -> None:
    """The session's directory is a disk of its own."""
    root = tmp_path / "root-s"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(root)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting needs root")


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

    try:
        play(story())
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path / "root-s")], check=True)
