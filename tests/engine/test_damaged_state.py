"""The Space's state folder can be lost or damaged file by file: the log knows enough to go on, and nothing is run twice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.record import records as r
from perdure.space import death
from tests.stage import PATIENCE_S, bash, play, stage, turn

COMMAND = "echo $PERDURE_CALL_KEY >> ../effects; touch begun; while [ ! -e go ]; do sleep 0.02; done"


@pytest.mark.parametrize("file", ["identity.json", "init.json", "floor", "ledger", "stamp"])
@pytest.mark.parametrize("content", [b"", b"\xff garbage"])
@pytest.mark.parametrize("alive", [True, False])
def test_a_damaged_file_is_no_dead_end(tmp_path: Path, file: str, content: bytes, alive: bool) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(COMMAND)), "done") as s:
            leaving = asyncio.create_task(s.run())
            await s.file("begun")
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
            space = (await s.session.state()).workspace.space
            assert space is not None
            if not alive:
                await death.kill(space.init, space.incarnation.boot_id)
            (s.home.spaces.folder("s") / file).write_bytes(content)
        async with stage(tmp_path) as s:
            (s.root / "go").touch()
            async with asyncio.timeout(PATIENCE_S):
                released = await s.session.drive()
            assert released.rest.status == "settled"
            assert (await s.finished())["main.1.0"].outcome in ("ok", "interrupted", "unknown")
            assert len((tmp_path / "effects").read_text().splitlines()) == 1
            assert len(await s.bodies(r.CallStarted)) == 1

    play(story())
