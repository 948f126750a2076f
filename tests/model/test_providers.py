from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart, ThinkingPart
from pydantic_ai.usage import RequestUsage

from perdure.model.messages import final_of, messages_of
from perdure.model.stream import (
    AssistantMessage,
    Context,
    Delta,
    Final,
    ModelError,
    Overflow,
    Permanent,
    Refused,
    Retryable,
    ToolMessage,
    ToolSpec,
    UserMessage,
)
from perdure.record.parts import Blob, Text, Thinking, ToolCall, Usage

from .chat_server import ChatServer, breaks, call, chat_server, chunk, end, garbles, says, status, stops, text
from .conversation import answer, context, listen, partial, result, split, user
from .wire import Answer

BASH = ToolSpec(
    "bash", "Run a command.", {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
)
HI = context(user("hi"))


def serving(*answers: Answer) -> Callable[[Callable[[ChatServer], Awaitable[None]]], None]:
    """Run the decorated coroutine against a server with these answers."""

    def run(test: Callable[[ChatServer], Awaitable[None]]) -> None:
        async def main() -> None:
            async with chat_server(*answers) as server:
                await asyncio.wait_for(test(server), 20)

        asyncio.run(main())

    return run


def reply(asked: Context, *answers: Answer) -> tuple[list[Delta], Final, ChatServer]:
    """One attempt against a server with these answers."""

    async def main() -> tuple[list[Delta], Final, ChatServer]:
        async with chat_server(*answers) as server:
            return *split(await listen(server.model(), asked)), server

    return asyncio.run(main())


def failure(*answers: Answer, deadline_s: float = 10.0) -> ModelError:
    """What one attempt fails with, and that it was one attempt."""

    async def main() -> ModelError:
        async with chat_server(*answers) as server:
            with pytest.raises(ModelError) as error:
                await listen(server.model(), HI, deadline_s=deadline_s)
            assert len(server.bodies) == 1
            return error.value

    return asyncio.run(main())


# ---- what comes in ---------------------------------------------------------------------------------------------------------


def test_text_is_streamed_in_deltas() -> None:
    deltas, final, _ = reply(HI, says(*text("he", "llo"), *end()))
    assert deltas == [Delta("he"), Delta("llo")]
    assert (final.parts, final.stop) == ((Text("hello"),), "stop")


def test_a_delta_is_yielded_before_the_answer_is_over() -> None:
    async def main() -> None:
        async with chat_server() as server:
            server.then(server.hang(*text("first")))
            model = server.model()
            async with model.stream(model.prepare(HI), 10.0) as events:
                assert await anext(events) == Delta("first")

    asyncio.run(main())


def test_usage_counts_cached_tokens_as_input() -> None:
    assert reply(HI, says(*text("x"), *end()))[1].usage == Usage(input=12, output=5, cached=8, unpriced=17)


def test_parallel_calls_with_split_arguments_are_put_together() -> None:
    first = call(0, '{"comm', 'and": "ls"}', id="c1", tool="bash")
    second = call(1, '{"command": "pwd"}', id="c2", tool="bash")
    deltas, final, _ = reply(HI, says(*first, *second, *end("tool_calls")))
    assert final.parts == (ToolCall("c1", "bash", {"command": "ls"}), ToolCall("c2", "bash", {"command": "pwd"}))
    assert final.stop == "tool_calls"
    assert "".join(delta.text for delta in deltas) == 'bash {"command": "ls"}bash {"command": "pwd"}'
    assert {delta.channel for delta in deltas} == {"call"}


@pytest.mark.parametrize("arguments", ['{"command": ', "[1, 2]", '"ls"', "ls -l"])
def test_arguments_that_are_no_object_are_kept_raw(arguments: str) -> None:
    final = reply(HI, says(*call(0, arguments, id="c1", tool="bash"), *end("tool_calls")))[1]
    assert final.parts == (ToolCall("c1", "bash", {}, raw=arguments),)


def test_a_call_without_arguments_has_none() -> None:
    final = reply(HI, says(*call(0, id="c1", tool="list"), *end("tool_calls")))[1]
    assert final.parts == (ToolCall("c1", "list", {}),)


def test_thinking_has_its_own_channel() -> None:
    deltas, final, _ = reply(HI, says(chunk({"reasoning_content": "hm"}), *text("yes"), *end()))
    assert deltas == [Delta("hm", "thinking"), Delta("yes")]
    assert final.parts == (Thinking("hm"), Text("yes"))


def test_an_answer_cut_by_its_length_says_so() -> None:
    assert reply(HI, says(*text("and so"), *end("length")))[1].stop == "length"


def test_a_blank_answer_is_an_answer() -> None:
    final = reply(HI, says(*end()))[1]
    assert (final.parts, final.stop) == ((), "stop")


# ---- what goes out ---------------------------------------------------------------------------------------------------------


def test_the_request_holds_system_tools_and_options_and_the_key() -> None:
    asked = context(user("hi"), system="Be brief.", tools=(BASH,), options={"attempt": 2, "max_tokens": 100, "temperature": 0.5})
    _, _, server = reply(asked, says(*text("x"), *end()))
    sent = server.sent()
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    assert sent["tools"] == [
        {"type": "function", "function": {"name": "bash", "description": "Run a command.", "parameters": BASH.schema}}
    ]
    assert (sent["model"], sent["temperature"], sent["max_completion_tokens"]) == ("fake", 0.5, 100)
    assert "attempt" not in server.bodies[0].decode()
    assert "authorization: bearer sk-test" in server.heads[0].lower()


@pytest.mark.parametrize(("thinking", "effort"), [("off", "none"), ("low", "low"), ("high", "high")])
def test_a_server_of_ones_own_is_told_how_much_to_think(thinking: str, effort: str) -> None:
    asked = context(user("hi"), options={"thinking": thinking})
    assert reply(asked, says(*text("x"), *end()))[2].sent()["reasoning_effort"] == effort


def test_images_go_out_as_their_bytes_and_text_files_as_text() -> None:
    message = UserMessage(
        (Text("see"), Blob("d1", 4, "image/png"), Blob("d2", 3, "text/plain", "a.txt"), Blob("d3", 9, "video/mp4", "b.mp4"))
    )
    _, _, server = reply(context(message, blobs={"d1": b"\x89PNG", "d2": b"abc"}), says(*text("x"), *end()))
    assert [part.get("text") or part["image_url"]["url"] for part in server.sent()["messages"][0]["content"]] == [
        "see",
        "data:image/png;base64,iVBORw==",
        "[a.txt]\nabc",
        "[b.mp4: video/mp4, 9 bytes, not shown]",
    ]


def test_results_go_out_word_for_word() -> None:
    words = 'It was cut off.\nThe "files" are as before: ü\t¶'
    asked = AssistantMessage((ToolCall("c1", "bash", {"command": "ls"}), ToolCall("c2", "bash", {}, raw="{oops")))
    results = (ToolMessage("c1", "bash", words, ok=False), ToolMessage("c2", "bash", "", blob=Blob("d", 5)))
    _, _, server = reply(context(user("go"), asked, *results, blobs={"d": b"large"}), says(*text("x"), *end()))
    _, assistant, first, second = server.sent()["messages"]
    assert [json.loads(c["function"]["arguments"]) for c in assistant["tool_calls"]] == [
        {"command": "ls"},
        {"INVALID_JSON": "{oops"},
    ]
    assert first == {"role": "tool", "tool_call_id": "c1", "content": words}
    assert second == {"role": "tool", "tool_call_id": "c2", "content": "large"}


def test_an_interrupted_answer_goes_out_as_plain_text_before_the_note() -> None:
    extra = {"kind": "response", "parts": [{"part_kind": "text", "content": "more than is known"}]}
    cut = AssistantMessage((Thinking("hm"), Text("I was say")), model="openai:fake", extra=extra, interrupted=True)
    _, _, server = reply(context(user("go"), cut, user("Go on.")), says(*text("ing"), *end()))
    assert server.sent()["messages"][1:] == [{"role": "assistant", "content": "I was say"}, {"role": "user", "content": "Go on."}]


def test_each_request_begins_with_the_bytes_of_the_one_before() -> None:
    hm = chunk({"reasoning_content": "hm"})

    @serving(
        says(*call(0, "{oops", id="c1", tool="bash"), *end("tool_calls")),
        says(hm, *text("Look."), *call(0, '{"command": "ls"}', id="c2", tool="bash"), *end("tool_calls")),
        says(*call(0, '{"command": "ls"}', id="c3", tool="bash"), *call(1, "{}", id="c4", tool="bash"), *end("tool_calls")),
        says(*text("Done."), *end()),
        says(*text("Bye."), *end()),
    )
    async def _(server: ChatServer) -> None:
        model = server.model()
        said: list[Any] = [UserMessage((Text("go"), Blob("d", 4, "image/png")))]
        for _ in range(5):
            events = await listen(model, context(*said, system="Be brief.", tools=(BASH,), blobs={"d": b"\x89PNG"}))
            final = split(events)[1]
            said.append(AssistantMessage(final.parts, model.name, final.extra))
            said += [result("ok", id=part.id) for part in final.parts if isinstance(part, ToolCall)] or [user("and then?")]
        for n in range(4):
            assert server.messages(n + 1).startswith(server.messages(n).removesuffix("]") + ",")


def test_an_answer_goes_back_to_its_model_as_the_provider_gave_it() -> None:
    final = reply(HI, says(*text("yes"), *end()))[1]
    final.extra["parts"][0]["content"] = "as the provider gave it"
    for model, words in (("openai:fake", "as the provider gave it"), ("openai:other", "yes")):
        asked = context(user("hi"), AssistantMessage(final.parts, model, final.extra), user("more"))
        assert reply(asked, says(*text("x"), *end()))[2].sent()["messages"][1]["content"] == words


@pytest.mark.parametrize(
    "extra",
    [{}, {"kind": "response", "parts": [{"part_kind": "of a later version"}]}, ["what"], {"kind": "request", "parts": []}],
)
def test_an_extra_that_can_not_be_read_gives_way_to_the_parts(extra: Any) -> None:
    asked = context(user("hi"), AssistantMessage((Text("yes"),), "openai:fake", extra), user("more"))
    assert reply(asked, says(*text("x"), *end()))[2].sent()["messages"][1]["content"] == "yes"


def test_thinking_is_rebuilt_only_with_this_models_own_signature() -> None:
    parts = (Thinking("unsigned"), Thinking("signed", "SIG=="), Text("yes"))

    def thinking(model: str) -> list[tuple[str, str | None, str | None]]:
        rebuilt = messages_of(context(AssistantMessage(parts, "anthropic:claude")), model)[0].parts
        return [(p.content, p.signature, p.provider_name) for p in rebuilt if isinstance(p, ThinkingPart)]

    assert thinking("anthropic:claude") == [("signed", "SIG==", "anthropic")]
    assert thinking("openai:fake") == []


def test_preparing_is_pure() -> None:
    async def main() -> None:
        async with chat_server(says(*text("x"), *end()), says(*text("x"), *end())) as server:
            model = server.model()
            asked = context(user("hi"), answer("yes"), user("more"), tools=(BASH,))
            for request in (model.prepare(asked), model.prepare(asked)):
                async with model.stream(request, 10.0) as events:
                    assert [event async for event in events]
            assert server.bodies[0] == server.bodies[1]

    asyncio.run(main())


# ---- what goes wrong -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [408, 409, 429, 500, 502, 503, 529])
def test_a_passing_failure_may_be_tried_again_and_was_not(code: int) -> None:
    error = failure(status(code, {"message": "not now"}))
    assert isinstance(error, Retryable)
    assert (error.status, error.after_s) == (code, None)
    assert "not now" in str(error)


def test_the_provider_names_the_time_to_wait_in_seconds_or_as_a_date() -> None:
    error = failure(status(429, retry_after="7"))
    assert isinstance(error, Retryable) and error.after_s == 7.0
    error = failure(status(503, retry_after=format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)))
    assert isinstance(error, Retryable) and error.after_s is not None and 50 < error.after_s <= 60


@pytest.mark.parametrize(
    ("bad", "complaint"),
    [
        (breaks(*text("half a")), "the answer was cut: .*peer closed"),
        (breaks(), "peer closed"),
        (stops(*text("half a")), "the answer was cut"),
        (stops(), "ended without content"),
        (garbles(*text("half a")), "the answer was cut: .*JSON"),
    ],
)
def test_a_stream_that_breaks_off_may_be_tried_again(bad: Answer, complaint: str) -> None:
    error = failure(bad)
    assert isinstance(error, Retryable)
    assert error.status is None
    with pytest.raises(Retryable, match=complaint):
        raise error


def test_an_error_inside_the_stream_is_what_its_code_says() -> None:
    limited = {"error": {"message": "slow down", "type": "rate_limit_error", "code": "rate_limit_exceeded"}}
    error = failure(says(*text("a"), limited))
    assert isinstance(error, Retryable) and error.status == 429


def test_a_server_that_is_not_there_is_named_and_may_be_tried_again() -> None:
    async def main() -> None:
        async with chat_server() as server:
            model = server.model()
        with pytest.raises(Retryable, match=rf"openai:fake at {server.url}: Connection error"):
            await listen(model, HI)

    asyncio.run(main())


@pytest.mark.parametrize(
    "error",
    [
        {"message": "This model's maximum context length is 8 tokens", "code": "context_length_exceeded"},
        {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"},
        {"message": "prompt is too long: 9 tokens > 8 maximum"},
    ],
)
def test_a_context_that_is_too_long_is_told_apart(error: dict[str, str]) -> None:
    assert isinstance(failure(status(400, error)), Overflow)


def test_a_refusal_is_told_apart() -> None:
    assert isinstance(failure(status(400, {"message": "filtered", "code": "content_filter"})), Refused)
    assert isinstance(failure(says(*end("content_filter"))), Refused)
    refused = failure(says(chunk({"refusal": "I will not."}), *end()))
    assert isinstance(refused, Refused) and "I will not." in str(refused)


def test_what_was_said_before_the_filter_is_kept() -> None:
    final = reply(HI, says(*text("Well, "), *end("content_filter")))[1]
    assert (final.parts, final.stop) == ((Text("Well, "),), "refused")


@pytest.mark.parametrize(
    ("code", "error", "remedy"),
    [
        (400, {"message": "bad tool"}, "finds the request wrong: status 400, bad tool"),
        (401, {"message": "no such key"}, "check OPENAI_API_KEY: status 401, no such key"),
        (403, {"message": "not yours"}, "check what OPENAI_API_KEY may do"),
        (404, {"message": "what model?"}, "check the model's name and the base URL"),
        (429, {"message": "out of money", "code": "insufficient_quota"}, "add credit"),
    ],
)
def test_a_lasting_failure_names_the_remedy(code: int, error: dict[str, str], remedy: str) -> None:
    lasting = failure(status(code, error))
    assert isinstance(lasting, Permanent)
    assert lasting.status == code and remedy in str(lasting)


# ---- time and connections --------------------------------------------------------------------------------------------------


def test_a_server_that_says_nothing_is_left_at_the_deadline() -> None:
    @serving()
    async def _(server: ChatServer) -> None:
        server.then(server.hang())
        with pytest.raises(Retryable, match=r"did not finish within 0\.3 s"):
            await listen(server.model(), HI, deadline_s=0.3)
        await server.closed.wait()


def test_a_connection_lasts_for_one_attempt_and_a_model_outlives_its_event_loop() -> None:
    async def once(model: Any = None) -> Any:
        async with chat_server(says(*text("x"), *end()), says(*text("x"), *end())) as server:
            model = model or server.model()
            model.prepare(HI).payload.adapter.client.base_url = server.url
            await listen(model, HI)
            await listen(model, HI)
            assert server.connections == 2
            return model

    asyncio.run(once(asyncio.run(once())))


def test_partials_of_one_answer_stay_in_order() -> None:
    _, _, server = reply(context(user("go"), partial("a"), user("on"), partial("b"), user("on")), says(*text("c"), *end()))
    assert [message["content"] for message in server.sent()["messages"]] == ["go", "a", "on", "b", "on"]


# ---- prices ----------------------------------------------------------------------------------------------------------------


def answered(provider: str, url: str, model: str) -> ModelResponse:
    used = RequestUsage(input_tokens=1_000_000, output_tokens=100_000, cache_read_tokens=400_000, cache_write_tokens=100_000)
    return ModelResponse([TextPart("x")], model_name=model, provider_name=provider, provider_url=url, usage=used)


def test_a_known_models_answer_has_its_price_by_the_list_that_is_installed() -> None:
    usage = final_of(answered("anthropic", "https://api.anthropic.com", "claude-haiku-4-5"), priced=True).usage
    # A million tokens: 1 $ in, 0.10 $ read from and 1.25 $ written to the cache, 5 $ out.
    assert usage.cost_usd == pytest.approx(0.5 * 1 + 0.4 * 0.1 + 0.1 * 1.25 + 0.1 * 5)
    assert (usage.cached, usage.written, usage.unpriced) == (400_000, 100_000, 0)


@pytest.mark.parametrize(("model", "priced"), [("nobody-knows-this", True), ("claude-haiku-4-5", False)])
def test_an_unknown_model_and_a_server_of_ones_own_have_no_price(model: str, priced: bool) -> None:
    usage = final_of(answered("anthropic", "https://api.anthropic.com", model), priced=priced).usage
    assert (usage.cost_usd, usage.unpriced) == (0.0, 1_100_000)
