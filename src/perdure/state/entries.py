"""What a transcript is made of, and how much of a model's context each piece takes."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from perdure.record import records as r
from perdure.record.parts import Blob, Part, ToolCall

BYTES_PER_TOKEN = 4
IMAGE_BYTES = 6000
"""What an image counts for: about 1,500 tokens, however large its file is."""

CLEARED_FROM_BYTES = 600
"""Shorter results are not worth clearing."""


class Said(Struct, frozen=True, tag="said"):
    """A person's input; `note` marks what the runtime says in a person's place."""

    parts: tuple[Part, ...]
    note: bool = False


class Answered(Struct, frozen=True, tag="answered"):
    parts: tuple[Part, ...]
    model: str = ""
    extra: Any = None
    interrupted: bool = False


class Returned(Struct, frozen=True, tag="returned"):
    """One call's result as the model sees it."""

    call: str
    provider_id: str
    tool: str
    text: str
    outcome: r.Outcome
    blob: Blob | None = None


Entry = Said | Answered | Returned


def size_bytes(entry: Entry) -> int:
    """What it takes in a request, estimated."""
    if isinstance(entry, Returned):
        return entry.blob.size_bytes if entry.blob else len(entry.text)
    return sum(_part_bytes(part) for part in entry.parts)


def _part_bytes(part: Part) -> int:
    if isinstance(part, ToolCall):
        return len(part.tool) + len(part.raw or "") + len(msgspec.json.encode(part.args))
    if isinstance(part, Blob):
        return IMAGE_BYTES if part.media_type.startswith("image/") else part.size_bytes
    return len(part.text)


def uncertain(entry: Entry) -> bool:
    """Whether what it did outside may be unknown: its words are never cleared, and outlive a compaction."""
    return isinstance(entry, Returned) and entry.outcome in ("unknown", "interrupted")


def clearable(entry: Entry) -> bool:
    return isinstance(entry, Returned) and not uncertain(entry) and size_bytes(entry) > CLEARED_FROM_BYTES


def cleared_text(entry: Returned) -> str:
    """What stands in a request for a result that was cleared."""
    return (
        f"[perdure] This result of {entry.tool} ({entry.outcome}, {size_bytes(entry)} bytes) was cleared to save room. "
        f'All of it can be read: read with path "output:{entry.call}".'
    )


def freed_bytes(entries: list[Entry]) -> int:
    """What clearing these frees."""
    return sum(size_bytes(e) - len(cleared_text(e)) for e in entries if isinstance(e, Returned) and clearable(e))
