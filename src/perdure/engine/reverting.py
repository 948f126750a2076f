"""Taking back what the last prompt changed in the files: an apply backwards.

Both sides began with what the session left; one side is what there was before the prompt, the other what is there now. So what a person has changed since
stays, and where both changed a path it is a conflict and nothing of it is touched.
"""

from __future__ import annotations

from pathlib import Path

from perdure.engine import landing
from perdure.engine.applying import EVERYTHING, Applied, Applying
from perdure.engine.home import Home
from perdure.history.apply import Bases
from perdure.history.prompts import Prompts
from perdure.log.store import SessionId
from perdure.record import records as r
from perdure.record.errors import SessionBusyError, UsageError
from perdure.record.records import Image
from perdure.space.directory import Directory
from perdure.state.workspace import Workspace, reduce


async def revert(home: Home, session: SessionId) -> Applied:
    """As `Session.undo`."""
    binding, row = await home.store.binding(session), await home.store.row(session)
    if binding is None:
        raise UsageError(f"session {session} has no directory on this machine")
    if row.rest.busy or row.held_by is not None:
        raise SessionBusyError(f"session {session} is at work; let it end, or stop it with `perdure abort {session}`")
    before = await _before_last_prompt(home, session)
    root = Path(binding.directory)
    async with landing.locked(home, session, root):
        with Directory(root) as here:
            work = _Reverting(home, session, here, before)
            await work.finish_killed()
            return await work.run()


class _Reverting(Applying):
    def __init__(self, home: Home, session: SessionId, here: Directory, before: Image) -> None:
        super().__init__(home, session, here, EVERYTHING)
        self._before = before

    async def between(self) -> tuple[Bases, Image]:
        workspace = (await self._home.state(self._session)).workspace
        assert workspace.image is not None
        return Bases(workspace.image, ()), self._before


async def _before_last_prompt(home: Home, session: SessionId) -> Image:
    prompts, held = Prompts(), Workspace()
    before: Image | None = None
    async for stored in home.store.read(session):
        if prompts.begins(stored):
            before = held.image
        elif isinstance(stored.body, r.CallStarted):
            before = before or stored.body.base
        held = reduce(held, stored)
    if before is None:
        raise UsageError(f"session {session} has changed nothing yet: its log holds no image")
    return before
