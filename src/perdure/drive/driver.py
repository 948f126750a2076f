"""The driver: `advance` does the one next thing and returns.

The loop around it is trivial on purpose, so that a task in this process, a process per attempt and an activity of a workflow engine all drive the same
code. Whatever `advance` did is in the log, or pending facts that the next effect's commit takes along.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from perdure.drive import deciding
from perdure.drive.asking import Asking
from perdure.drive.deciding import Deciding
from perdure.drive.events import Emit, Notice
from perdure.drive.hooks import Hooking
from perdure.drive.instructing import Instructing
from perdure.drive.journal import Journal, Redecide
from perdure.drive.places import DriverPlace
from perdure.drive.recovery import Recovery
from perdure.drive.rounds import Rounds
from perdure.drive.site import Site
from perdure.drive.spaces import Spaces
from perdure.drive.virtual import Virtual
from perdure.drive.waits import Waits
from perdure.log.live import LiveText
from perdure.log.store import Binding, Grant, LogStore, Rest
from perdure.model.stream import Model
from perdure.program import context, skills
from perdure.program.conversation import Conversation
from perdure.program.hooks import Hooks
from perdure.program.permissions import Rules
from perdure.program.program import Append, Ask, Calls, Settle, View, Wait
from perdure.program.stopping import given_up
from perdure.program.tools import ToolSet
from perdure.record import records as r
from perdure.record.errors import ConflictError, RootReplacedError, SpaceGoneError, StoreFullError
from perdure.record.records import Draft
from perdure.spaced.steps import step
from perdure.state.state import State

MAX_LOSSES = 3
"""A Space that fails so often without one whole recovery between is waited for, not asked again and again."""

FULL_RETRY_S = 5.0


class Going(Struct, frozen=True):
    """There is more to do at once."""


class Paused(Struct, frozen=True):
    """Nothing to do before `until` (wall-clock seconds), while the grant is kept."""

    reason: str
    until: float


class Released(Struct, frozen=True):
    """The grant was given back; `rest` says what the session waits for, if for anything."""

    rest: Rest


Progress = Going | Paused | Released


class Driver:
    """Holds a grant and advances its session. One task at a time calls `advance`."""

    def __init__(
        self,
        store: LogStore,
        grant: Grant,
        state: State,
        *,
        live: LiveText,
        spaces: Spaces,
        binding: Binding,
        tools: ToolSet,
        models: Callable[[str], Model],
        place: DriverPlace,
        emit: Emit,
        hooks: Hooks,
        rules: Rules | None,
        ask: deciding.Ask,
        skill_folders: tuple[Path, ...],
        environment: Mapping[str, str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._hooking = Hooking(
            hooks, grant.session, binding.directory, state.calls, environment=environment, tools=tools, emit=emit
        )
        self._deciding = Deciding(self._hooking, tools, rules, binding.directory, ask=ask)
        emit = self._hooking.seen
        self._emit = emit
        self._tools = tools
        self._program = Conversation(tools.effect)
        self._journal = Journal(store, grant, state, emit=emit, clock=clock)
        self._site = Site(spaces, self._journal, binding)
        self._recovery = Recovery(self._journal, self._site, tools, emit=emit)
        virtual = Virtual(store, skill_folders)
        self._rounds = Rounds(self._journal, self._site, tools, place, virtual, emit=emit)
        self._asking = Asking(self._journal, live, tools, models, system=self._system, emit=emit)
        self._instructing = Instructing(self._journal, self._site, skill_folders)
        self._recovered = False
        self._settled = False
        self._losses = 0

    @property
    def state(self) -> State:
        return self._journal.state

    async def advance(self) -> Progress:
        """Recover if that is due; else carry out the program's next Action."""
        try:
            try:
                return await self._advance()
            except Waits as wait:
                return await self._release(wait.reason, wait.detail, again_s=wait.again_s)
            except RootReplacedError as error:
                return await self._release("root_replaced", str(error))
            except StoreFullError as error:
                return await self._full(error)
            except SpaceGoneError as error:
                return await self._lost(error)
        except Redecide:
            return Going()

    async def refresh(self) -> None:
        """Look at what was admitted, after a pause."""
        await self._journal.refresh()

    async def close(self) -> None:
        """Drop what is held open. What runs in the Space runs on."""
        await self._site.close()

    async def leave(self) -> None:
        """Commit what has ended and let go, with work left to do: the next driver adopts what runs."""
        self._journal.fact(Draft(r.EpochReleased("left")))
        await self._journal.flush_facts()
        rest = Rest("waiting", "needs_driver", due_at=self._clock(), busy=self.state.busy)
        while True:
            try:
                await self._journal.store.release(self._journal.grant, inbox_seen=self.state.seq, rest=rest)
                return
            except ConflictError:
                await self._journal.refresh()

    async def _advance(self) -> Progress:
        await self._hooking.tell(self._journal)
        view = self._journal.view
        begun = any(call.started for call in view.calls.values())
        if begun and not self._recovered and not given_up(view):
            await self._recover()
            return Going()
        await self._deciding.review(self._journal)
        view = self._journal.view
        action = self._program.next(View(view, None), self._clock())
        match action:
            case Append(drafts) | Settle(drafts):
                self._settled = self._settled or isinstance(action, Settle)
                self._journal.decide(*drafts)
            case Ask(thread) | Calls(thread) if not self._recovered:
                await self._recover()
            case Ask(thread):
                await self._instructing.nested(thread)
                await self._hooking.before_request(self._journal, thread)
                await self._asking.ask(thread)
            case Calls():
                if await self._deciding.calls(self._journal, action.calls):
                    await self._rounds.run(action)
            case Wait("approval", until):
                again_s = None if until is None else max(0.0, until - self._clock())
                return await self._release("approval", deciding.waiting(view), again_s=again_s)
            case Wait(reason, until) if until is not None:
                await self._journal.flush()
                return Paused(reason, until)
            case Wait(reason):
                return await self._release(reason)
        return Going()

    # ---- recovery ----------------------------------------------------------------------------------------------------------

    async def _recover(self) -> None:
        await self._journal.flush()
        await self._recovery.run()
        await self._asking.recover()
        await self._instructing.root()
        await self._journal.flush()
        self._recovered = True
        self._losses = 0

    async def _lost(self, error: SpaceGoneError) -> Progress:
        """The Space went away under this driver: it takes the same way as after a crash, which tells whether it died, and when."""
        self._recovered = False
        self._losses += 1
        await self._site.close()
        if self._losses >= MAX_LOSSES:
            return await self._release("space_unavailable", f"{error}; mend that, then `perdure resume`")
        self._emit(Notice(f"{error}; recovering"))
        return Going()

    async def _full(self, error: StoreFullError) -> Progress:
        """No room for what the next commit will name, or for the Space's files. It is waited for as a commit waits: the same again after a pause.

        Whether a call that is open has begun by then is for recovery to find out.
        """
        self._emit(Notice(f"{error}; trying again"))
        if any(call.started for call in self._journal.view.calls.values()):
            self._recovered = False
        if not self._recovered:
            await self._site.close()
        await asyncio.sleep(FULL_RETRY_S)
        return Going()

    def _system(self) -> str:
        session = self._journal.state.session
        assert session.created is not None
        instructions = "\n\n".join(part for part in (session.created.instructions, session.instructions) if part)
        text = context.system_text(self._site.binding.directory, instructions)
        return "\n\n".join(part for part in (text, skills.listed(session.skills)) if part)

    # ---- letting go --------------------------------------------------------------------------------------------------------

    async def _release(self, reason: str, detail: str = "", *, again_s: float | None = None) -> Progress:
        """Settle the workspace and give the grant back, unless something came in meanwhile."""
        if not reason and self._settled_unseen():
            await self._reach()
        if self._recovered and not reason:
            await self._audit()
        settled: Literal["settled", "failed"] = "failed" if self._journal.view.session.outcome == "failed" else "settled"
        due_at = None if again_s is None else self._clock() + again_s
        rest = Rest("waiting" if reason else settled, reason or None, due_at=due_at, busy=self._journal.view.busy, detail=detail)
        self._journal.decide(Draft(r.EpochReleased(reason)))
        await self._journal.flush(rest)
        await self._hooking.tell(self._journal)
        if not reason:
            await self._asking.forget()
        step("release.before")
        try:
            await self._journal.store.release(self._journal.grant, inbox_seen=self.state.seq, rest=rest)
        except ConflictError:
            await self._journal.refresh()
            return Going()
        step("release.after")
        await self._site.close()
        return Released(rest)

    def _settled_unseen(self) -> bool:
        """This driver settled what an earlier one had answered, and never looked at the workspace: it may have changed since."""
        view = self._journal.view
        return self._settled and not self._recovered and view.workspace.image is not None and not view.session.abandoned

    async def _reach(self) -> None:
        """Settled is settled: where the workspace can't be reached now, the next prompt will say so."""
        try:
            await self._recover()
        except (Waits, RootReplacedError) as wait:
            self._emit(Notice(str(wait)))

    async def _audit(self) -> None:
        """The workspace is the log's, and on the disk."""
        image = await self._site.compare("audit")
        if self._journal.view.workspace.synced != image:
            await self._site.space.sync()
            self._journal.fact(Draft(r.Synced(image)))
