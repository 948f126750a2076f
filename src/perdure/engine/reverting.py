"""Taking back what the last prompt changed in the files: an apply backwards.

Both sides began with what the session left; one side is what there was before the prompt, the other what there is now. So what a person has changed since
stays, and where both changed a path it is a conflict and nothing of it is touched. The same holds for what others had changed before and meanwhile: the
log tells it from what the calls did.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from perdure.engine import landing
from perdure.engine.applying import EVERYTHING, Applied, Applying, Planned
from perdure.engine.home import Home
from perdure.history.apply import Bases, Change, Resolved
from perdure.history.compare import compare
from perdure.history.prompts import Prompts
from perdure.log.store import SessionId
from perdure.record import records as r
from perdure.record.errors import SessionBusyError, UsageError
from perdure.record.records import Image
from perdure.space.directory import Directory, Seen
from perdure.state.workspace import Workspace, reduce

BOTH = "others changed it too while the prompt was worked on"


async def revert(home: Home, session: SessionId) -> Applied:
    """As `Session.undo`."""
    binding, row = await home.store.binding(session), await home.store.row(session)
    if binding is None:
        raise UsageError(f"session {session} has no directory on this machine")
    if row.rest.busy or row.held_by is not None:
        raise SessionBusyError(f"session {session} is at work; let it end, or stop it with `perdure abort {session}`")
    last = await _last_prompt(home, session)
    root = Path(binding.directory)
    async with landing.locked(home, session, root):
        with Directory(root) as here:
            work = _Reverting(home, session, here, last)
            await work.finish_killed()
            return await work.run()


class _Step(Struct, frozen=True):
    """A change that was not seen to be a call's. `doubtful`: it may be one's nevertheless."""

    before: Image
    after: Image
    doubtful: bool


class _Prompt(Struct, frozen=True):
    """What there was when the work on it began, and what others changed from there on, in their order."""

    before: Image
    others: tuple[_Step, ...]


class _Reverting(Applying):
    def __init__(self, home: Home, session: SessionId, here: Directory, last: _Prompt) -> None:
        super().__init__(home, session, here, EVERYTHING)
        self._last = last
        self._others: set[bytes] = set()
        self._calls: set[bytes] = set()

    async def between(self) -> tuple[Bases, Image]:
        newest = (await self._home.state(self._session)).workspace.image
        assert newest is not None
        at = self._last.before
        for step in self._last.others:
            self._calls |= await self._paths(at, step.before)
            self._others |= (paths := await self._paths(step.before, step.after))
            self._calls |= paths if step.doubtful else set()
            at = step.after
        self._calls |= await self._paths(at, newest)
        return Bases(newest, ()), self._last.before

    async def _paths(self, before: Image, after: Image) -> set[bytes]:
        return {found.path for found in await compare(before.tree, after.tree, self._source)}

    async def _resolved(self, change: Change, *, below_new: bool) -> Planned:
        if change.path not in self._others:
            return await super()._resolved(change, below_new=below_new)
        if change.path not in self._calls:
            return Planned(change, Resolved("already"), Seen())
        return Planned(change, Resolved("conflict", why=BOTH), Seen())


async def _last_prompt(home: Home, session: SessionId) -> _Prompt:
    prompts, held = Prompts(), Workspace()
    before: Image | None = None
    others: list[_Step] = []
    async for stored in home.store.read(session):
        if prompts.begins(stored):
            before, others = held.image, []
        elif isinstance(stored.body, r.CallStarted) and before is None:
            before, others = stored.body.base, []
        elif isinstance(stored.body, r.WorkspaceChanged) and held.image is not None:
            others.append(_Step(held.image, stored.body.image, bool(stored.body.perhaps_by)))
        held = reduce(held, stored)
    if before is None:
        raise UsageError(f"session {session} has changed nothing yet: its log holds no image")
    return _Prompt(before, tuple(others))
