"""Spaces on this machine: who opens a session's Space reaches its supervisor, or proves the last one dead and starts the next life.

`<home>/spaces/<session>/` is the Space's state folder; it belongs to the supervisor but for two files that are the home's: `token`, and `init.json`, what
the kernel outside calls the supervisor. The latter is written before the first operation can be asked for.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from perdure.record.errors import SpaceGoneError
from perdure.record.records import Process
from perdure.space import death, neighbour, supervisor
from perdure.space import sandbox as box
from perdure.space.client import HostSpace
from perdure.space.environment import command_environment
from perdure.space.lane import Lanes, naming_full_disks
from perdure.space.launch import START_S, Custody, RootHeldError, bubblewrap, choose, launch
from perdure.space.sandbox import Sandbox
from perdure.space.supervisor import Supervisor
from perdure.spaced.boot import boot_id
from perdure.spaced.fence import read_floor
from perdure.spaced.release import RELEASE
from perdure.spaced.wire import SPOKEN

RETRY_S = 0.05


class Previous(Struct, frozen=True):
    """The life before this one. `proven`: nothing of it can still run. `dead_at_ns` is when its death was seen, None if only its result was."""

    instance: int
    custody: Literal["pidns", "unproven"]
    proven: bool
    dead_at_ns: int | None = None


class Opened(Struct, frozen=True):
    """A Space that answers, and what was found on the way to it.

    `started`: a new life was begun. `fresh`: a new generation too, so its ledger knows nothing. `dead_at_ns` is the previous life's, if this open
    found one dead. `survivors` are processes of it whose death can't be proven. `device` and `inode` are the root's.
    """

    space: HostSpace
    started: bool
    fresh: bool
    device: int
    inode: int
    previous: Previous | None = None
    dead_at_ns: int | None = None
    survivors: tuple[Process, ...] = ()
    self_test: dict[str, bool] = {}
    mounts_left_out: tuple[str, ...] = ()


class HostSpaces:
    """The Spaces of one home."""

    def __init__(self, home: Path, *, idle_s: float | None = None) -> None:
        self._spaces = home / "spaces"
        self._idle_s = idle_s

    def folder(self, session: str) -> Path:
        return self._spaces / session

    def floor(self, session: str) -> int:
        """The Space's fence, read without asking anybody; 0 where there is no Space yet."""
        return read_floor(str(self.folder(session)))

    async def open(
        self,
        session: str,
        *,
        root: Path,
        epoch: int,
        custody: Custody = "auto",
        env: Mapping[str, str] | None = None,
        own_workspace: bool = False,
        exclude: Sequence[str] = (),
        accepted: bool = False,
        sandbox: Sandbox | None = None,
        capture: str = "auto",
    ) -> Opened:
        """Reach the living supervisor, or start its next life. It is not fenced yet if it was reached.

        `accepted` is a person's word that a last life which can't be seen from here is over; without it that is a SurvivorsError. Raises
        StaleEpochError below its floor, SpaceGoneError if no supervisor comes up, RootRefusedError if another session's supervisor needs the
        root, UsageError if `pidns` can't be had, or the sandbox as it is asked for, StoreFullError.
        """
        with naming_full_disks():
            return await self._open(
                session, root, epoch, custody, env, exclude, sandbox, capture, own_workspace=own_workspace, accepted=accepted
            )

    async def _open(
        self,
        session: str,
        root: Path,
        epoch: int,
        custody: Custody,
        env: Mapping[str, str] | None,
        exclude: Sequence[str],
        sandbox: Sandbox | None,
        capture: str,
        *,
        own_workspace: bool,
        accepted: bool,
    ) -> Opened:
        folder = self.folder(session)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        environment = command_environment(os.environ if env is None else env)
        if sandbox is not None:
            box.check(bubblewrap(), sandbox, root, self._spaces.parent)
            environment = box.environment(environment, root)
        opening = _Opening(folder, root, epoch, environment, own_workspace=own_workspace, accepted=accepted, sandbox=sandbox)
        arguments = ["--epoch", str(epoch), *(["--own"] if own_workspace else [])]
        arguments += ["--exclude", msgspec.json.encode(list(exclude)).decode()] if exclude else []
        arguments += ["--capture", capture]
        arguments += ["--idle-s", str(self._idle_s)] if self._idle_s is not None else []
        return await opening.run("pidns" if sandbox is not None else choose(custody), arguments)


class _Opening:
    """One attempt to come to a supervisor."""

    def __init__(
        self,
        folder: Path,
        root: Path,
        epoch: int,
        environment: Mapping[str, str],
        *,
        own_workspace: bool,
        accepted: bool,
        sandbox: Sandbox | None,
    ) -> None:
        self._folder = folder
        self._root = root
        self._epoch = epoch
        self._environment = dict(environment)
        self._own_workspace = own_workspace
        self._accepted = accepted
        self._sandbox = sandbox
        self._token = _token(folder)

    async def run(self, custody: Literal["pidns", "unproven"], arguments: Sequence[str]) -> Opened:
        before = supervisor.identity(self._folder)
        previous: Previous | None = None
        patience = time.monotonic() + START_S
        launched = False
        while True:
            found = await self._reach()
            if found is not None and not await self._retired(*found, launched=launched):
                return self._opened(*found, before, previous)
            previous = await self._bury() or previous
            try:
                await launch(self._folder, self._root, custody, arguments, self._environment, self._sandbox)
                launched = True
            except RootHeldError as error:
                await neighbour.ask_to_leave(self._folder.parent, self._root, str(error))
            except SpaceGoneError:
                # Another opener may have been faster and its supervisor about to answer; one that never does is ended.
                if time.monotonic() > patience and not await self._end_holder():
                    raise
                await asyncio.sleep(RETRY_S)

    async def _reach(self) -> tuple[HostSpace, dict[str, Any]] | None:
        """The supervisor of the newest life, which is recorded before anything is asked of it; None if it does not answer."""
        said = supervisor.identity(self._folder)
        greeting = {"verb": "hello", "token": self._token, "epoch": self._epoch, "versions": SPOKEN, "env": self._environment}
        lanes = Lanes(self._folder, f"s-{said.get('instance')}", greeting)
        try:
            lane = await lanes.connect()
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        init = death.identify(death.peer(lane.socket))
        if init is None:
            lane.close()
            return None
        supervisor.record(self._folder, Supervisor(said["instance"], said["boot_id"], init, said["custody"]))
        try:
            hello = await lanes.greet(lane)
        except SpaceGoneError:
            return None
        lanes.keep(lane)
        return HostSpace(lanes, self._token, self._epoch, hello, init, own_workspace=self._own_workspace), hello

    async def _retired(self, space: HostSpace, hello: Mapping[str, Any], *, launched: bool) -> bool:
        """Whether it is of another release and has left, since nothing runs under it. One that has something running is asked again next time."""
        if launched or hello.get("release") == RELEASE or not await space.leave():
            return False
        await space.close()
        try:
            async with asyncio.timeout(START_S):
                await death.watch_death(space.init, hello["boot_id"])
        except TimeoutError as error:
            raise SpaceGoneError(
                f"the supervisor of another release (process {space.init.pid}) has not ended within {START_S:g} s"
            ) from error
        return True

    async def _bury(self) -> Previous | None:
        """The last life does not answer: it is dead, or it will be."""
        known = supervisor.recorded(self._folder)
        if known is None:
            return None
        gone = death.dead(known.init, known.boot_id)
        if gone is False:
            known = msgspec.structs.replace(known, dead_at_ns=await death.kill(known.init, known.boot_id))
            supervisor.record(self._folder, known)
        elif gone is None and not self._accepted:
            raise death.unseen(known.init)
        return Previous(known.instance, known.custody, gone is not None and known.custody == "pidns", known.dead_at_ns)

    async def _end_holder(self) -> bool:
        """Kill a supervisor that holds the folder and was silent from its first breath; False if there is none."""
        pid = death.lock_holder(self._folder / "lock")
        init = death.identify(pid) if pid else None
        if init is None:
            return False
        await death.kill(init, boot_id())
        return True

    def _opened(self, space: HostSpace, hello: Mapping[str, Any], before: Mapping[str, Any], previous: Previous | None) -> Opened:
        if previous is not None and hello["closed_by"] == previous.instance:
            previous = msgspec.structs.replace(previous, proven=True)
        return Opened(
            space,
            started=hello["instance"] != before.get("instance"),
            fresh=hello["generation"] != before.get("generation"),
            device=hello["device"],
            inode=hello["inode"],
            previous=previous,
            dead_at_ns=previous.dead_at_ns if previous else None,
            self_test=dict(hello.get("self_test", {})),
            mounts_left_out=tuple(hello.get("mounts_left_out", ())),
        )


def _token(folder: Path) -> str:
    """The Space's, made on first use: complete before it has its name."""
    path = folder / "token"
    if not path.exists():
        beside = folder / f"token.{secrets.token_hex(4)}"
        beside.touch(mode=0o600)
        beside.write_text(secrets.token_hex(32))
        with contextlib.suppress(FileExistsError):
            os.link(beside, path)
        beside.unlink()
    return path.read_text()
