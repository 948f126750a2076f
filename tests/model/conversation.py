"""Short ways to say a conversation and to ask a model once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from perdure.model.stream import AssistantMessage, Context, Delta, Final, Message, Model, ToolMessage, UserMessage
from perdure.record.parts import Text, ToolCall


def user(text: str) -> UserMessage:
    return UserMessage((Text(text),))


def partial(text: str) -> AssistantMessage:
    return AssistantMessage((Text(text),), interrupted=True)


def answer(text: str) -> AssistantMessage:
    return AssistantMessage((Text(text),))


def called(id: str = "call_1_1", tool: str = "bash") -> AssistantMessage:
    """An answer that is one call."""
    return AssistantMessage((ToolCall(id, tool, {}),))


def result(text: str, *, id: str = "call_1_1", tool: str = "bash") -> ToolMessage:
    return ToolMessage(id, tool, text)


def context(*messages: Message, system: str = "", **fields: Any) -> Context:
    return Context(system, messages, **fields)


async def listen(model: Model, context: Context, *, deadline_s: float = 10.0) -> list[Delta | Final]:
    """Everything one attempt yields."""
    async with model.stream(model.prepare(context), deadline_s) as events:
        return [event async for event in events]


def ask(model: Model, context: Context, *, deadline_s: float = 10.0) -> tuple[list[Delta], Final]:
    """One attempt: its deltas, and its final."""
    return split(asyncio.run(listen(model, context, deadline_s=deadline_s)))


def split(events: Sequence[Delta | Final]) -> tuple[list[Delta], Final]:
    *deltas, final = events
    assert isinstance(final, Final)
    assert all(isinstance(delta, Delta) for delta in deltas)
    return [delta for delta in deltas if isinstance(delta, Delta)], final
