"""What a message is made of, in no provider's words.

A provider's own JSON is kept beside the parts (`ModelResponded.extra`), opaque, so that a signature or an unknown part goes
back to the same provider unchanged while every other reader needs only these few shapes.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

Digest = str
"""Lower-case hex SHA-256 of raw bytes: 64 characters."""


class Text(Struct, frozen=True, tag="text"):
    text: str


class Thinking(Struct, frozen=True, tag="thinking", omit_defaults=True):
    """`redacted`: the provider shows none of it, and `signature` is all of it, sealed."""

    text: str
    signature: str | None = None
    redacted: bool = False


class ToolCall(Struct, frozen=True, tag="tool_call", omit_defaults=True):
    """A request to run a tool. `id` is the provider's; `raw` holds arguments that were not a JSON object."""

    id: str
    tool: str
    args: dict[str, Any]
    raw: str | None = None


class Blob(Struct, frozen=True, tag="blob", omit_defaults=True):
    """Bytes that live in the chunk store, named by their digest."""

    digest: Digest
    size_bytes: int
    media_type: str = "application/octet-stream"
    name: str | None = None


Part = Text | Thinking | ToolCall | Blob


class Usage(Struct, frozen=True, omit_defaults=True):
    """Tokens. `input` includes those read from the provider's cache (`cached`) and those written to it (`written`).

    `cost_usd` is by the price list of the day of each request; `unpriced` counts the tokens for which there was none.
    """

    input: int = 0
    output: int = 0
    cached: int = 0
    written: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cached + other.cached,
            self.written + other.written,
            self.cost_usd + other.cost_usd,
            self.unpriced + other.unpriced,
        )

    @property
    def total(self) -> int:
        return self.input + self.output


def text_of(parts: tuple[Part, ...]) -> str:
    """The text parts, joined."""
    return "".join(p.text for p in parts if isinstance(p, Text))


def printable(text: str) -> str:
    """The text as any JSON can hold it: bytes of a name that are not UTF-8 become visible escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


PATH_CHARS = 1000


def shortened(path: str) -> str:
    """A path as a text of many may hold it: of one from a very deep tree, both ends."""
    return path if len(path) <= PATH_CHARS else f"{path[: PATH_CHARS // 2]}…{path[-PATH_CHARS // 2 :]}"
