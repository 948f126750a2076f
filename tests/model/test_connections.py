"""Time and connections, with every provider's client: one connection an attempt, and nothing held when nobody listens."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

import pytest
from msgspec import Struct

from perdure.model.stream import Delta, Retryable

from . import chat_server as chat
from . import gemini_server as gemini
from . import messages_server as claude
from . import responses_server as responses
from .asking import HI
from .conversation import listen
from .wire import Answer, WireServer


class Family(Struct, frozen=True):
    """How its servers begin to say "a", and how they say it all."""

    name: str
    serve: Callable[..., AbstractAsyncContextManager[WireServer]]
    begun: list[dict[str, object]]
    whole: Answer


FAMILIES = (
    Family("openai", chat.chat_server, chat.text("a"), chat.says(*chat.text("a"), *chat.end())),
    Family(
        "openai-responses",
        responses.responses_server,
        [*responses.begin(), *responses.text(0, "a")[:3]],
        responses.says(*responses.begin(), *responses.text(0, "a"), *responses.end()),
    ),
    Family(
        "anthropic",
        claude.messages_server,
        [*claude.begin(), *claude.text(0, "a")[:2]],
        claude.says(*claude.begin(), *claude.text(0, "a"), *claude.end()),
    ),
    Family("google", gemini.gemini_server, gemini.text("a"), gemini.says(*gemini.text("a"), gemini.end())),
)


def with_each(test: Callable[[Family, WireServer], Awaitable[None]]) -> Callable[[Family], None]:
    @pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
    def run(family: Family) -> None:
        async def main() -> None:
            async with family.serve() as server:
                await asyncio.wait_for(test(family, server), 20)

        asyncio.run(main())

    return run


@with_each
async def test_an_attempt_has_a_connection_of_its_own(family: Family, server: WireServer) -> None:
    model = server.model()
    for _ in range(3):
        server.then(family.whole)
        await listen(model, HI)
    assert server.connections == 3


@with_each
async def test_an_answer_that_outlasts_the_deadline_may_be_tried_again_and_hangs_up(family: Family, server: WireServer) -> None:
    server.then(server.hang(*family.begun))
    with pytest.raises(Retryable, match=r"did not finish within 0\.5 s"):
        await listen(server.model(), HI, deadline_s=0.5)
    await server.closed.wait()


@with_each
async def test_leaving_early_closes_the_connection(family: Family, server: WireServer) -> None:
    server.then(server.hang(*family.begun))
    model = server.model()
    async with model.stream(model.prepare(HI), 10.0) as events:
        assert await anext(events) == Delta("a")
    await server.closed.wait()


@with_each
async def test_cancelling_closes_the_connection(family: Family, server: WireServer) -> None:
    server.then(server.hang(*family.begun))
    model, heard = server.model(), asyncio.Event()

    async def hear() -> None:
        async with model.stream(model.prepare(HI), 60.0) as events:
            async for _ in events:
                heard.set()

    task = asyncio.create_task(hear())
    await heard.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.closed.wait()
