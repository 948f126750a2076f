"""What every end-to-end test starts from: a home, a directory, a scripted model, and the facts to wait for.

Nothing here is a stand-in but the model's script: the store is SQLite, the Space a supervisor with its processes, all as in a person's hands.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import perdure
from perdure.engine.home import Home
from perdure.engine.hosting import Hosting
from perdure.record import records as r
from perdure.record.parts import text_of
from perdure.record.records import Body, Stored

T = TypeVar("T")
B = TypeVar("B", bound=Body)

PATIENCE_S = 30.0
IDLE_S = 0.5
"""Supervisors leave soon after their test."""


def call(tool: str, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args}


def bash(command: str, **args: Any) -> dict[str, Any]:
    return call("bash", command=command, **args)


def turn(text: str = "", *calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"text": text, "calls": list(calls), **fields}


Turns = Sequence[dict[str, Any] | str]


def write_script(path: Path, *turns: dict[str, Any] | str, tasks: Mapping[str, Turns] = {}) -> str:
    """A model's name; a bare string is an answer without calls. `tasks` has the turns of subagents, by what they are asked."""
    path.write_text(json.dumps({"turns": _written(turns), "tasks": {task: _written(own) for task, own in tasks.items()}}))
    return f"scripted:{path}"


def _written(turns: Turns) -> list[dict[str, Any]]:
    return [{"text": t} if isinstance(t, str) else t for t in turns]


class Stage:
    """One session of an open home, on a directory of its own."""

    def __init__(self, opened: perdure.Opened, session: perdure.Session, root: Path) -> None:
        self.opened = opened
        self.session = session
        self.root = root

    @property
    def home(self) -> Home:
        return self.opened.home

    async def run(self, text: str = "go", **options: Any) -> perdure.Answer:
        async with asyncio.timeout(PATIENCE_S):
            return await self.session.run(text, **options)

    async def records(self) -> list[Stored]:
        return [stored async for stored in self.session.records()]

    async def bodies(self, kind: type[B]) -> list[B]:
        return [s.body for s in await self.records() if isinstance(s.body, kind)]

    async def finished(self) -> dict[str, r.CallFinished]:
        """Results by call, in the log's order."""
        return {body.call: body for body in await self.bodies(r.CallFinished)}

    async def settled(self) -> dict[str, r.SubmissionSettled]:
        return {body.submission: body for body in await self.bodies(r.SubmissionSettled)}

    async def until(self, found: Callable[[Body], bool]) -> Stored:
        """The first record of that sort, as soon as it is durable."""
        async with asyncio.timeout(PATIENCE_S):
            async for event in self.session.observe():
                if isinstance(event, perdure.Recorded) and found(event.stored.body):
                    return event.stored
        raise AssertionError("a followed log has no end")

    async def started(self, id: str) -> Stored:
        return await self.until(lambda body: isinstance(body, r.CallStarted) and body.call == id)

    async def file(self, name: str) -> Path:
        """Waits until a command has made it."""
        await appears(self.root / name)
        return self.root / name

    async def told(self) -> str:
        """Everything in the transcript, as one text."""
        state = await self.session.state()
        return "\n".join(getattr(e, "text", "") or text_of(getattr(e, "parts", ())) for e in state.threads["main"].entries)


@asynccontextmanager
async def home_at(path: Path, *, clock: Callable[[], float] = time.time, idle_s: float = IDLE_S) -> AsyncIterator[perdure.Opened]:
    home = await Home.open(path, clock=clock)
    home.spaces = Hosting(path, os.environ, idle_s=idle_s)
    try:
        yield perdure.Opened(home)
    finally:
        await home.close()


@asynccontextmanager
async def stage(
    tmp_path: Path,
    *turns: dict[str, Any] | str,
    name: str = "s",
    clock: Callable[[], float] = time.time,
    tasks: Mapping[str, Turns] = {},
    **options: Any,
) -> AsyncIterator[Stage]:
    """A new session whose model plays these turns, or the one that an earlier stage of this name left."""
    root = tmp_path / f"root-{name}"
    root.mkdir(exist_ok=True)
    async with home_at(tmp_path / "home", clock=clock) as opened:
        if turns:
            options.setdefault("model", write_script(tmp_path / f"{name}.json", *turns, tasks=tasks))
            session = await opened.session(name, directory=root, **options)
        else:
            session = await opened.session(name)
        yield Stage(opened, session, root)


def play(story: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(story)


async def appears(path: Path) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not path.exists():
            await asyncio.sleep(0.01)


async def gone(pid: int) -> None:
    """Waits until no process has this pid."""
    async with asyncio.timeout(PATIENCE_S):
        while Path(f"/proc/{pid}").exists():
            await asyncio.sleep(0.01)


async def took_s(work: Awaitable[T]) -> tuple[T, float]:
    began = time.monotonic()
    result = await work
    return result, time.monotonic() - began
