"""The end of a Space on purpose: its processes, then its supervisor, then its state folder. The workspace is not touched."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shutil
from pathlib import Path

from perdure.record.errors import PerdureError
from perdure.space import death, supervisor
from perdure.space.lane import Lane

PATIENCE_S = 10.0
RETRY_S = 0.05

GOING = ".removed-"
"""How the folder begins that was a Space's, so that another one may have its name at once."""


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
    with contextlib.suppress(FileNotFoundError):
        folder.rename(folder.with_name(f"{GOING}{secrets.token_hex(8)}"))
    await asyncio.to_thread(clear, folder.parent)


def clear(spaces: Path) -> None:
    """Delete state folders of Spaces that have ended, as far as that is allowed; somebody may be doing the same."""
    for folder in spaces.glob(f"{GOING}*"):
        for at, names, _ in os.walk(folder):  # top down: each is opened before it is entered
            for path in (Path(at, name) for name in names):
                with contextlib.suppress(OSError):
                    if not path.is_symlink():
                        path.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)


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
