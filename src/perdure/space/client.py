"""A Space reached over its socket: every method is one request on a lane."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Set
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from perdure.record.errors import SpaceGoneError
from perdure.record.parts import Digest
from perdure.record.records import Image, Incarnation, Init, Process, Window
from perdure.space import death, supervisor
from perdure.space.lane import Lane, Lanes
from perdure.space.space import Capture, ChunkSource, Expect, Fenced, Op, OpKey, Plan, Restored, Status, Traits
from perdure.spaced.wire import split

DEATH_S = 1.0


class HostSpace:
    """Implements `perdure.space.space.Space`."""

    def __init__(
        self, lanes: Lanes, token: str, epoch: int, hello: Mapping[str, Any], init: Init, *, own_workspace: bool
    ) -> None:
        self._lanes = lanes
        self._token = token
        self._epoch = epoch
        self.incarnation = Incarnation(hello["generation"], hello["boot_id"], hello["ledger_id"])
        self.instance: int = hello["instance"]
        self.init = init
        held = hello.get("self_test", {})
        hermetic = bool(held) and all(held.values())
        told = hello.get("capture", "")
        self.traits = Traits(custody=hello["custody"], hermetic=hermetic, own_workspace=own_workspace, capture=told)
        self.position: int = hello["position"]
        self.exclude: tuple[str, ...] = tuple(hello.get("exclude", ()))

    # ---- operations

    async def fence(self, epoch: int, adopt: Set[OpKey]) -> Fenced:
        answer = await self._ask("fence", epoch=epoch, adopt=sorted(adopt))
        self._epoch = epoch
        self._lanes.greeting["epoch"] = epoch
        return msgspec.convert(answer, Fenced)

    async def start(
        self, key: OpKey, op: Op, *, base: Image | None = None, wait_s: float = 0.0, expect: Expect | None = None
    ) -> Status:
        asked = {"op": msgspec.to_builtins(op), "base": _image(base), "wait_s": wait_s, "expect": _builtins(expect)}
        return self._status(await self._ask("start", key=key, **asked))

    async def status(self, keys: Set[OpKey]) -> Mapping[OpKey, Status]:
        answer = await self._ask("status", keys=sorted(keys))
        return {key: self._status(value) for key, value in answer.items()}

    async def wait(self, key: OpKey, wait_s: float | None = None) -> Status:
        return self._status(await self._ask("wait", key=key, wait_s=wait_s))

    async def output(self, key: OpKey, offset: int = 0) -> AsyncIterator[bytes]:
        async with self._lane() as lane:
            async for _, data in lane.parts(self._request("output", key=key, offset=offset)):
                if data:
                    yield data

    async def stop(self, key: OpKey, grace_s: float = 2.0) -> Status:
        return self._status(await self._ask("stop", key=key, grace_s=grace_s))

    async def leave(self) -> bool:
        """Ask the supervisor to end; it does if nothing runs under it and nobody else is connected."""
        return bool((await self._ask("leave"))["leaves"])

    async def processes(self) -> list[Process]:
        return msgspec.convert(await self._ask("processes"), list[Process])

    # ---- the workspace

    async def capture(self, base: Image | None, *, settled: Image | None = None, audit: bool = False) -> Capture:
        return msgspec.convert(await self._ask("capture", base=_image(base), settled=_image(settled), audit=audit), Capture)

    async def chunks(self, digests: Iterable[Digest]) -> AsyncIterator[tuple[Digest, bytes]]:
        wanted = sorted(set(digests))
        if not wanted:
            return
        async with self._lane() as lane:
            async for header, payload in lane.parts(self._request("chunks", digests=wanted)):
                for digest, data in split(header.get("more", ()), payload).items():
                    yield digest, data

    async def leave_out(self, rules: tuple[str, ...]) -> None:
        await self._ask("leave_out", rules=rules)
        self.exclude = rules

    async def settle(self, image: Image) -> None:
        await self._ask("settle", image=_image(image))

    async def plan(self, target: Image, source: ChunkSource, window: Window | None, *, known: Set[Digest] = frozenset()) -> Plan:
        asked = {"target": _image(target), "window": _builtins(window), "known": sorted(known)}
        return msgspec.convert(await self._ask("plan", source, **asked), Plan)

    async def restore(self, target: Image, source: ChunkSource, plan: Plan, *, also: Iterable[str] = ()) -> Restored:
        asked = {"target": _image(target), "plan": _builtins(plan), "also": list(also)}
        return msgspec.convert(await self._ask("restore", source, **asked), Restored)

    async def sync(self) -> None:
        await self._ask("sync")

    # ---- its life

    async def watch_death(self) -> int:
        """Returns once the supervisor is dead, with the wall clock at which that was seen, in nanoseconds; the home keeps that instant."""
        seen_ns = await death.watch_death(self.init, self.incarnation.boot_id)
        supervisor.saw_death(self._lanes.folder, self.instance, seen_ns)
        return seen_ns

    async def close(self) -> None:
        self._lanes.close()

    @asynccontextmanager
    async def _lane(self) -> AsyncIterator[Lane]:
        """A lane for one request. When the supervisor is found gone, the instant of its death is worth waiting a moment for: it bounds an undo."""
        try:
            async with self._lanes.lane() as lane:
                yield lane
        except SpaceGoneError:
            with contextlib.suppress(TimeoutError, LookupError):
                async with asyncio.timeout(DEATH_S):
                    await self.watch_death()
            raise

    def _request(self, verb: str, **fields: Any) -> dict[str, Any]:
        return {"verb": verb, "token": self._token, "epoch": self._epoch, **fields}

    async def _ask(self, verb: str, source: ChunkSource | None = None, **fields: Any) -> Any:
        async with self._lane() as lane:
            return await lane.ask(self._request(verb, **fields), source)

    def _status(self, answer: Mapping[str, Any]) -> Status:
        status = msgspec.convert(answer, Status)
        self.position = max(self.position, status.position)
        return status


def _builtins(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _image(image: Image | None) -> Any:
    return None if image is None else msgspec.to_builtins(image)
