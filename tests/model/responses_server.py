"""OpenAI's streaming Responses API, spoken by a server of the tests."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from typing import Any

from perdure.model.providers import ProviderModel
from perdure.model.vendors import openai_responses

from .wire import Answer, WireServer, breaks_after, listening, status_with, streams

Event = dict[str, Any]
COUNTS = {
    "input_tokens": 12,
    "output_tokens": 5,
    "total_tokens": 17,
    "input_tokens_details": {"cached_tokens": 8},
    "output_tokens_details": {"reasoning_tokens": 2},
}


class ResponsesServer(WireServer):
    path = "/v1"

    def model(self) -> ProviderModel:
        return openai_responses(
            "openai-responses:gpt-5.2", "gpt-5.2", key="sk-test", key_name="OPENAI_API_KEY", base_url=self.url
        )

    def framed(self, event: Event) -> bytes:
        return _numbered((event,))[0]


def responses_server(*answers: Answer) -> AbstractAsyncContextManager[ResponsesServer]:
    return listening(ResponsesServer(*answers))


# ---- events ----------------------------------------------------------------------------------------------------------------


def begin() -> list[Event]:
    return [{"type": "response.created", "response": _response("in_progress")}]


def text(index: int, *pieces: str) -> list[Event]:
    id, part = f"msg_{index}", {"type": "output_text", "text": "", "annotations": []}
    whole = {**part, "text": "".join(pieces)}
    item = {"id": id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
    where = {"item_id": id, "output_index": index, "content_index": 0}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": item},
        {"type": "response.content_part.added", **where, "part": part},
        *({"type": "response.output_text.delta", **where, "delta": piece, "logprobs": []} for piece in pieces),
        {"type": "response.output_text.done", **where, "text": whole["text"], "logprobs": []},
        {"type": "response.content_part.done", **where, "part": whole},
        {
            "type": "response.output_item.done",
            "output_index": index,
            "item": {**item, "status": "completed", "content": [whole]},
        },
    ]


def reasoning(index: int, summary: str, sealed: str) -> list[Event]:
    item: Event = {"id": f"rs_{index}", "type": "reasoning", "summary": []}
    done = {**item, "summary": [{"type": "summary_text", "text": summary}], "encrypted_content": sealed}
    where = {"item_id": item["id"], "output_index": index, "summary_index": 0}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": item},
        {"type": "response.reasoning_summary_part.added", **where, "part": {"type": "summary_text", "text": ""}},
        {"type": "response.reasoning_summary_text.delta", **where, "delta": summary},
        {"type": "response.output_item.done", "output_index": index, "item": done},
    ]


def call(index: int, *arguments: str, id: str, tool: str) -> list[Event]:
    item = {"id": f"fc_{index}", "type": "function_call", "call_id": id, "name": tool, "arguments": "", "status": "in_progress"}
    where = {"item_id": item["id"], "output_index": index}
    done = {**item, "arguments": "".join(arguments), "status": "completed"}
    return [
        {"type": "response.output_item.added", "output_index": index, "item": item},
        *({"type": "response.function_call_arguments.delta", **where, "delta": piece} for piece in arguments),
        {"type": "response.function_call_arguments.done", **where, "name": tool, "arguments": done["arguments"]},
        {"type": "response.output_item.done", "output_index": index, "item": done},
    ]


def end(status: str = "completed", **fields: Any) -> list[Event]:
    return [{"type": f"response.{status}", "response": {**_response(status), **fields}}]


def _response(status: str) -> Event:
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1,
        "model": "gpt-5.2",
        "status": status,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": COUNTS if status == "completed" else None,
    }


# ---- answers ---------------------------------------------------------------------------------------------------------------


def says(*events: Event) -> Answer:
    return streams(*_numbered(events))


def breaks(*events: Event) -> Answer:
    """A stream whose connection is lost after these events."""
    return breaks_after(*_numbered(events))


def garbles(*events: Event) -> Answer:
    """A stream with an event that is not JSON."""
    return streams(*_numbered(events), b'event: response.output_text.delta\ndata: {"type": "respo\n\n')


def status(code: int, message: str = "no", kind: str = "", error_code: str = "", **headers: str) -> Answer:
    body = {"error": {"message": message, "type": kind, "code": error_code or None, "param": None}}
    return status_with(code, json.dumps(body), **headers)


def _numbered(events: tuple[Event, ...]) -> list[bytes]:
    return [
        f"event: {event['type']}\ndata: {json.dumps({**event, 'sequence_number': number})}\n\n".encode()
        for number, event in enumerate(events)
    ]
