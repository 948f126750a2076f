"""The Gemini API's streamGenerateContent, spoken by a server of the tests."""

from __future__ import annotations

import json
from contextlib import AbstractAsyncContextManager
from typing import Any

from perdure.model.providers import ProviderModel
from perdure.model.vendors import google

from .wire import Answer, WireServer, breaks_after, frame, listening, status_with, streams

Event = dict[str, Any]
COUNTS = {"promptTokenCount": 12, "candidatesTokenCount": 3, "thoughtsTokenCount": 2, "cachedContentTokenCount": 8}


class GeminiServer(WireServer):
    def model(self) -> ProviderModel:
        return google(
            "google:gemini-3-pro-preview", "gemini-3-pro-preview", key="sk-test", key_name="GOOGLE_API_KEY", base_url=self.url
        )


def gemini_server(*answers: Answer) -> AbstractAsyncContextManager[GeminiServer]:
    return listening(GeminiServer(*answers))


def chunk(*parts: Event, finish: str | None = None) -> Event:
    candidate: Event = {"content": {"parts": list(parts), "role": "model"}, "index": 0}
    usage = {"usageMetadata": {**COUNTS, "totalTokenCount": 17}} if finish else {}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "gemini-3-pro-preview", "responseId": "r1", **usage}


def text(*pieces: str) -> list[Event]:
    return [chunk({"text": piece}) for piece in pieces]


def thought(words: str) -> Event:
    return chunk({"text": words, "thought": True})


def call(tool: str, args: Event, signature: str | None = None) -> Event:
    signed = {"thoughtSignature": signature} if signature else {}
    return chunk({"functionCall": {"name": tool, "args": args}, **signed})


def end(reason: str = "STOP") -> Event:
    return chunk({"text": ""}, finish=reason)


def says(*chunks: Event) -> Answer:
    return streams(*map(frame, chunks))


def breaks(*chunks: Event) -> Answer:
    """A stream whose connection is lost after these chunks."""
    return breaks_after(*map(frame, chunks))


def garbles(*chunks: Event) -> Answer:
    """A stream with a chunk that is not JSON."""
    return streams(*map(frame, chunks), b'data: {"candida\n\n')


def status(code: int, kind: str, message: str = "no", details: list[Event] | None = None, **headers: str) -> Answer:
    """An error in Google's form."""
    body = {"error": {"code": code, "message": message, "status": kind, "details": details or []}}
    return status_with(code, json.dumps(body), **headers)
