"""A model that answers from a file: the stand-in for every test, demonstration and crash campaign.

The turn is chosen by the number of responses that the thread has committed, and an injected error by the attempt that the log counted;
the model itself remembers nothing. So a session that is killed and resumed meets the same script at the same place, and a script
can check what was told to the model after a crash (`expect`).

    {"turns": [{"text": "Looking.", "calls": [{"tool": "bash", "args": {"command": "ls"}}]},
               {"expect": "README", "text": "Done.", "chunks": 4, "delay_s": 0.2, "error": {"status": 429, "times": 2}}],
     "tasks": {"count the tests": [{"text": "There are 12."}]}}

With a `window`, a request of more tokens is too long. `summaries` answer when the conversation is to be summed up, the last of them again and again.

A conversation whose first message matches one of the regular expressions in `tasks` has turns of its own: so a subagent is scripted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from perdure.model.deadline import within
from perdure.model.stream import (
    AssistantMessage,
    Context,
    Delta,
    Final,
    Message,
    ModelError,
    Overflow,
    Permanent,
    Refused,
    Request,
    Retryable,
    ToolMessage,
    UserMessage,
    may_pass,
)
from perdure.model.validity import problem
from perdure.record.errors import UsageError
from perdure.record.parts import Blob, Part, Text, Thinking, ToolCall, Usage, text_of

SHOWN_CHARS = 300
"""How much of the input a failed expectation quotes."""

_Seconds = Annotated[float, Meta(ge=0)]


class ScriptedCall(Struct, frozen=True, forbid_unknown_fields=True):
    """`raw` scripts arguments that are not a JSON object."""

    tool: str
    args: dict[str, Any] = {}
    raw: str | None = None


class ScriptedError(Struct, frozen=True, forbid_unknown_fields=True):
    """The first `times` attempts of the turn fail with this HTTP status."""

    status: Annotated[int, Meta(ge=400, le=599)]
    times: Annotated[int, Meta(ge=1)] = 1
    after_s: _Seconds | None = None


class Turn(Struct, frozen=True, forbid_unknown_fields=True):
    """One response. `text` comes in `chunks` pieces over `delay_s` seconds; `expect` is searched in the newest input or tool results."""

    text: str = ""
    thinking: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    delay_s: _Seconds = 0.0
    chunks: Annotated[int, Meta(ge=1)] = 1
    expect: str | None = None
    error: ScriptedError | None = None
    overflow: bool = False
    refused: bool = False


class _File(Struct, frozen=True, forbid_unknown_fields=True):
    turns: tuple[msgspec.Raw, ...]
    tasks: dict[str, tuple[msgspec.Raw, ...]] = {}
    summaries: tuple[msgspec.Raw, ...] = ()
    window: Annotated[int, Meta(ge=1)] | None = None


class _Script(Struct, frozen=True):
    turns: tuple[Turn, ...]
    tasks: dict[str, tuple[Turn, ...]]
    summaries: tuple[Turn, ...] = ()
    window: int | None = None

    def of(self, context: Context) -> tuple[Turn, ...]:
        """The turns of this conversation."""
        first = _said(context.messages[0], context) if self.tasks and context.messages else ""
        return next((turns for task, turns in self.tasks.items() if re.search(task, first, re.DOTALL)), self.turns)


class Scripted:
    """The model `scripted:FILE`. Raises UsageError, naming file, turn and field, for a file that is not a script."""

    def __init__(self, path: str | Path) -> None:
        self.name = f"scripted:{path}"
        self._path = str(path)
        self._script = _load(Path(path))

    def prepare(self, context: Context) -> Request:
        return Request(context)

    def stream(self, request: Request, deadline_s: float) -> AbstractAsyncContextManager[AsyncIterator[Delta | Final]]:
        return within(deadline_s, self._play(request.context))

    async def _play(self, context: Context) -> AsyncGenerator[Delta | Final]:
        number, turn = self._turn(context)
        if failure := self._failure(number, turn, context):
            raise failure
        text = turn.text.removeprefix(_partial(context.messages))
        parts = _parts(number, turn, text, continued=text != turn.text)
        for part in parts:
            if isinstance(part, Thinking):
                yield Delta(part.text, "thinking")
        for piece in _pieces(text, turn.chunks):
            await asyncio.sleep(turn.delay_s / turn.chunks)
            if piece:
                yield Delta(piece)
        for part in parts:
            if isinstance(part, ToolCall):
                yield Delta(f"{part.tool} {_arguments(part)}", "call")
        yield Final(parts, _usage(context, parts), "tool_calls" if turn.calls else "stop")

    def _turn(self, context: Context) -> tuple[int, Turn]:
        """The script's turn for this request, and its number from 1."""
        if (number := context.options.get("compaction")) is not None:
            scripted = self._script.summaries or (Turn(f"Summary {number + 1} of what was done."),)
            return number + 1, scripted[min(number, len(scripted) - 1)]
        turns = self._script.of(context)
        if context.responses >= len(turns):
            raise Permanent(
                f"the script {self._path} ends after turn {len(turns)}, and the session asks for turn {context.responses + 1}"
            )
        return context.responses + 1, turns[context.responses]

    def _failure(self, number: int, turn: Turn, context: Context) -> ModelError | None:
        where = f"turn {number} of the script {self._path}"
        if wrong := problem(context):
            return Permanent(f"{where} was asked for in a form that no provider takes: {wrong}")
        if turn.expect is not None and not re.search(turn.expect, newest := _newest(context), re.DOTALL):
            return Permanent(f"{where} expected /{turn.expect}/ and was given: {newest[:SHOWN_CHARS]!r}")
        if turn.error is not None and context.options.get("attempt", 1) <= turn.error.times:
            message = f"{where} answers with status {turn.error.status}"
            if may_pass(turn.error.status):
                return Retryable(message, status=turn.error.status, after_s=turn.error.after_s)
            return Permanent(message, status=turn.error.status)
        window = self._script.window
        if window is not None and (asked := _usage(context, ()).input) > window:
            return Overflow(f"{where} is asked with {asked} tokens, and {window} fit", status=400)
        if turn.overflow:
            return Overflow(f"{where} finds the context too long", status=400)
        return Refused(f"{where} refuses the request") if turn.refused else None


def _load(path: Path) -> _Script:
    try:
        file = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise UsageError(f"the script {path} can't be read: {error.strerror}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f'the script {path} is not of the form {{"turns": […]}}: {error}') from error
    for task in file.tasks:
        _check_expression(task, f"the script {path}, task {task!r}")
    return _Script(
        _decode(file.turns, f"the script {path}"),
        {task: _decode(raws, f"the script {path}, task {task!r}") for task, raws in file.tasks.items()},
        _decode(file.summaries, f"the script {path}, summaries"),
        file.window,
    )


def _decode(raws: tuple[msgspec.Raw, ...], where: str) -> tuple[Turn, ...]:
    turns = []
    for number, raw in enumerate(raws, 1):
        try:
            turn = msgspec.json.decode(raw, type=Turn)
        except msgspec.MsgspecError as error:
            raise UsageError(f"{where}, turn {number}: {_at_field(str(error))}") from error
        _check_expression(turn.expect or "", f"{where}, turn {number}, field expect")
        turns.append(turn)
    return tuple(turns)


def _check_expression(pattern: str, where: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{where}: not a regular expression: {error}") from error


def _at_field(message: str) -> str:
    """msgspec's “… - at `$.chunks`”, field first."""
    what, _, where = message.partition(" - at `$.")
    return f"field {where.rstrip('`')}: {what}" if where else message


def _tail(messages: Sequence[Message]) -> Sequence[Message]:
    """What came after the last whole answer: the newest input or tool results, and interrupted partials of the next answer."""
    for index in range(len(messages) - 1, -1, -1):
        message = messages[index]
        if isinstance(message, AssistantMessage) and not message.interrupted:
            return messages[index + 1 :]
    return messages


def _newest(context: Context) -> str:
    return "\n".join(_said(m, context) for m in _tail(context.messages) if not isinstance(m, AssistantMessage))


def _said(message: Message, context: Context) -> str:
    return message.whole_text(context.blobs) if isinstance(message, ToolMessage) else text_of(message.parts)


def _partial(messages: Sequence[Message]) -> str:
    """The text that an interrupted answer already gave, where the newest message asks to go on with it."""
    if len(messages) < 2 or not isinstance(messages[-1], UserMessage) or not isinstance(messages[-2], AssistantMessage):
        return ""
    return "".join(text_of(m.parts) for m in _tail(messages) if isinstance(m, AssistantMessage))


def _pieces(text: str, count: int) -> list[str]:
    return [text[len(text) * n // count : len(text) * (n + 1) // count] for n in range(count)]


def _parts(number: int, turn: Turn, text: str, *, continued: bool) -> tuple[Part, ...]:
    parts: list[Part] = []
    if turn.thinking and not continued:
        parts.append(Thinking(turn.thinking))
    if text:
        parts.append(Text(text))
    parts.extend(ToolCall(f"call_{number}_{n}", c.tool, c.args, c.raw) for n, c in enumerate(turn.calls, 1))
    return tuple(parts)


def _arguments(call: ToolCall) -> str:
    return call.raw if call.raw is not None else msgspec.json.encode(call.args).decode()


def _usage(context: Context, parts: tuple[Part, ...]) -> Usage:
    """Four characters a token, as the rule of thumb has it."""
    asked = len(context.system) + sum(len(_said(message, context)) for message in context.messages)
    answered = sum(len(_arguments(p)) if isinstance(p, ToolCall) else len(p.text) for p in parts if not isinstance(p, Blob))
    return Usage(input=asked // 4, output=answered // 4)
