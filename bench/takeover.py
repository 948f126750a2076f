"""How long after a driver's death the next one's work is in the log, with a watcher waiting.

A process drives a session whose command runs; it gets SIGKILL, alone or together with the supervisor. Timed from the kill to the first record that the
new driver commits after `epoch_raised`, by the wall clock that both share.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figure import Figure, percentile
from perdure.api import Opened, Recorded, Session, open
from perdure.record import records as r

DEATHS = 20
SETTLED_S = 0.2
"""After so long the watcher certainly waits for the driver's death."""

HELD = "touch begun; while [ ! -e go ]; do sleep 0.02; done"


def measure(folder: Path, *, deaths: int = DEATHS) -> Iterator[Figure]:
    script = folder / "held.json"
    script.write_text(json.dumps({"turns": [{"calls": [{"tool": "bash", "args": {"command": HELD}}]}, {"text": "done"}]}))
    for what, supervisor_too in (("driver", False), ("driver and supervisor", True)):
        took_ms = asyncio.run(_deaths(folder, f"scripted:{script}", deaths, supervisor_too))
        for name, share in (("p50", 0.5), ("p95", 0.95)):
            target = "< 100" if name == "p50" else ""
            yield Figure("takeover", f"{what} killed, {name}", percentile(took_ms, share), "ms", target, tuple(took_ms))


async def _deaths(folder: Path, model: str, count: int, supervisor_too: bool) -> list[float]:
    async with open(folder / "takeover") as home:
        return [
            await _death(home, folder, model, f"{'both' if supervisor_too else 'one'}-{n}", supervisor_too) for n in range(count)
        ]


async def _death(home: Opened, folder: Path, model: str, name: str, supervisor_too: bool) -> float:
    root = folder / name
    root.mkdir()
    session = await home.session(name, directory=root, model=model)
    command = [sys.executable, "-m", "bench.takeover", str(folder / "takeover"), name]
    driver = await asyncio.create_subprocess_exec(*command, cwd=Path(__file__).parent.parent)
    while not (root / "begun").exists():
        await asyncio.sleep(0.01)
    watching = asyncio.create_task(home.watch())
    await asyncio.sleep(SETTLED_S)
    supervisor = await _supervisor(session)
    killed_at = time.time()
    driver.kill()
    if supervisor_too:
        os.kill(supervisor, signal.SIGKILL)
    took_s = await _first_record(session) - killed_at
    (root / "go").touch()
    await session.wait("go", timeout_s=60.0)
    watching.cancel()
    await asyncio.gather(watching, driver.wait(), return_exceptions=True)
    os.kill(await _supervisor(session), signal.SIGKILL)
    return took_s * 1000


async def _first_record(session: Session) -> float:
    """When the second driver's first record behind its `epoch_raised` was committed."""
    epochs = 0
    async for event in session.observe():
        if isinstance(event, Recorded):
            if epochs == 2 and event.stored.epoch > 0:
                return event.stored.at
            epochs += isinstance(event.stored.body, r.EpochRaised)
    raise AssertionError("a followed log has no end")


async def _supervisor(session: Session) -> int:
    space = (await session.state()).workspace.space
    assert space is not None
    return space.init.pid


async def _drive(home: str, name: str) -> None:
    async with open(home) as opened:
        await (await opened.session(name)).run("go", request_id="go")


if __name__ == "__main__":
    asyncio.run(_drive(*sys.argv[1:3]))
