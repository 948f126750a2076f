"""pydantic-ai with nothing that lasts: what it costs and does by itself. `agent` serves its durable variant too."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import UsageLimits

from bench.rivals.program import deploy as deploying
from bench.rivals.program import main, note

NO_LIMIT = UsageLimits(request_limit=None)


def agent(
    calls: int,
    act: Callable[[], str],
    seen: Callable[[Any], None],
    *,
    capabilities: Sequence[Any] = (),
    step: Callable[[Any], Any] = lambda function: function,
) -> Agent:
    def model(messages: Any, info: Any) -> ModelResponse:
        seen(messages)
        n = sum(isinstance(part, ToolReturnPart) for message in messages for part in message.parts)
        return ModelResponse(parts=[TextPart("done") if n == calls else ToolCallPart("deploy", {}, tool_call_id=f"c{n}")])

    made: Agent = Agent(FunctionModel(model), name="bench", capabilities=list(capabilities))

    @made.tool_plain
    @step
    def deploy() -> str:
        return act()

    return made


def crashing(folder: Path, **durable: Any) -> Agent:
    return agent(1, lambda: deploying(folder), lambda messages: note(folder, messages), **durable)


def counting(count: int, marks: list[float], **durable: Any) -> Agent:
    def act() -> str:
        marks.append(time.perf_counter())
        return "ok"

    return agent(count, act, lambda messages: None, **durable)


def _crash(folder: Path) -> str:
    return str(crashing(folder).run_sync("go").output)


def _turns(folder: Path, count: int) -> list[float]:
    marks: list[float] = []
    counting(count, marks).run_sync("go", usage_limits=NO_LIMIT)
    return marks


if __name__ == "__main__":
    main(_crash, _turns)
