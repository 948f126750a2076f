"""The protocol of a model, and what goes in and out of it.

`prepare` is pure: the same context gives the same request, with a stable prefix. `stream` sends it once and yields `Delta`s and, last, one `Final`.
Whatever goes wrong is one of the four errors below; the driver counts attempts and decides.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Literal, Protocol

from msgspec import Struct

from perdure.record.errors import PerdureError
from perdure.record.parts import Blob, Digest, Part, Usage


class UserMessage(Struct, frozen=True, tag="user"):
    parts: tuple[Part, ...]


class AssistantMessage(Struct, frozen=True, tag="assistant", omit_defaults=True):
    """`extra` is the provider's own JSON, `model` the one that answered; `interrupted` marks a partial text without calls."""

    parts: tuple[Part, ...]
    model: str = ""
    extra: Any = None
    interrupted: bool = False


class ToolMessage(Struct, frozen=True, tag="tool", omit_defaults=True):
    """The result of one call. `blob` holds the text where it is large."""

    provider_id: str
    tool: str
    text: str
    ok: bool = True
    blob: Blob | None = None

    def whole_text(self, blobs: Mapping[Digest, bytes]) -> str:
        return self.text if self.blob is None else blobs[self.blob.digest].decode(errors="replace")


Message = UserMessage | AssistantMessage | ToolMessage


class ToolSpec(Struct, frozen=True):
    """What a model is told of a tool. `schema` is a JSON schema of type object."""

    name: str
    description: str
    schema: dict[str, Any]


class Context(Struct, frozen=True):
    """Everything a request is made from. `responses` counts the thread's committed model responses."""

    system: str
    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    options: dict[str, Any] = {}
    responses: int = 0
    blobs: Mapping[Digest, bytes] = {}


class Request(Struct, frozen=True):
    """A prepared request; `payload` is the adapter's own."""

    context: Context
    payload: Any = None


class Delta(Struct, frozen=True):
    """A piece of the answer as it arrives. In `call`, a tool's name and a space open each call; its arguments as JSON follow."""

    text: str
    channel: Literal["text", "thinking", "call"] = "text"


class Final(Struct, frozen=True):
    parts: tuple[Part, ...]
    usage: Usage = Usage()
    stop: Literal["stop", "tool_calls", "length", "refused", "other"] = "stop"
    extra: Any = None


class ModelError(PerdureError):
    """The root of what a request can end with. `status` is the HTTP status where there is one."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class Retryable(ModelError):
    """Try the same request again, after `after_s` where the provider named a time."""

    def __init__(self, message: str, *, status: int | None = None, after_s: float | None = None) -> None:
        super().__init__(message, status=status)
        self.after_s = after_s


class Overflow(ModelError):
    """The context is too long for the model."""


class Refused(ModelError):
    """The provider's safety system refused the request."""


class Permanent(ModelError):
    """The same request will fail again: bad key, unknown model, malformed request, failed expectation of a script."""

    exit_code = 78


def may_pass(status: int) -> bool:
    """Whether the same request may succeed later: timeouts, conflicts, rate limits and the server's own failures."""
    return status in (408, 409, 425, 429) or status >= 500


class Model(Protocol):
    name: str

    def prepare(self, context: Context) -> Request: ...

    def stream(self, request: Request, deadline_s: float) -> AbstractAsyncContextManager[AsyncIterator[Delta | Final]]:
        """One attempt. Leaving the context closes the connection."""
        ...
