"""A server on loopback that speaks OpenAI's streaming chat completions, and misbehaves on request.

Each request is answered by the next of the given answers; a request beyond them gets status 418, which no test expects.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from perdure.model.providers import ProviderModel, openai

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class ChatServer:
    """`bodies` are the requests' bytes, `heads` their first lines and headers; `closed` is set when a client hangs up on a `hang`."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self.bodies: list[bytes] = []
        self.heads: list[str] = []
        self.closed = asyncio.Event()
        self.connections = 0
        self._open: dict[asyncio.Task[None], asyncio.StreamWriter] = {}
        self.url = ""

    def model(self, key: str | None = "sk-test") -> ProviderModel:
        return openai("openai:fake", "fake", key=key, base_url=self.url)

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
                await (self._answers.pop(0) if self._answers else status(418))(reader, writer)
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
            await _send(writer, STREAM, *map(_frame, chunks))
            await reader.read()
            self.closed.set()
            writer.close()

        return answer

    def then(self, answer: Answer) -> None:
        self._answers.append(answer)


@asynccontextmanager
async def chat_server(*answers: Answer) -> AsyncIterator[ChatServer]:
    server = ChatServer(*answers)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listener.close()
        await server.close()
        await listener.wait_closed()


# ---- chunks ----------------------------------------------------------------------------------------------------------------


def chunk(delta: dict[str, Any] | None, finish: str | None = None, usage: dict[str, Any] | None = None) -> dict[str, Any]:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "r1", "object": "chat.completion.chunk", "created": 1, "model": "fake-1", "choices": choices, "usage": usage}


def text(*pieces: str) -> list[dict[str, Any]]:
    return [chunk({"role": "assistant", "content": piece}) for piece in pieces]


def call(index: int, *arguments: str, id: str, tool: str) -> list[dict[str, Any]]:
    """A tool call whose arguments come in pieces."""
    first = {"index": index, "id": id, "type": "function", "function": {"name": tool, "arguments": ""}}
    rest = [{"index": index, "function": {"arguments": piece}} for piece in arguments]
    return [chunk({"tool_calls": [piece]}) for piece in (first, *rest)]


def end(reason: str = "stop") -> list[dict[str, Any]]:
    counts = {"prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17, "prompt_tokens_details": {"cached_tokens": 8}}
    return [chunk({}, reason), chunk(None, usage=counts)]


# ---- answers ---------------------------------------------------------------------------------------------------------------


def says(*chunks: dict[str, Any]) -> Answer:
    """A whole stream of these chunks."""
    return raw(*map(_frame, chunks), _piece(b"data: [DONE]\n\n"), b"0\r\n\r\n")


def stops(*chunks: dict[str, Any]) -> Answer:
    """A stream that the server ends in order, but too early."""
    return raw(*map(_frame, chunks), b"0\r\n\r\n")


def breaks(*chunks: dict[str, Any]) -> Answer:
    """A stream whose connection is lost after these chunks."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _send(writer, STREAM, *map(_frame, chunks))
        writer.close()

    return answer


def garbles(*chunks: dict[str, Any]) -> Answer:
    """A stream with a chunk that is not JSON."""
    return raw(*map(_frame, chunks), _piece(b'data: {"id": "r1", "choi\n\n'), _piece(b"data: [DONE]\n\n"), b"0\r\n\r\n")


def raw(*data: bytes) -> Answer:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _send(writer, STREAM, *data)

    return answer


def status(code: int, error: dict[str, Any] | str = "no", **headers: str) -> Answer:
    """An error in OpenAI's form, or as plain text."""
    body = error if isinstance(error, str) else json.dumps({"error": error})
    extra = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {code} Error\r\ncontent-type: application/json\r\n{extra}content-length: {len(body)}\r\n\r\n"

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _send(writer, head.encode(), body.encode())

    return answer


async def _send(writer: asyncio.StreamWriter, *data: bytes) -> None:
    for piece in data:
        writer.write(piece)
        await writer.drain()


def _frame(chunk: dict[str, Any]) -> bytes:
    return _piece(b"data: " + json.dumps(chunk).encode() + b"\n\n")


def _piece(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"
