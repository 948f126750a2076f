"""A tree that is deeper than any path may be long (PATH_MAX) is captured, taken back and removed like others, and does not fill the model's context."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from perdure.record import records as r
from tests.stage import bash, play, stage, turn

DEPTH = 600
MAKE = f"""import os
for _ in range({DEPTH}):
    os.mkdir("dddddddd")
    os.chdir("dddddddd")
open("leaf", "w").write("leaf")
"""
MORE = f"""import os
for _ in range({DEPTH}):
    os.chdir("dddddddd")
open("leaf", "w").write("other")
for _ in range({DEPTH}):
    os.mkdir("e")
    os.chdir("e")
"""


def test_a_tree_deeper_than_a_path_is_long_is_captured_taken_back_and_removed(tmp_path: Path) -> None:
    (tmp_path / "make.py").write_text(MAKE)
    (tmp_path / "more.py").write_text(MORE)

    async def story() -> None:
        cut_off = bash("python3 ../more.py; touch begun; sleep 100")
        async with stage(
            tmp_path, turn("", bash("python3 ../make.py")), turn("", cut_off), turn("", bash("rm -r *")), "done"
        ) as s:
            running = asyncio.create_task(s.run())
            await s.file("begun")
            os.kill((await s.bodies(r.SpaceOpened))[-1].init.pid, signal.SIGKILL)
            assert (await running).outcome == "answered"
            finished = await s.finished()
            assert [body.outcome for body in finished.values()] == ["ok", "interrupted", "ok"]
            images = [body.image.tree for body in finished.values() if body.image]
            assert images[0] == images[1] and os.listdir(s.root) == []
            assert len(await s.told()) < 200_000

    play(story())
