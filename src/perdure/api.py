"""What `import perdure` gives: a home, its sessions, and what they say.

    async with perdure.open() as home:
        s = await home.session(directory="my/project", model="openai:gpt-5.2")
        answer = await s.run("fix the failing test")
        async for event in s.observe():
            ...

The command line is a thin caller of this.
"""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from msgspec import Struct

from perdure.drive.driver import Released
from perdure.drive.events import Emit, Event, Notice, OutputShown, Recorded, TextShown
from perdure.engine import applying, approving, collecting, embedded, removing, reverting
from perdure.engine.applying import Applied, Conflict, Wish
from perdure.engine.approving import Question
from perdure.engine.attaching import Image, attach
from perdure.engine.collecting import Collected
from perdure.engine.following import LiveCursor
from perdure.engine.home import DEFAULT_BUDGET, Home
from perdure.log.store import Admission, Receipt, SessionRow
from perdure.model.catalog import check_options
from perdure.program import delegation
from perdure.program.builtin import BUILTIN
from perdure.program.hooks import AfterCall, BeforeCall, BeforeRequest, Hook, Hooks, OnAnswer, Ruling
from perdure.program.permissions import parse
from perdure.program.tools import Tool, from_function
from perdure.record import records as r
from perdure.record.errors import UsageError
from perdure.record.parts import Text
from perdure.record.records import Budget, Draft, Stored, SubmissionMode
from perdure.state.state import State, fold

__all__ = [
    "AfterCall",
    "Answer",
    "Applied",
    "BeforeCall",
    "BeforeRequest",
    "Budget",
    "Collected",
    "Conflict",
    "Event",
    "Hook",
    "Hooks",
    "Notice",
    "OnAnswer",
    "Opened",
    "OutputShown",
    "Question",
    "Recorded",
    "Ruling",
    "Session",
    "TextShown",
    "Tool",
    "from_function",
    "open",
]


class Answer(Struct, frozen=True):
    """How a submission ended: `text` is the model's last answer, `outcome` the settlement's, `waiting_for` a reason why it has not ended."""

    submission: str
    outcome: str
    text: str = ""
    reason: str = ""
    waiting_for: str | None = None
    detail: str = ""


@asynccontextmanager
async def open(
    path: str | os.PathLike[str] | None = None,
    *,
    hooks: Hooks | None = None,
    permissions: Mapping[str, Any] | None = None,
    skills: Iterable[str | os.PathLike[str]] = (),
) -> AsyncIterator[Opened]:
    """A home: `path`, else `$PERDURE_HOME`, else the platform's state directory. Made if it does not exist. `hooks` run for whatever is driven here.

    `permissions` is a table as in `perdure.toml`; without one each session keeps the rules in its log. `skills` are folders of skills, beside those of
    each workspace.
    """
    home = await Home.open(path)
    if hooks is not None:
        home.hooks = lambda directory: hooks
    if permissions is not None:
        rules = parse(permissions)
        home.rules = lambda directory: rules
    folders = tuple(Path(folder).expanduser().absolute() for folder in skills)
    home.skills = lambda directory: folders
    try:
        yield Opened(home)
    finally:
        await home.close()


class Opened:
    """An open home."""

    def __init__(self, home: Home) -> None:
        self.home = home

    async def session(
        self,
        id: str | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        model: str | Sequence[str] | None = None,
        tools: Iterable[Tool | Callable[..., Any]] | None = None,
        model_options: dict[str, Any] | None = None,
        space: str = "host",
        network: bool = False,
        binds: Iterable[str | os.PathLike[str]] = (),
        custody: str = "auto",
        capture: str = "auto",
        copy: bool = False,
        instructions: str = "",
        turn_budget: Budget = DEFAULT_BUDGET,
        session_budget: Budget = Budget(),
    ) -> Session:
        """With a model and a directory a new session (named `id`, if given); else the one that `id` (or a unique prefix) or the directory names.

        Of several models the first is asked first, the next where it gives no answer.

        A `space` of kind `sandbox` has no network without `network`, and of other directories only `binds`, to read.
        `capture` is how the workspace is looked at after a call: `watch` by events, `scan` at everything, `strict` by events and before each
        changing call at everything, `auto` by events where they can be had.
        With `copy` it works in a copy of the directory, which lies in the home; `Session.apply` brings its changes to the directory.
        `tools` are added to the built-in ones; a function becomes a tool of class `external` in the driver's place.
        """
        if model is None:
            return Session(self.home, (await self.home.find(id, directory)).session)
        if directory is None:
            raise UsageError("a new session needs a directory")
        added = tuple(t if isinstance(t, Tool) else from_function(t) for t in tools or ())
        created = await self.home.create(
            directory,
            model=model,
            session=id,
            model_options=model_options,
            space=space,
            network=network,
            binds=binds,
            custody=custody,
            capture=capture,
            copy=copy,
            tools=(*BUILTIN, *added),
            instructions=instructions,
            turn_budget=turn_budget,
            session_budget=session_budget,
        )
        return Session(self.home, created)

    async def sessions(self) -> list[SessionRow]:
        """All sessions, the one that changed last first."""
        return sorted(await self.home.store.rows(), key=lambda row: row.changed_at, reverse=True)

    async def remove(self, id: str, *, force: bool = False) -> None:
        """Remove a settled session with everything that the home keeps of it; its directory is not touched. What its forks begin with stays.

        SessionBusyError where something of it is open or a living driver has it: `force` gives that up first. The room of its chunks comes back by
        `collect`. UsageError if there is no such session.
        """
        await removing.remove(self.home, (await self.home.find(id)).session, force=force)

    async def collect(self, *, dry_run: bool = False) -> Collected:
        """Free what no session names any more; sessions may be driven meanwhile. With `dry_run` only say how much that is."""
        return await collecting.collect(self.home, dry_run=dry_run)

    async def watch(self, *, emit: Callable[[str], Emit] = lambda _: embedded.silent, once: bool = False) -> None:
        """Drive every session that needs a driver; take over those whose driver died."""
        await embedded.watch(self.home, emit=emit, once=once)


class Session:
    """One session of an open home."""

    def __init__(self, home: Home, id: str) -> None:
        self.home = home
        self.id = id

    async def row(self) -> SessionRow:
        return await self.home.store.row(self.id)

    async def state(self) -> State:
        return await self.home.state(self.id)

    async def directory(self) -> str:
        """Where its workspace lies on this machine."""
        binding = await self.home.store.binding(self.id)
        if binding is None:
            raise UsageError(f"session {self.id} has no directory on this machine")
        return binding.directory

    def records(self, after: int = 0) -> AsyncIterator[Stored]:
        return self.home.store.read(self.id, after)

    # ---- inputs ------------------------------------------------------------------------------------------------------------

    async def submit(
        self,
        text: str,
        *,
        mode: SubmissionMode = "follow_up",
        request_id: str | None = None,
        deadline: float | None = None,
        thread: str = "main",
        images: Iterable[Image] = (),
    ) -> str:
        """Admit an input; its id. Durable when this returns; the same `request_id` again admits nothing new. A `note` starts nothing where nothing is open.

        `deadline` is a wall-clock time in seconds. `images` are paths or bytes of PNG, JPEG, GIF or WebP files, at most 5 MB each. Raises UsageError
        for an empty text, what is no such image or an id that a subagent's task may have, SessionBusyError for mode `reject` when busy.
        """
        if not text.strip():
            raise UsageError("the prompt is empty; say what is to be done")
        id = _request_id(request_id)
        shown = await attach(self.home.store.blobs, images, pin=f"images of {self.id}:{id}")
        body = r.SubmissionAdmitted(id, (Text(text), *shown), mode, deadline)
        asks = mode != "note"
        wakes = asks or (await self.row()).rest.busy
        await self.home.store.admit(
            self.id, Admission(id, Draft(body, thread), reject_if_busy=mode == "reject", needs_driver=wakes, busy=asks)
        )
        return id

    async def compact(self, *, request_id: str | None = None, thread: str = "main") -> str:
        """Ask for the conversation so far to be summed up, between two turns of what runs, or as soon as somebody drives; the id of this request.

        What it says is kept in the log, and so is every output: only what the model is sent gets shorter.
        """
        id = _request_id(request_id)
        await self.home.store.admit(self.id, Admission(id, Draft(r.SubmissionAdmitted(id, (), "compact"), thread)))
        return id

    async def abort(self, submission: str | None = None, *, by: str = "person", reason: str = "") -> Receipt:
        """Stop what runs and what waits (or one submission). The workspace stays as it is."""
        body = r.AbortRequested(submission, by, reason)
        return await self.home.store.admit(self.id, Admission(uuid.uuid4().hex, Draft(body, "main"), busy=False))

    async def use_model(self, model: str | Sequence[str]) -> Receipt:
        """Let this model answer from the next turn on, or of several the first that gives an answer. UsageError if there is no such model, or its key
        or package is missing."""
        created = (await self.state()).session.created
        assert created is not None
        first, *fallbacks = self.home.checked(model, created.model_options, created.model)
        return await self._set(r.SettingsChanged(model=first, fallbacks=tuple(fallbacks)))

    async def use_thinking(self, thinking: str) -> Receipt:
        """How much models are to think from the next turn on: `off`, `low`, `medium` or `high`. UsageError for another word."""
        check_options({"thinking": thinking})
        return await self._set(r.SettingsChanged(thinking=thinking))

    async def _set(self, body: r.SettingsChanged) -> Receipt:
        """Where nothing is open it is there for the next driver, and no reason to have one."""
        busy = (await self.row()).rest.busy
        admission = Admission(uuid.uuid4().hex, Draft(body, "main"), needs_driver=busy, busy=False)
        return await self.home.store.admit(self.id, admission)

    async def answer(self, wait: str, answer: str) -> Receipt:
        """A person's word on what the session waits for: `keep`, `restore`, `accept` or `abandon`. UsageError for another word."""
        body = r.RecoveryAnswered(wait, answer)  # type: ignore[arg-type]
        return await self.home.store.admit(self.id, Admission(uuid.uuid4().hex, Draft(body, "main"), busy=False))

    async def questions(self) -> list[Question]:
        """The calls that the session waits with for a person's word."""
        return approving.questions(await self.state())

    async def approve(
        self, call: str | None = None, *, always: bool = False, reason: str = "", digest: str | None = None
    ) -> Question:
        """Allow a call that was asked about: its id, a unique beginning, or None for the only one. `always`: also when exactly that is called again.

        With `digest` only the question of that digest. UsageError where there is none, or somebody else answered. The session then needs a driver.
        """
        question, _ = await approving.answer(self.home, self.id, call, "allow", always=always, reason=reason, digest=digest)
        return question

    async def deny(self, call: str | None = None, *, reason: str = "", digest: str | None = None) -> Question:
        """Deny it, as `approve` allows it; the model is told the reason."""
        question, _ = await approving.answer(self.home, self.id, call, "deny", reason=reason, digest=digest)
        return question

    async def abandon(self) -> Receipt:
        """Give up what is open, unseen: calls end `unknown`, submissions `aborted`, and the directory is free. Drive once more for that."""
        return await self.answer("abandon", "abandon")

    # ---- bringing changes home -----------------------------------------------------------------------------------------------

    async def apply(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        only: Iterable[str] = (),
        ours: Iterable[str] = (),
        theirs: Iterable[str] = (),
        dry_run: bool = False,
    ) -> Applied:
        """Bring what the session changed into a directory, by default the one it is a copy of: three-way, since the last time it was applied there.

        A path that was changed on both sides is merged where it is text and the changes are apart, else it is a conflict and stays as it is; paths in
        `ours` and `theirs` say whose side is right. `only` names the paths to bring, and what lies below them. Git's own files are left out.
        Killed in its middle, it is finished by the next. With `dry_run` it only says what it would do. Raises UsageError, and RootRefusedError
        where another session has work open in the directory.
        """
        wish = Wish(*(applying.paths(names) for names in (only, ours, theirs)))
        return await applying.apply(self.home, self.id, directory, wish=wish, dry_run=dry_run)

    async def undo(self) -> Applied:
        """Take back what the last prompt changed in the files. What others changed, before, meanwhile or since, stays, and where both changed a path
        nothing of it is touched: a conflict. The log keeps everything, and the model is told with the next prompt. SessionBusyError while the session is
        at work.
        """
        done = await reverting.revert(self.home, self.id)
        if done.paths or done.removed:
            told = Text("[perdure] The person took back in the files what your last turn changed.")
            id = _request_id(None)
            body = r.SubmissionAdmitted(id, (told,), "note")
            await self.home.store.admit(self.id, Admission(id, Draft(body, "main"), needs_driver=False, busy=False))
        return done

    # ---- driving -----------------------------------------------------------------------------------------------------------

    async def drive(self, *, emit: Emit = embedded.silent, take: bool = False) -> Released:
        """Go on until there is nothing to do. Raises SessionBusyError where somebody else drives, unless `take`."""
        return await embedded.drive(self.home, self.id, emit=emit, take=take)

    async def run(self, text: str, *, emit: Emit = embedded.silent, **submission: Any) -> Answer:
        """Submit and drive until it settles."""
        id = await self.submit(text, **submission)
        admitted = await self.state()
        released = await self.drive(emit=emit)
        if id in (await self.state()).submissions:
            return Answer(id, "waiting", waiting_for=released.rest.waiting_for, detail=released.rest.detail)
        return await self._settled(id, admitted)

    async def wait(self, submission: str, timeout_s: float | None = None) -> Answer:
        """How it ended, as soon as it did, whoever drives. TimeoutError after the time; UsageError if it was never admitted."""
        async with asyncio.timeout(timeout_s):
            return await self._settled(submission, await self.state())

    async def _settled(self, submission: str, state: State) -> Answer:
        """`state` is any state of the session; one in which the submission is open saves reading what was before."""
        state = state if submission in state.submissions else State()
        mark = await self.home.store.wait(-1, 0.0)
        while True:
            async for stored in self.records(state.seq):
                state = fold(state, stored)
                match stored.body:
                    case r.SubmissionSettled(submission=id, outcome=outcome, reason=reason) if id == submission:
                        text = "" if outcome == "noted" else state.threads[stored.thread or "main"].answer
                        return Answer(submission, outcome, text, reason)
                    case _:
                        pass
            if submission not in state.submissions:
                raise UsageError(f"session {self.id} has no submission '{submission}'")
            mark = await self.home.store.wait(mark, 3600.0)

    # ---- watching ----------------------------------------------------------------------------------------------------------

    async def observe(self, after: int | None = None, *, follow: bool = True) -> AsyncIterator[Event]:
        """Records behind `after` (all of them by default), then new ones as they come, with the text being streamed.

        Without `follow` it ends at the newest record.
        """
        seq = after or 0
        mark = await self.home.store.wait(-1, 0.0)
        live = LiveCursor(self.home, self.id)
        while True:
            async for stored in self.records(seq):
                seq = stored.seq
                live.seen(stored)
                yield Recorded(stored)
            if not follow:
                return
            async for text in live.pieces():
                yield text
            mark = await self.home.store.wait(mark, 0.2 if live.streaming else 3600.0)


def _request_id(given: str | None) -> str:
    if given and delegation.is_subagents(given):
        raise UsageError(f"the request id '{given}' is like those that subagents' tasks have; choose another")
    return given or uuid.uuid4().hex
