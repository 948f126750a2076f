"""Anthropic's streaming messages API, spoken by a server of the tests."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from typing import Any

from perdure.model.providers import ProviderModel
from perdure.model.vendors import anthropic

from .wire import Answer, WireServer, breaks_after, listening, status_with, streams

Event = dict[str, Any]


class MessagesServer(WireServer):
    asked = "claude-opus-4-8"

    def model(self) -> ProviderModel:
        return anthropic(f"anthropic:{self.asked}", self.asked, key="sk-test", key_name="ANTHROPIC_API_KEY", base_url=self.url)

    def framed(self, event: Event) -> bytes:
        return named(event)


def messages_server(*answers: Answer) -> AbstractAsyncContextManager[MessagesServer]:
    return listening(MessagesServer(*answers))


# ---- events ----------------------------------------------------------------------------------------------------------------


def begin(**usage: int) -> list[Event]:
    counts = {"input_tokens": 4, "output_tokens": 1, "cache_read_input_tokens": 6, "cache_creation_input_tokens": 2, **usage}
    message = {"id": "m1", "type": "message", "role": "assistant", "model": "claude-opus-4-8", "content": []}
    return [{"type": "message_start", "message": {**message, "stop_reason": None, "stop_sequence": None, "usage": counts}}]


def text(index: int, *pieces: str) -> list[Event]:
    return _block(index, {"type": "text", "text": ""}, *({"type": "text_delta", "text": piece} for piece in pieces))


def thinking(index: int, words: str, signature: str) -> list[Event]:
    block = {"type": "thinking", "thinking": "", "signature": ""}
    deltas = ({"type": "thinking_delta", "thinking": words}, {"type": "signature_delta", "signature": signature})
    return _block(index, block, *deltas)


def redacted(index: int, data: str) -> list[Event]:
    return _block(index, {"type": "redacted_thinking", "data": data})


def call(index: int, *arguments: str, id: str, tool: str) -> list[Event]:
    block = {"type": "tool_use", "id": id, "name": tool, "input": {}}
    return _block(index, block, *({"type": "input_json_delta", "partial_json": piece} for piece in arguments))


def end(reason: str = "end_turn") -> list[Event]:
    usage = {"output_tokens": 5}
    return [
        {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": usage},
        {"type": "message_stop"},
    ]


def _block(index: int, block: Event, *deltas: Event) -> list[Event]:
    return [
        {"type": "content_block_start", "index": index, "content_block": block},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


# ---- answers ---------------------------------------------------------------------------------------------------------------


def says(*events: Event) -> Answer:
    return streams(*map(named, events))


def breaks(*events: Event) -> Answer:
    """A stream whose connection is lost after these events."""
    return breaks_after(*map(named, events))


def garbles(*events: Event) -> Answer:
    """A stream with an event that is not JSON."""
    return streams(*map(named, events), b'event: content_block_delta\ndata: {"type": "content_bl\n\n')


def status(code: int, kind: str, message: str = "no", **headers: str) -> Answer:
    """An error in Anthropic's form."""
    return status_with(code, json.dumps({"type": "error", "error": {"type": kind, "message": message}}), **headers)


def named(event: Event) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
