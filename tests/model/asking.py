"""One attempt at a model against a server of the tests."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

import pytest

from perdure.model.stream import AssistantMessage, Context, Delta, Final, Message, ModelError, ToolMessage, ToolSpec, UserMessage
from perdure.record.parts import Text, ToolCall

from .conversation import context, listen, split
from .wire import WireServer

S = TypeVar("S", bound=WireServer)

BASH = ToolSpec(
    "bash", "Run a command.", {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
)
HI = context(UserMessage((Text("hi"),)))


def reply(serving: AbstractAsyncContextManager[S], asked: Context = HI) -> tuple[list[Delta], Final, S]:
    async def main() -> tuple[list[Delta], Final, S]:
        async with serving as server:
            return *split(await listen(server.model(), asked)), server

    return asyncio.run(main())


def failure(serving: AbstractAsyncContextManager[S], asked: Context = HI) -> ModelError:
    """What one attempt fails with, and that it was one attempt."""

    async def main() -> ModelError:
        async with serving as server:
            with pytest.raises(ModelError) as error:
                await listen(server.model(), asked)
            assert len(server.bodies) == 1
            return error.value

    return asyncio.run(main())


def talk(serving: AbstractAsyncContextManager[S], asked: Context, turns: int) -> tuple[list[Message], S]:
    """So many turns, each result `ok`, each answer followed by a question: the transcript, and the server with the bytes of each request."""

    async def main() -> tuple[list[Message], S]:
        async with serving as server:
            model, said = server.model(), list(asked.messages)
            for _ in range(turns):
                turn = Context(asked.system, said, asked.tools, asked.options, blobs=asked.blobs)
                final = split(await listen(model, turn))[1]
                said.append(AssistantMessage(final.parts, model.name, final.extra))
                calls = [part for part in final.parts if isinstance(part, ToolCall)]
                said += [ToolMessage(c.id, c.tool, "ok") for c in calls] or [UserMessage((Text("and then?"),))]
            return said, server

    return asyncio.run(main())


def without(value: Any, *marks: str) -> Any:
    """JSON without these fields, wherever they are."""
    if isinstance(value, dict):
        return {name: without(inner, *marks) for name, inner in value.items() if name not in marks}
    return [without(inner, *marks) for inner in value] if isinstance(value, list) else value


def begins_with(later: Any, earlier: Any) -> bool:
    """Whether a list of JSON begins with another, in characters."""
    return json.dumps(later).startswith(json.dumps(earlier).removesuffix("]"))
