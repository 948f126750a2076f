"""Real supervisors over temporary workspaces; none of them outlives its test."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.record.records import Image
from perdure.space import death, supervisor
from perdure.space.client import HostSpace
from perdure.space.host import HostSpaces, Opened
from perdure.space.launch import Custody, namespace_problem
from perdure.space.space import Exec, Status

WAIT_S = 20.0


class Place:
    """A workspace, a home beside it, and the supervisor that comes and goes."""

    session = "s1"

    def __init__(self, folder: Path, custody: Custody) -> None:
        self.root = folder / "root"
        self.root.mkdir(parents=True)
        self.home = folder / "home"
        self.custody = custody
        self.spaces = HostSpaces(self.home)

    @property
    def folder(self) -> Path:
        return self.spaces.folder(self.session)

    async def find(self, epoch: int = 1, **options: Any) -> Opened:
        return await self.spaces.open(self.session, root=self.root, epoch=epoch, custody=self.custody, **options)

    async def open(self, epoch: int = 1, adopt: frozenset[str] = frozenset(), **options: Any) -> HostSpace:
        """A fenced Space."""
        space = (await self.find(epoch, **options)).space
        async with asyncio.timeout(WAIT_S):
            await space.fence(epoch, adopt)
        return space

    def kill(self) -> None:
        """SIGKILL of the supervisor, by whoever; returns when it is dead."""
        known = supervisor.recorded(self.folder)
        assert known is not None
        if death.dead(known.init, known.boot_id) is False:
            os.kill(known.init.pid, signal.SIGKILL)
        until(lambda: death.dead(known.init, known.boot_id))

    def running(self, key: str) -> list[int]:
        """Processes anywhere on this machine that started with the call key in this workspace."""
        wanted = {f"PERDURE_CALL_KEY={key}".encode(), b"PWD=" + os.fsencode(self.root)}
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if wanted <= set(path.read_bytes().split(b"\0")):
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found


def until(fact: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    deadline = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.005)


async def until_async(fact: Callable[[], object]) -> None:
    await asyncio.to_thread(until, fact)


async def run(space: HostSpace, key: str, command: str, base: Image | None = None, **options: Any) -> Status:
    await space.start(key, Exec(command, **options), base=base)
    async with asyncio.timeout(WAIT_S):
        return await space.wait(key)


def step_numbers(place: Place, trace: Path, story: Callable[[HostSpace], Awaitable[object]]) -> dict[str, list[int]]:
    """The numbers of the supervisor's named steps over this story, told in a session and a workspace of their own."""
    traced = Place(trace.with_suffix(".place"), place.custody)

    async def main() -> None:
        space = await traced.open(1, env={**os.environ, "PERDURE_STEPS": f"spaced:0:trace:{trace}"})
        await story(space)
        await space.close()
        traced.kill()

    asyncio.run(main())
    numbers: dict[str, list[int]] = {}
    for line in trace.read_text().splitlines():
        _, number, name = line.split(" ", 2)
        numbers.setdefault(name, []).append(int(number))
    return numbers


@pytest.fixture(params=["pidns", "unproven"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    yield from _place(tmp_path, request.param)


@pytest.fixture
def proven(tmp_path: Path) -> Iterator[Place]:
    yield from _place(tmp_path, "pidns")


@pytest.fixture
def unproven(tmp_path: Path) -> Iterator[Place]:
    yield from _place(tmp_path, "unproven")


def _place(folder: Path, custody: Custody) -> Iterator[Place]:
    if sys.platform != "linux":
        pytest.skip("needs Linux: the tests look into /proc")
    if custody == "pidns" and (problem := namespace_problem()):
        pytest.skip(f"needs a PID namespace: {problem}")
    place = Place(folder, custody)
    yield place
    for home in place.home.glob("spaces/*"):
        known = supervisor.recorded(home)
        if known is not None and death.dead(known.init, known.boot_id) is False:
            asyncio.run(death.kill(known.init, known.boot_id))
