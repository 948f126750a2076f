"""A server on loopback that answers a model's requests as it is told to, and misbehaves on request.

Each request is answered by the next of the given answers; a request beyond them gets status 418, which no test expects. What is sent is frames: a
provider's own events as JSON. `chat_server` and its like know what those are.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from perdure.model.providers import ProviderModel

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
S = TypeVar("S", bound="WireServer")


class WireServer:
    """`bodies` are the requests' bytes, `heads` their first lines and headers; `closed` is set when a client hangs up on a `hang`."""

    path = ""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.bodies: list[bytes] = []
        self.heads: list[str] = []
        self.closed = asyncio.Event()
        self.connections = 0
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.url = ""

    def model(self) -> ProviderModel:
        raise NotImplementedError

    def framed(self, event: dict[str, Any]) -> bytes:
        return frame(event)

    def sent(self, index: int = -1) -> dict[str, Any]:
        """A request's body as JSON."""
        body = json.loads(self.bodies[index])
        assert isinstance(body, dict)
        return body

    def messages(self, index: int = -1) -> str:
        """The exact characters of a request's list of messages."""
        text = self.bodies[index].decode()
        start = text.index('"messages":') + len('"messages":')
        _, end = json.JSONDecoder().raw_decode(text, start)
        return text[start:end]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, which the server would keep for further requests."""
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = next(int(line.split(":")[1]) for line in head.split("\r\n") if line.lower().startswith("content-length"))
                self.heads.append(head)
                self.bodies.append(await reader.readexactly(length))
                await (self._answers.pop(0) if self._answers else status_with(418, ""))(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
            del self._open[task]

    async def close(self) -> None:
        for writer in self._open.values():
            writer.close()
        await asyncio.gather(*self._open)

    def hang(self, *chunks: dict[str, Any]) -> Answer:
        """These chunks and then silence, until the client hangs up."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await send(writer, STREAM, *(piece(self.framed(chunk)) for chunk in chunks))
            await reader.read()
            self.closed.set()
            writer.close()

        return answer

    def then(self, answer: Answer) -> None:
        self._answers.append(answer)


@asynccontextmanager
async def listening(server: S) -> AsyncIterator[S]:
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}{server.path}"
    try:
        yield server
    finally:
        listener.close()
        await server.close()
        await listener.wait_closed()


# ---- answers ---------------------------------------------------------------------------------------------------------------


def streams(*frames: bytes) -> Answer:
    """A whole stream of these frames, ended in order."""
    return raw(*map(piece, frames), b"0\r\n\r\n")


def breaks_after(*frames: bytes) -> Answer:
    """A stream whose connection is lost after these frames."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await send(writer, STREAM, *map(piece, frames))
        writer.close()

    return answer


def raw(*data: bytes) -> Answer:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await send(writer, STREAM, *data)

    return answer


def status_with(code: int, body: str, **headers: str) -> Answer:
    extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {code} Error\r\ncontent-type: application/json\r\n{extra}content-length: {len(body)}\r\n\r\n"

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await send(writer, head.encode(), body.encode())

    return answer


async def send(writer: asyncio.StreamWriter, *data: bytes) -> None:
    for one in data:
        writer.write(one)
        await writer.drain()


def frame(event: dict[str, Any]) -> bytes:
    """One event, without a name."""
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def piece(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
