"""The end of a Space on purpose: its processes, then its supervisor, then its state folder. The workspace is not touched."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

from perdure.record.errors import PerdureError
from perdure.space import death, supervisor
from perdure.space.lane import Lane

PATIENCE_S = 10.0
RETRY_S = 0.05


async def end(folder: Path, epoch: int) -> None:
    """Returns when the supervisor is dead, if there is one, and the folder gone. `epoch` is the newest: nobody else may use the Space any more.

    Raises SurvivorsError where the supervisor can't be seen from here.
    """
    known = supervisor.recorded(folder)
    if known is not None:
        gone = death.dead(known.init, known.boot_id)
        if gone is None:
            raise death.unseen(known.init)
        if gone is False:
            await _leave(folder, epoch)
            await death.kill(known.init, known.boot_id)
    await asyncio.to_thread(shutil.rmtree, folder, True)


async def _leave(folder: Path, epoch: int) -> None:
    """Asked first: without a PID namespace only the supervisor knows which processes are its own. One that does not answer is killed."""
    try:
        lane = await Lane.open(folder, f"s-{supervisor.identity(folder)['instance']}")
    except (OSError, KeyError):
        return
    try:
        async with asyncio.timeout(PATIENCE_S):
            about = {"token": (folder / "token").read_text(), "epoch": epoch}
            await lane.ask({"verb": "fence", "adopt": [], **about})
            leaves = False
            while not leaves:
                answer = await lane.ask({"verb": "leave", **about})
                leaves = answer["leaves"] or await asyncio.sleep(RETRY_S, False)
    except (OSError, PerdureError, TimeoutError):
        return
    finally:
        lane.close()
