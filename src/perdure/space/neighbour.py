"""The supervisor of another session in the same directory.

Only one holds a root at a time, and an idle one stays for a minute in case its session goes on. Another session of the same home need not wait for that: it
asks, and what has nothing to do leaves at once.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from perdure.record.errors import RootRefusedError, SpaceGoneError
from perdure.space import death, supervisor
from perdure.space.lane import Lane
from perdure.spaced.fence import read_floor

LEAVE_S = 10.0
PATIENCE_S = 1.0
RETRY_S = 0.05


async def ask_to_leave(spaces: Path, root: Path, held: str) -> None:
    """Returns when the holder is gone. RootRefusedError, naming its session, if it has something to do; `held` says what was refused."""
    found = _holder(spaces, root)
    if found is None:
        raise RootRefusedError(f"{held}; it belongs to another home, which has to let go of it first")
    known = supervisor.recorded(found)
    try:
        lane = await Lane.open(found, f"s-{supervisor.identity(found)['instance']}")
    except OSError:
        return
    token = (found / "token").read_text()
    leaves = False
    try:
        async with asyncio.timeout(PATIENCE_S):
            while not leaves:
                answer = await lane.ask({"verb": "leave", "token": token, "epoch": read_floor(str(found))})
                leaves = answer["leaves"] or await asyncio.sleep(RETRY_S, False)
    except TimeoutError:
        pass
    except SpaceGoneError:
        return
    finally:
        lane.close()
    if not leaves:
        raise RootRefusedError(
            f"{root} is in use by session {found.name}, which runs something there; let it end, or stop it with "
            f"`perdure abort {found.name}`"
        )
    if known is not None:
        async with asyncio.timeout(LEAVE_S):
            await death.watch_death(known.init, known.boot_id)


def _holder(spaces: Path, root: Path) -> Path | None:
    """The state folder of the Space whose living supervisor has this root."""
    here = root.stat()
    for folder in spaces.iterdir():
        said, known = supervisor.identity(folder), supervisor.recorded(folder)
        same = (said.get("device"), said.get("inode")) == (here.st_dev, here.st_ino)
        if same and known is not None and death.dead(known.init, known.boot_id) is False:
            return folder
    return None
