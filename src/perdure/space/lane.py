"""The client's end of connections to a supervisor: lanes, one request at a time each, and a small pool of them.

A lane that was left in the middle of a request is closed, never used again: what it would still bring belongs to nobody.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from perdure.record.errors import RootReplacedError, SpaceGoneError, StaleEpochError, StoreFullError, UsageError
from perdure.record.parts import Digest
from perdure.space.frames import Frame, Frames
from perdure.space.space import ChunkSource
from perdure.spaced import wire
from perdure.spaced.errors import FULL, ProtocolError

IDLE_LANES = 4


class Lane:
    """One connection. Every method raises SpaceGoneError when the supervisor is gone or has been silent for 10 s.

    `answered`: the newest request has its answer, whatever that was, so that the lane may carry another one.
    """

    def __init__(self, frames: Frames) -> None:
        self._frames = frames
        self._ahead: asyncio.Task[Frame] | None = None
        self.answered = False

    @classmethod
    async def open(cls, folder: Path, name: str) -> Lane:
        """Raises OSError where nobody listens."""
        folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            loop = asyncio.get_running_loop()
            _, frames = await loop.create_unix_connection(Frames, wire.address(str(folder), name, folder_fd))
            return cls(frames)
        finally:
            os.close(folder_fd)

    @property
    def socket(self) -> socket.socket:
        found = self._frames.transport.get_extra_info("socket")
        assert found is not None
        return found  # type: ignore[no-any-return]

    async def ask(self, request: Mapping[str, Any], source: ChunkSource | None = None) -> Any:
        """The answer, serving chunks to the supervisor meanwhile. StaleEpochError as the Space says so; UsageError for a wrong request."""
        async for header, _ in self.parts(request, source):
            if "ok" in header:
                return header["ok"]
        raise AssertionError("an answer ends with ok or an error")

    async def parts(
        self, request: Mapping[str, Any], source: ChunkSource | None = None
    ) -> AsyncIterator[tuple[dict[str, Any], bytes]]:
        """The frames of the answer; the last one has `ok`."""
        self.answered = False
        await self._send(dict(request))
        while True:
            header, payload = await self._next()
            if "error" in header:
                self.answered = header["error"] != "stale"  # with a stale one the supervisor hangs up
                raise _error(header)
            if "need" in header:
                assert source is not None
                await self._serve(header["need"], source)
            elif "alive" not in header:
                self.answered = "ok" in header
                yield header, payload
                if self.answered:
                    return

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.cancel()
        self._frames.transport.close()

    async def _serve(self, digests: Iterable[Digest], source: ChunkSource) -> None:
        """Send the chunks, unless the supervisor breaks the request off while they are fetched."""
        fetching = asyncio.ensure_future(source(digests))
        try:
            while not fetching.done():
                self._ahead = self._ahead or asyncio.create_task(self._receive())
                await asyncio.wait({fetching, self._ahead}, return_when=asyncio.FIRST_COMPLETED)
                if self._ahead.done():
                    header, _ = await self._next()
                    if "error" in header:
                        raise _error(header)
        finally:
            fetching.cancel()
        for batch in wire.batches((await fetching).items()):
            await self._have(batch, more=True)
        await self._have([], more=False)

    async def _have(self, batch: list[tuple[Digest, bytes]], *, more: bool) -> None:
        sizes = [[digest, len(data)] for digest, data in batch]
        await self._send({"have": sizes, "more": more}, b"".join(data for _, data in batch))

    async def _next(self) -> Frame:
        ahead, self._ahead = self._ahead, None
        return await (self._receive() if ahead is None else ahead)

    async def _send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        try:
            await self._frames.send(wire.encode(header, payload), wire.SILENCE_S)
        except (OSError, EOFError, TimeoutError, ProtocolError) as error:
            raise SpaceGoneError(f"the supervisor does not listen any more: {error}") from error

    async def _receive(self) -> Frame:
        try:
            return await self._frames.next(wire.SILENCE_S)
        except TimeoutError as error:
            raise SpaceGoneError(f"the supervisor has been silent for {wire.SILENCE_S:g} s") from error
        except (OSError, EOFError, ValueError, ProtocolError) as error:
            raise SpaceGoneError(f"the supervisor is gone in the middle of an answer: {error}") from error


class Lanes:
    """Lanes to one instance. `greeting` is sent first on each."""

    def __init__(self, folder: Path, name: str, greeting: Mapping[str, Any]) -> None:
        self.folder = folder
        self._name = name
        self.greeting = dict(greeting)
        self._idle: list[Lane] = []

    async def connect(self) -> Lane:
        """Raises OSError, as connect(2) does."""
        return await Lane.open(self.folder, self._name)

    async def greet(self, lane: Lane) -> dict[str, Any]:
        """What the supervisor says of itself."""
        try:
            hello: dict[str, Any] = await lane.ask(self.greeting)
        except BaseException:
            lane.close()
            raise
        return hello

    @asynccontextmanager
    async def lane(self) -> AsyncIterator[Lane]:
        """A lane for one request; back into the pool only if the request was answered."""
        if self._idle:
            lane = self._idle.pop()
        else:
            try:
                lane = await self.connect()
            except OSError as error:
                raise SpaceGoneError(f"nobody listens at {self.folder / self._name}: {error}") from error
            await self.greet(lane)
        try:
            yield lane
        finally:
            if lane.answered:
                self.keep(lane)
            else:
                lane.close()

    def keep(self, lane: Lane) -> None:
        if len(self._idle) < IDLE_LANES:
            self._idle.append(lane)
        else:
            lane.close()

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()


@contextmanager
def naming_full_disks() -> Iterator[None]:
    """What finds no room for a file raises StoreFullError."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise no_room(str(error)) from error


def no_room(message: str) -> StoreFullError:
    return StoreFullError(f"a disk that the Space needs is full: {message}; make room and go on")


def _error(header: Mapping[str, Any]) -> Exception:
    message = header.get("message", "")
    match header["error"]:
        case "stale":
            return StaleEpochError(message)
        case "full":
            return no_room(message)
        case "replaced":
            return RootReplacedError(message)
        case "protocol":
            return UsageError(f"the Space refused the request: {message}")
        case _:
            return SpaceGoneError(f"the Space could not do it: {message}")
