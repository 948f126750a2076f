"""A git command that was cut off leaves its lock behind: where nobody can tell that no other git needs it, the model is told."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

from tests.stage import bash, play, stage, turn

CUT = "echo half > half.txt; touch .git/index.lock; touch begun; sleep 600"


def test_a_lock_that_may_be_left_is_told_with_the_call_that_was_taken_back(tmp_path: Path) -> None:
    async def story() -> None:
        told = r"Taken back:.*half.txt.*Lock files that its git may have left: \S*index.lock"
        async with stage(tmp_path, turn("", bash(CUT)), turn("I see", expect=told)) as s:
            subprocess.run(["git", "init", "--quiet", str(s.root)], check=True)
            running = asyncio.create_task(s.run())
            await s.file("begun")
            space = (await s.session.state()).workspace.space
            assert space is not None
            os.kill(space.init.pid, signal.SIGKILL)
            assert (await running).text == "I see"
            assert (await s.finished())["main.1.0"].outcome == "interrupted"

    play(story())
