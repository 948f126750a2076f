"""Messages and answers between our neutral parts and pydantic-ai's objects.

Outward: the system text first, then the conversation in order, so that the request of the next turn begins with the bytes of this one. An
answer of the same model goes back as the provider gave it (`extra`); any other is rebuilt from its parts, and thinking only where its signature
is this model's own. Inward: parts that we have no word for stay in the `extra` only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from pydantic import ValidationError
from pydantic_ai import messages as pai
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.tools import ToolDefinition

from perdure.model.stream import AssistantMessage, Context, Delta, Final, ToolMessage, ToolSpec, UserMessage
from perdure.record.parts import Blob, Part, Text, Thinking, ToolCall, Usage

_STOPS = {"stop": "stop", "tool_call": "tool_calls", "length": "length", "content_filter": "refused"}
_SIGNS_ALONE = "anthropic:"
_TEXTUAL = ("application/json", "application/xml", "application/yaml", "application/toml")


# ---- outward ---------------------------------------------------------------------------------------------------------------


def messages_of(context: Context, model: str) -> list[pai.ModelMessage]:
    """The conversation as `model` is to be asked. What lies between two answers is one request message."""
    messages: list[pai.ModelMessage] = []
    asked: list[pai.ModelRequestPart] = [pai.SystemPromptPart(context.system)] if context.system else []
    for message in context.messages:
        if not isinstance(message, AssistantMessage):
            asked.append(_asked(message, context))
        elif (answered := _answered(message, model)).parts:
            messages += [pai.ModelRequest(asked)] if asked else []
            messages.append(answered)
            asked = []
    return [*messages, pai.ModelRequest(asked)] if asked else messages


def mark_former_end(messages: list[pai.ModelMessage]) -> None:
    """Mark where the request before the newest answer ended, and so what the provider's cache holds of it, however much came since."""
    answers = [index for index, message in enumerate(messages) if isinstance(message, pai.ModelResponse)]
    if answers and answers[-1] and isinstance(former := messages[answers[-1] - 1], pai.ModelRequest):
        messages[answers[-1] - 1] = pai.ModelRequest([*former.parts, pai.UserPromptPart([pai.CachePoint()])])


def parameters_of(tools: Sequence[ToolSpec]) -> ModelRequestParameters:
    # Not strict: a strict tool's schema is rewritten on the way, and what is sent is what the tool says.
    return ModelRequestParameters(
        function_tools=[
            ToolDefinition(name=tool.name, description=tool.description, parameters_json_schema=tool.schema, strict=False)
            for tool in tools
        ]
    )


def _asked(message: UserMessage | ToolMessage, context: Context) -> pai.ModelRequestPart:
    if isinstance(message, ToolMessage):
        # Never as pydantic-ai's "failed" outcome: some providers would be sent a JSON object around the text, and the text is exact.
        return pai.ToolReturnPart(message.tool, message.whole_text(context.blobs), tool_call_id=message.provider_id)
    content = [_shown(part, context) for part in message.parts]
    return pai.UserPromptPart(content[0] if len(content) == 1 and isinstance(content[0], str) else content)


def _shown(part: Part, context: Context) -> pai.UserContent:
    """A part of a user's message. Of what is neither text nor an image a model is told that it exists."""
    if isinstance(part, Text):
        return part.text
    if not isinstance(part, Blob):
        raise TypeError(f"a user's message can't hold a {type(part).__name__}")
    name = part.name or "attachment"
    if part.media_type.startswith("image/"):
        return pai.BinaryContent(context.blobs[part.digest], media_type=part.media_type)
    if part.media_type.startswith("text/") or part.media_type in _TEXTUAL:
        return f"[{name}]\n{context.blobs[part.digest].decode(errors='replace')}"
    return f"[{name}: {part.media_type}, {part.size_bytes} bytes, not shown]"


def _answered(message: AssistantMessage, model: str) -> pai.ModelResponse:
    same = message.model == model and not message.interrupted
    if same and message.extra is not None and (given := _given(message.extra)):
        return given
    return pai.ModelResponse([p for part in message.parts for p in _rebuilt(part, model if same else None)])


def _given(extra: Any) -> pai.ModelResponse | None:
    """The answer as the provider gave it; None where this version of pydantic-ai can't read it."""
    try:
        (message,) = pai.ModelMessagesTypeAdapter.validate_json(msgspec.json.encode([extra]))
    except ValidationError:
        return None
    return message if isinstance(message, pai.ModelResponse) else None


def _rebuilt(part: Part, signer: str | None) -> Iterator[pai.ModelResponsePart]:
    """The part in pydantic-ai's form. `signer` is the model whose signatures are still good, if any."""
    if isinstance(part, Text):
        yield pai.TextPart(part.text)
    elif isinstance(part, ToolCall):
        yield pai.ToolCallPart(part.tool, part.args if part.raw is None else part.raw, tool_call_id=part.id)
    elif isinstance(part, Thinking) and part.signature and signer and signer.startswith(_SIGNS_ALONE):
        # A signature of another provider is good only beside ids and details that the parts do not hold.
        id = "redacted_thinking" if part.redacted else None
        yield pai.ThinkingPart(part.text, id=id, signature=part.signature, provider_name=signer.partition(":")[0])


# ---- inward ----------------------------------------------------------------------------------------------------------------


def delta_of(event: pai.ModelResponseStreamEvent) -> Delta | None:
    """What the event adds to the answer, if it is something to show."""
    match event:
        case pai.PartStartEvent(part=pai.TextPart(content=text)) if text:
            return Delta(text)
        case pai.PartStartEvent(part=pai.ThinkingPart(content=text)) if text:
            return Delta(text, "thinking")
        case pai.PartStartEvent(part=pai.ToolCallPart() as call):
            return Delta(f"{call.tool_name} {_piece(call.args)}", "call")
        case pai.PartDeltaEvent(delta=pai.TextPartDelta(content_delta=text)) if text:
            return Delta(text)
        case pai.PartDeltaEvent(delta=pai.ThinkingPartDelta(content_delta=text)) if text:
            return Delta(text, "thinking")
        case pai.PartDeltaEvent(delta=pai.ToolCallPartDelta(args_delta=args)) if args:
            return Delta(_piece(args), "call")
    return None


def final_of(response: pai.ModelResponse, *, priced: bool) -> Final:
    """The answer in our words. `priced` says that the price list of the model's vendor holds for it."""
    parts = tuple(part for given in response.parts for part in _neutral(given))
    stop: Any = _STOPS.get(response.finish_reason or "", "other")
    if stop == "stop" and any(isinstance(part, ToolCall) for part in parts):
        stop = "tool_calls"
    (extra,) = pai.ModelMessagesTypeAdapter.dump_python([response], mode="json", exclude_none=True, exclude={0: {"usage"}})
    return Final(parts, _usage(response, priced), stop, extra)


def _usage(response: pai.ModelResponse, priced: bool) -> Usage:
    """What it took. pydantic-ai counts cached tokens as input for every provider."""
    used = response.usage
    cost_usd = _cost_usd(response) if priced else None
    unpriced = used.input_tokens + used.output_tokens if cost_usd is None else 0
    return Usage(
        used.input_tokens, used.output_tokens, used.cache_read_tokens, used.cache_write_tokens, cost_usd or 0.0, unpriced
    )


def _cost_usd(response: pai.ModelResponse) -> float | None:
    """By the price list that comes with pydantic-ai (`genai-prices`); None for a model that it does not know. Asks nobody."""
    try:
        return float(response.cost().total_price)
    except (LookupError, ValueError, AssertionError):
        return None


def _neutral(part: pai.ModelResponsePart) -> Iterator[Part]:
    match part:
        case pai.TextPart(content=text) if text:
            yield Text(text)
        case pai.ThinkingPart(id=id, content=text, signature=signature) if text or signature:
            yield Thinking(text, signature, redacted=id == "redacted_thinking")
        case pai.ToolCallPart():
            yield _call(part)


def _call(part: pai.ToolCallPart) -> ToolCall:
    if isinstance(part.args, dict) or not part.args:
        return ToolCall(part.tool_call_id, part.tool_name, part.args or {})
    try:
        return ToolCall(part.tool_call_id, part.tool_name, msgspec.json.decode(part.args, type=dict[str, Any]))
    except (msgspec.MsgspecError, UnicodeError):
        return ToolCall(part.tool_call_id, part.tool_name, {}, raw=part.args)


def _piece(args: str | dict[str, Any] | None) -> str:
    return args if isinstance(args, str) else msgspec.json.encode(args).decode() if args else ""
