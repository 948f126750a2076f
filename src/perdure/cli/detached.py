"""A driver that outlives the terminal: a process of its own, in a session of its own, whose words go to a file beside the driver's lock."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from perdure.api import Session
from perdure.drive.deciding import Ask
from perdure.engine import places
from perdure.history.line import plain
from perdure.record.errors import PerdureError

LOG = "driver.log"
BEGIN_S = 20.0
LOOK_S = 0.02
SHOWN_CHARS = 2000


async def detach(session: Session, *, take: bool = False, ask: Ask = "wait") -> int:
    """The process id of the driver that goes on with the session, once it drives. PerdureError with its words if it ended before it could."""
    before = await session.row()
    log = places.driver_lock(session.home.path, session.id).with_name(LOG)
    driver = _start(session, log, [*(["--take"] if take else []), f"--ask={ask}"])
    try:
        async with asyncio.timeout(BEGIN_S):
            while driver.poll() is None:
                row = await session.row()
                if row.epoch > before.epoch:
                    return driver.pid
                await asyncio.sleep(LOOK_S)
    except TimeoutError:
        raise PerdureError(
            f"process {driver.pid} has not begun to drive session {session.id} in {BEGIN_S:g} s, and goes on trying; its words are in {log}"
        ) from None
    if (await session.row()).epoch == before.epoch:
        raise PerdureError(f"the driver of session {session.id} ended before it began: {_said(log)}")
    return driver.pid


def _start(session: Session, log: Path, options: list[str]) -> subprocess.Popen[bytes]:
    # -P: what lies in the current directory is the project's, and no module of ours.
    words = [sys.executable, "-P", "-m", "perdure.cli.main", "--home", str(session.home.path), "resume", session.id]
    fd = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        return subprocess.Popen(
            [*words, *options],
            stdin=subprocess.DEVNULL,
            stdout=fd,
            stderr=fd,
            start_new_session=True,
        )
    finally:
        os.close(fd)


def _said(log: Path) -> str:
    return plain(log.read_text(errors="replace")[-SHOWN_CHARS:].strip()) or "without a word"
