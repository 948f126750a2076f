"""A whole session with each provider, over a restart: what is sent begins as what was sent before, and seals come back unbroken.

Everything passes the log on its way: stored as records, folded by another driver, and sent again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct

from perdure.record import records as r
from tests.model import gemini_server as gemini
from tests.model import messages_server as claude
from tests.model import responses_server as responses
from tests.model.asking import begins_with, without
from tests.model.wire import Answer, WireServer
from tests.stage import play, stage

SEAL = "U0VBTC8rPT0="
SEALED_TOO = "QUdBSU4="
BASH = {"command": "echo hi"}


class Family(Struct, frozen=True):
    """A provider's way to think and call, to say something, and where its requests hold what was said."""

    model: str
    serve: Callable[..., AbstractAsyncContextManager[WireServer]]
    calls: Callable[[str, str], Answer]
    says: Callable[[str, str], Answer]
    said: str
    constant: tuple[str, ...]


def _claude_calls(seal: str, id: str) -> Answer:
    whole = (
        *claude.thinking(0, "hm", seal),
        *claude.redacted(1, seal),
        *claude.call(2, '{"command": "echo hi"}', id=id, tool="bash"),
    )
    return claude.says(*claude.begin(), *whole, *claude.end("tool_use"))


def _claude_says(seal: str, words: str) -> Answer:
    return claude.says(*claude.begin(), *claude.thinking(0, "so", seal), *claude.text(1, words), *claude.end())


def _responses_calls(seal: str, id: str) -> Answer:
    whole = (*responses.reasoning(0, "hm", seal), *responses.call(1, '{"command": "echo hi"}', id=id, tool="bash"))
    return responses.says(*responses.begin(), *whole, *responses.end())


def _responses_says(seal: str, words: str) -> Answer:
    return responses.says(*responses.begin(), *responses.reasoning(0, "so", seal), *responses.text(1, words), *responses.end())


def _gemini_calls(seal: str, id: str) -> Answer:
    return gemini.says(gemini.thought("hm"), gemini.call("bash", BASH, seal), gemini.end())


def _gemini_says(seal: str, words: str) -> Answer:
    return gemini.says(gemini.thought("so"), gemini.chunk({"text": words, "thoughtSignature": seal}), gemini.end())


FAMILIES = [
    Family(
        "anthropic:claude-opus-4-8",
        claude.messages_server,
        _claude_calls,
        _claude_says,
        "messages",
        ("tools", "system", "thinking"),
    ),
    Family(
        "openai-responses:gpt-5.2",
        responses.responses_server,
        _responses_calls,
        _responses_says,
        "input",
        ("tools", "instructions", "reasoning", "include"),
    ),
    Family(
        "google:gemini-3-pro-preview",
        gemini.gemini_server,
        _gemini_calls,
        _gemini_says,
        "contents",
        ("tools", "systemInstruction", "generationConfig"),
    ),
]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.model.partition(":")[0])
def test_requests_only_grow_and_seals_come_back(tmp_path: Path, family: Family) -> None:
    answers = (
        family.calls(SEAL, "c1"),
        family.says(SEALED_TOO, "first"),
        family.calls(SEALED_TOO, "c2"),
        family.says(SEAL, "second"),
        family.says(SEAL, "third"),
    )

    async def story() -> None:
        async with family.serve(*answers) as server:
            options: dict[str, Any] = {"model_options": {"base_url": server.url, "thinking": "low"}}
            async with stage(tmp_path, "unused", model=family.model, **options) as s:
                assert (await s.run("one")).text == "first"
            async with stage(tmp_path) as s:
                assert (await s.run("two")).text == "second"
            async with stage(tmp_path) as s:
                assert (await s.run("three")).text == "third"
                usage = (await s.session.state()).usage.models[family.model]
                assert (usage.input, usage.output) == (5 * 12, 5 * 5) and usage.cached in (5 * 6, 5 * 8)
                assert [body.options for body in await s.bodies(r.TurnStarted)] == [{"thinking": "low"}] * 5
        sent = [without(server.sent(n), "cache_control") for n in range(5)]
        for earlier, later in itertools.pairwise(sent):
            assert begins_with(later[family.said], earlier[family.said])
            assert {name: later.get(name) for name in family.constant} == {name: earlier.get(name) for name in family.constant}
        body = server.bodies[-1].decode()
        assert body.count(SEAL) >= 1 and body.count(SEALED_TOO) >= 1
        assert body.count(SEAL) + body.count(SEALED_TOO) == (6 if "anthropic" in family.model else 4)

    play(story())
