"""A home, opened: the store, the text being streamed, the Spaces, and the sessions in it."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from perdure.drive.deciding import Ask
from perdure.engine import copies, places, process
from perdure.engine.hosting import Hosting
from perdure.log.live import LiveText
from perdure.log.sqlite import SqliteStore
from perdure.log.store import Binding, Header, SessionRow
from perdure.model.catalog import check_options, model_names, resolve
from perdure.model.stream import Model
from perdure.program.builtin import BUILTIN
from perdure.program.hooks import Hooks
from perdure.program.permissions import Rules
from perdure.program.tools import Tool, ToolSet, load, names_of
from perdure.record import records as r
from perdure.record.errors import UsageError
from perdure.record.parts import Digest
from perdure.record.records import Budget, Draft, SessionCreated
from perdure.state.state import State, fold

SESSION_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
SESSION_CHARS = 10
KEPT_STATES = 16
DEFAULT_BUDGET = Budget(failures=10)
"""Ten identical failures in a row end a submission: nobody wants to pay for the eleventh."""


class Home:
    """Open with `await Home.open(...)`; belongs to one event loop."""

    def __init__(
        self, path: Path, store: SqliteStore, live: LiveText, environ: Mapping[str, str], clock: Callable[[], float]
    ) -> None:
        self.path = path
        self.store = store
        self.live = live
        self.clock = clock
        self.spaces = Hosting(path, environ)
        self.owner = process.identify()
        self.skills: Callable[[str], tuple[Path, ...]] = lambda directory: ()
        self.hooks: Callable[[str], Hooks] = lambda directory: Hooks()
        self.rules: Callable[[str], Rules | None] = lambda directory: None
        self.ask: Ask = "wait"
        self._states: dict[str, State] = {}

    @classmethod
    async def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> Home:
        """`clock` is the wall clock in seconds, of the records and of whatever waits for a time."""
        folder = places.home_path(path)
        store = await SqliteStore.open(folder, clock=clock)
        try:
            live = await LiveText.open(folder)
        except BaseException:
            await store.close()
            raise
        return cls(folder, store, live, os.environ if environ is None else environ, clock)

    async def close(self) -> None:
        await self.live.close()
        await self.store.close()

    # ---- sessions ----------------------------------------------------------------------------------------------------------

    async def create(
        self,
        directory: str | os.PathLike[str],
        *,
        model: str | Sequence[str],
        session: str | None = None,
        model_options: dict[str, Any] | None = None,
        space: str = "host",
        network: bool = False,
        binds: Iterable[str | os.PathLike[str]] = (),
        custody: str = "auto",
        capture: str = "auto",
        copy: bool = False,
        tools: Iterable[Tool] = BUILTIN,
        instructions: str = "",
        turn_budget: Budget = DEFAULT_BUDGET,
        session_budget: Budget = Budget(),
    ) -> str:
        """A new session on a directory; its id. Of several models the first is asked first. Everything that can be wrong is found before anything is stored."""
        root = places.check_root(directory, self.path)
        bound = self.spaces.check(space, custody, root, network=network, binds=binds, capture=capture)
        options = model_options or {}
        models = self.checked(model, options)
        id = _checked(session) if session else _new_id()
        names, tools_digest = _remembered(tuple(tools))
        created = SessionCreated(
            log_id=uuid.uuid4().hex,
            agent="coding",
            program="conversation",
            program_version=1,
            model=models[0],
            fallbacks=models[1:],
            model_options=options,
            space=space,
            network=network,
            custody=custody,
            capture=capture,
            tools=names,
            tools_digest=tools_digest,
            turn_budget=turn_budget,
            session_budget=session_budget,
            instructions=instructions,
            copy=copy,
        )
        header = Header(id, created.log_id, (Draft(created), Draft(r.ThreadOpened("main"), "main", -1)))
        async with copies.made(self.path, self.store, id, root) if copy else contextlib.nullcontext(root) as workspace:
            stat = workspace.stat()
            return await self.store.create(header, binding=Binding(id, str(workspace), stat.st_dev, stat.st_ino, bound))

    def checked(self, model: str | Sequence[str], options: Mapping[str, Any], begun: str | None = None) -> tuple[str, ...]:
        """The names as a session remembers them: of models that can be asked, wherever a later driver starts. Raises UsageError.

        `begun` is the model that the session was made with, if it is not to be made.
        """
        names = tuple(_lasting(name) for name in model_names(model))
        for name in names:
            self.model(name, options, begun or names[0])
        check_options(options)
        return names

    def model(self, name: str, options: Mapping[str, Any], begun: str) -> Model:
        """A base URL is the address of the provider that the session began with; models of others are asked at their own."""
        same = name.partition(":")[0] == begun.partition(":")[0]
        return resolve(name, base_url=options.get("base_url") if same else None)

    def models(self, created: SessionCreated) -> Callable[[str], Model]:
        """Models by name, each made once: a script is read, a client opened, when it is first asked for."""
        made: dict[str, Model] = {}

        def get(name: str) -> Model:
            if name not in made:
                made[name] = self.model(name, created.model_options, created.model)
            return made[name]

        return get

    def tools(self, created: SessionCreated) -> ToolSet:
        return load(created.tools, BUILTIN)

    async def find(self, name: str | None, directory: str | os.PathLike[str] | None = None) -> SessionRow:
        """The session of that id or unique prefix, or the newest one on the directory. UsageError says which ones there are."""
        rows = await self.store.rows()
        if name:
            found = [row for row in rows if row.session == name] or [row for row in rows if row.session.startswith(name)]
            if len(found) == 1:
                return found[0]
            which = f"'{name}' names {len(found)} sessions: {', '.join(row.session for row in found)}" if found else ""
            raise UsageError(which or f"there is no session '{name}'; `perdure ls` lists them")
        root = os.path.realpath(Path(directory or ".").expanduser())
        here = [row for row in rows if (b := await self.store.binding(row.session)) and b.directory == root]
        if not here:
            raise UsageError(f"there is no session on {root}; `perdure ls` lists them, `perdure run` starts one")
        return max(here, key=lambda row: row.created_at)

    async def state(self, session: str) -> State:
        """The session's state, folded from its log. The last ones asked for are kept, and the fold goes on from there."""
        state = self._states.pop(session, State())
        if state.seq and state.session.log_id != (await self.store.row(session)).log_id:
            state = State()  # another one has its name now
        async for stored in self.store.read(session, state.seq):
            state = fold(state, stored)
        self._states[session] = state
        while len(self._states) > KEPT_STATES:
            del self._states[next(iter(self._states))]
        return state


def _remembered(tools: tuple[Tool, ...]) -> tuple[tuple[str, ...], Digest]:
    """Names by which every later driver finds these same tools again, and their digest."""
    names, digest = names_of(tools), ToolSet(tools).digest
    if load(names, BUILTIN).digest != digest:
        raise UsageError(
            "a session can only have built-in tools and importable functions: make a tool with perdure.from_function"
        )
    return names, digest


def _lasting(model: str) -> str:
    kind, _, path = model.partition(":")
    if kind != "scripted":
        return model
    file = Path(path).expanduser().absolute()
    return f"scripted:{file.parent.resolve() / file.name}"


def _new_id() -> str:
    return "".join(secrets.choice(SESSION_ALPHABET) for _ in range(SESSION_CHARS))


def _checked(name: str) -> str:
    if not name.replace("-", "").replace("_", "").replace(".", "").isalnum() or len(name) > 64 or name.startswith("."):
        raise UsageError(f"'{name}' can't name a session: use up to 64 letters, digits, '-', '_' and '.'")
    return name
