"""A power cut takes back what the disk had not synced: files that the log knows better are put back, and nobody's edits are.

A ctime can't be set, so the log's clock is: the newest image is dated a little later than it was captured, and the machine's boot becomes another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import time
import zlib
from pathlib import Path

import apsw
import pytest

import perdure
from perdure.api import Opened, Session
from perdure.record import records as r
from perdure.record.records import Stored

SCRIPT = {
    "turns": [{"calls": [{"tool": "write", "args": {"path": "a.txt", "content": "whole\n"}}]}, {"text": "done", "delay_s": 1}]
}
ANOTHER_BOOT = "00000000-0000-4000-8000-000000000000"
pytestmark = pytest.mark.crash


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "script.json").write_text(json.dumps(SCRIPT))
    project = tmp_path / "project"
    project.mkdir()
    (project / "mine.txt").write_text("mine\n")
    return project


async def records(session: Session) -> list[Stored]:
    return [stored async for stored in session.records()]


async def begin(home: Opened, project: Path) -> Session:
    """A session whose write is committed, and whose driver is gone before anything was synced."""
    session = await home.session("s", directory=project, model=f"scripted:{project.parent / 'script.json'}")
    await session.submit("go")
    driving = asyncio.create_task(session.drive())
    while not any(isinstance(s.body, r.CallFinished) for s in await records(session)):
        await asyncio.sleep(0.01)
    driving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await driving
    opened = next(s.body for s in await records(session) if isinstance(s.body, r.SpaceOpened))
    os.kill(opened.init.pid, signal.SIGKILL)
    return session


def cut_the_power(home: Path, *, image_at_ns: int) -> None:
    """The boot is another one, and the newest image was captured at that time."""
    connection = apsw.Connection(str(home / "log.db"))
    rows = list(connection.execute("SELECT key, body FROM record ORDER BY key"))
    images = [key for key, body in rows if b'"kind":"call_finished"' in body]
    for key, body in rows:
        if key == images[-1]:
            body = re.sub(rb'"clock_ns":\d+', b'"clock_ns":%d' % image_at_ns, body)
        body = re.sub(rb'"boot_id":"[^"]*"', b'"boot_id":"%s"' % ANOTHER_BOOT.encode(), body)
        crc = zlib.crc32(body, key & 0xFFFFFFFF)
        connection.execute("UPDATE record SET body = ?, crc = ? WHERE key = ?", (body, crc, key))
    connection.close()
    for file in (home / "spaces" / "s").glob("*.json"):
        file.write_text(re.sub(r'"boot_id": ?"[^"]*"', f'"boot_id":"{ANOTHER_BOOT}"', file.read_text()))


async def after_the_cut(tmp_path: Path, project: Path, *, clock_lead_s: float) -> list[Stored]:
    async with perdure.open(tmp_path / "home") as home:
        session = await begin(home, project)
        (project / "a.txt").write_text("who")
        image_at_ns = time.time_ns() + int(clock_lead_s * 1e9)
    cut_the_power(tmp_path / "home", image_at_ns=image_at_ns)
    while time.time_ns() < image_at_ns:
        await asyncio.sleep(0.05)
    (project / "mine.txt").write_text("edited after the reboot\n")
    async with perdure.open(tmp_path / "home") as home:
        session = await home.session("s")
        await session.drive()
        return await records(session)


def test_a_file_that_the_power_cut_tore_is_put_back_and_what_was_there_is_salvaged(tmp_path: Path, project: Path) -> None:
    log = asyncio.run(after_the_cut(tmp_path, project, clock_lead_s=0.5))
    assert (project / "a.txt").read_text() == "whole\n"
    assert (project / "mine.txt").read_text() == "edited after the reboot\n"
    (restored,) = [s.body for s in log if isinstance(s.body, r.SpaceRestored)]
    assert restored.taken_back == ("a.txt",)
    assert restored.salvage is not None
    assert any("torn" in s.body.text for s in log if isinstance(s.body, r.NoteAdded))
    changed = [s.body.paths for s in log if isinstance(s.body, r.WorkspaceChanged) and s.body.found_by == "recovery"]
    assert ("mine.txt",) in changed


def test_a_change_that_is_later_than_the_newest_image_is_somebodys_work(tmp_path: Path, project: Path) -> None:
    log = asyncio.run(after_the_cut(tmp_path, project, clock_lead_s=-1.0))
    assert (project / "a.txt").read_text() == "who"
    assert not any(isinstance(s.body, r.SpaceRestored) for s in log)
    changed = {
        path for s in log if isinstance(s.body, r.WorkspaceChanged) and s.body.found_by == "recovery" for path in s.body.paths
    }
    assert changed == {"a.txt", "mine.txt"}


def test_a_clock_behind_the_newest_image_makes_the_session_wait(tmp_path: Path, project: Path) -> None:
    async def scene() -> None:
        async with perdure.open(tmp_path / "home") as home:
            await begin(home, project)
        cut_the_power(tmp_path / "home", image_at_ns=time.time_ns() + 3_600_000_000_000)
        async with perdure.open(tmp_path / "home") as home:
            released = await (await home.session("s")).drive()
            assert released.rest.waiting_for == "ambiguous_after_reboot"
            assert "perdure resume" in released.rest.detail
        assert (project / "a.txt").read_text() == "whole\n"

    asyncio.run(scene())
