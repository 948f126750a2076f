"""OpenAI's streaming chat completions, spoken by a server of the tests."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from typing import Any

from perdure.model.providers import ProviderModel
from perdure.model.vendors import openai

from .wire import Answer, WireServer, breaks_after, frame, listening, status_with, streams

DONE = b"data: [DONE]\n\n"


class ChatServer(WireServer):
    path = "/v1"

    def model(self, key: str | None = "sk-test") -> ProviderModel:
        return openai("openai:fake", "fake", key=key, key_name="OPENAI_API_KEY", base_url=self.url)


def chat_server(*answers: Answer) -> AbstractAsyncContextManager[ChatServer]:
    return listening(ChatServer(*answers))


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
    return streams(*map(frame, chunks), DONE)


def stops(*chunks: dict[str, Any]) -> Answer:
    """A stream that the server ends in order, but too early."""
    return streams(*map(frame, chunks))


def breaks(*chunks: dict[str, Any]) -> Answer:
    """A stream whose connection is lost after these chunks."""
    return breaks_after(*map(frame, chunks))


def garbles(*chunks: dict[str, Any]) -> Answer:
    """A stream with a chunk that is not JSON."""
    return streams(*map(frame, chunks), b'data: {"id": "r1", "choi\n\n', DONE)


def status(code: int, error: dict[str, Any] | str = "no", **headers: str) -> Answer:
    """An error in OpenAI's form, or as plain text."""
    return status_with(code, error if isinstance(error, str) else json.dumps({"error": error}), **headers)
