"""A conversation that one provider began and another one goes on with: whole, and without the other's seals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
from msgspec import Struct

from perdure.model.stream import ToolMessage

from . import chat_server as chat
from . import gemini_server as gemini
from . import messages_server as claude
from . import responses_server as responses
from .asking import BASH, reply, talk
from .conversation import context, user
from .wire import Answer, WireServer

SEAL = "U0VBTGVk"
ARGUMENTS = '{"command": "echo hi"}'


class Family(Struct, frozen=True):
    """A turn that thinks, speaks and calls, and one that only speaks."""

    name: str
    serve: Callable[..., AbstractAsyncContextManager[WireServer]]
    calls: Answer
    says: Answer


FAMILIES = (
    Family(
        "openai",
        chat.chat_server,
        chat.says(
            chat.chunk({"reasoning_content": "secret hm"}),
            *chat.text("Looking."),
            *chat.call(0, ARGUMENTS, id="call_1", tool="bash"),
            *chat.end("tool_calls"),
        ),
        chat.says(*chat.text("Done."), *chat.end()),
    ),
    Family(
        "openai-responses",
        responses.responses_server,
        responses.says(
            *responses.begin(),
            *responses.reasoning(0, "secret hm", SEAL),
            *responses.text(1, "Looking."),
            *responses.call(2, ARGUMENTS, id="call_1", tool="bash"),
            *responses.end(),
        ),
        responses.says(*responses.begin(), *responses.text(0, "Done."), *responses.end()),
    ),
    Family(
        "anthropic",
        claude.messages_server,
        claude.says(
            *claude.begin(),
            *claude.thinking(0, "secret hm", SEAL),
            *claude.text(1, "Looking."),
            *claude.call(2, ARGUMENTS, id="toolu_1", tool="bash"),
            *claude.end("tool_use"),
        ),
        claude.says(*claude.begin(), *claude.text(0, "Done."), *claude.end()),
    ),
    Family(
        "google",
        gemini.gemini_server,
        gemini.says(
            gemini.thought("secret hm"), *gemini.text("Looking."), gemini.call("bash", {"command": "echo hi"}, SEAL), gemini.end()
        ),
        gemini.says(*gemini.text("Done."), gemini.end()),
    ),
)
MOVES = [(one, other) for one in FAMILIES for other in FAMILIES if one is not other]


@pytest.mark.parametrize(("one", "other"), MOVES, ids=lambda family: family.name)
def test_a_conversation_moves_in_the_middle_of_a_round(one: Family, other: Family) -> None:
    began = context(user("go"), system="Be brief.", tools=(BASH,), options={"thinking": "low"})
    said, _ = talk(one.serve(one.calls), began, 1)
    result = said[-1]
    assert isinstance(result, ToolMessage)
    asked = context(*said, user("and?"), system="Be brief.", tools=(BASH,), options={"thinking": "low"})
    deltas, _, server = reply(other.serve(other.says), asked)
    body = server.bodies[0].decode()
    assert "".join(delta.text for delta in deltas) == "Done."
    assert [body.count(words) for words in ("Looking.", "echo hi", "and?", "secret hm", SEAL)] == [1, 1, 1, 0, 0]
    if other.name != "google":  # it knows calls by their order
        assert body.count(f'"{result.provider_id}"') == 2
