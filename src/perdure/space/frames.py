"""Frames of a supervisor as they come over a connection, for one reader at a time.

A transport's own callbacks put them together, so a short answer costs one turn of the event loop: a stream's coroutines, one for each part of a
frame, cost a tenth of a turn of the agent.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from perdure.spaced import wire
from perdure.spaced.errors import ProtocolError

Frame = tuple[dict[str, Any], bytes]
"""A header and its payload."""

HELD_FRAMES = 16
"""So many frames that nobody has taken yet, and no more are read."""


class Frames(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self._unread = bytearray()
        self._needed = wire.PREFIX.size
        self._whole: deque[Frame] = deque()
        self._ended: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._writer: asyncio.Future[None] | None = None

    async def next(self, timeout_s: float) -> Frame:
        """Raises TimeoutError; EOFError, OSError or ProtocolError when no more will come."""
        while not self._whole:
            if self._ended is not None:
                raise self._ended
            self._reader = asyncio.get_running_loop().create_future()
            await _within(self._reader, timeout_s)
        frame = self._whole.popleft()
        if not self._whole:
            self.transport.resume_reading()
        return frame

    async def send(self, data: bytes, timeout_s: float) -> None:
        """Returns when the other side has taken most of it. Raises TimeoutError, and OSError or EOFError when it is gone."""
        if self._ended is not None:
            raise self._ended
        self.transport.write(data)
        if self._writer is not None:
            await _within(self._writer, timeout_s)

    # ---- what the transport calls ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self._unread += data
        try:
            while len(self._unread) >= self._needed and self._ended is None:
                self._take()
        except (ValueError, ProtocolError) as error:
            self._end(error)
        if len(self._whole) > HELD_FRAMES:
            self.transport.pause_reading()
        if self._whole:
            _wake(self._reader)

    def _take(self) -> None:
        """A frame that is there, or what is needed for one whose lengths are."""
        begin = wire.PREFIX.size
        head, payload = wire.lengths(bytes(self._unread[:begin]))
        end = begin + head + payload
        if len(self._unread) < end:
            self._needed = end
            return
        header = wire.decode(bytes(self._unread[begin : begin + head]))
        self._whole.append((header, bytes(self._unread[begin + head : end])))
        del self._unread[:end]
        self._needed = begin

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or EOFError("the connection was closed"))

    def pause_writing(self) -> None:
        self._writer = asyncio.get_running_loop().create_future()

    def resume_writing(self) -> None:
        _wake(self._writer)
        self._writer = None

    def _end(self, error: Exception) -> None:
        self._ended = self._ended or error
        _wake(self._reader)
        _wake(self._writer)


async def _within(awaited: asyncio.Future[None], timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    timer = loop.call_later(timeout_s, _fail, awaited)
    try:
        await awaited
    finally:
        timer.cancel()


def _wake(awaited: asyncio.Future[None] | None) -> None:
    if awaited is not None and not awaited.done():
        awaited.set_result(None)


def _fail(awaited: asyncio.Future[None]) -> None:
    if not awaited.done():
        awaited.set_exception(TimeoutError())
