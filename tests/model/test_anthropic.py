"""Anthropic's messages API, as bytes on a socket."""

from __future__ import annotations

import json

import pytest

from perdure.model.stream import AssistantMessage, Delta, ModelError, Overflow, Permanent, Refused, Retryable, UserMessage
from perdure.record.parts import Blob, Text, Thinking, ToolCall, Usage

from .asking import BASH, HI, begins_with, failure, reply, talk, without
from .conversation import answer, context, partial, result, user
from .messages_server import (
    MessagesServer,
    begin,
    breaks,
    call,
    end,
    garbles,
    messages_server,
    redacted,
    says,
    status,
    text,
    thinking,
)
from .wire import listening

OK = says(*begin(), *text(0, "x"), *end())


# ---- what comes in ---------------------------------------------------------------------------------------------------------


def test_text_thinking_and_calls_are_streamed_and_put_together() -> None:
    whole = (*thinking(0, "hm", "SIG=="), *text(1, "Loo", "k."), *call(2, '{"comm', 'and": "ls"}', id="t1", tool="bash"))
    deltas, final, _ = reply(messages_server(says(*begin(), *whole, *end("tool_use"))))
    assert deltas[:3] == [Delta("hm", "thinking"), Delta("Loo"), Delta("k.")]
    assert "".join(delta.text for delta in deltas[3:]) == 'bash {"command": "ls"}'
    assert final.parts == (Thinking("hm", "SIG=="), Text("Look."), ToolCall("t1", "bash", {"command": "ls"}))
    assert final.stop == "tool_calls"


def test_input_counts_what_was_read_from_and_written_to_the_cache() -> None:
    usage = reply(messages_server(OK))[1].usage
    assert usage == Usage(input=12, output=5, cached=6, written=2, unpriced=17)


@pytest.mark.parametrize(("reason", "stop"), [("end_turn", "stop"), ("max_tokens", "length"), ("refusal", "refused")])
def test_why_it_stopped(reason: str, stop: str) -> None:
    assert reply(messages_server(says(*begin(), *text(0, "x"), *end(reason))))[1].stop == stop


# ---- what goes out ---------------------------------------------------------------------------------------------------------


def test_the_request_holds_system_tools_key_and_the_cache_marks() -> None:
    asked = context(user("hi"), system="Be brief.", tools=(BASH,))
    sent = (server := reply(messages_server(OK), asked)[2]).sent()
    mark = {"type": "ephemeral", "ttl": "5m"}
    assert sent["system"] == [{"type": "text", "text": "Be brief.", "cache_control": mark}]
    assert sent["tools"][-1]["cache_control"] == mark
    assert sent["tools"][-1]["input_schema"] == BASH.schema
    assert sent["messages"] == [{"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": mark}]}]
    assert server.heads[0].startswith("POST /v1/messages")
    assert "authorization: bearer sk-test" in server.heads[0].lower() and "connection: close" in server.heads[0].lower()


def test_each_request_begins_as_the_one_before_apart_from_the_marks() -> None:
    turn = (*thinking(0, "hm", "SIG=="), *text(1, "Look."), *call(2, '{"command": "ls"}', id="t1", tool="bash"))
    both = (*call(1, '{"command": "ls"}', id="t2", tool="bash"), *call(2, "{}", id="t3", tool="bash"))
    answers = [
        says(*begin(), *turn, *end("tool_use")),
        says(*begin(), *redacted(0, "SEALED"), *both, *end("tool_use")),
        says(*begin(), *text(0, "Done."), *end()),
        says(*begin(), *text(0, "Bye."), *end()),
        OK,
    ]
    image = UserMessage((Text("go"), Blob("d", 4, "image/png")))
    asked = context(image, system="Be brief.", tools=(BASH,), blobs={"d": b"\x89PNG"}, options={"thinking": "low"})
    server = talk(messages_server(*answers), asked, 5)[1]
    assert len({json.dumps([server.sent(n)["tools"], server.sent(n)["system"]]) for n in range(5)}) == 1
    for n in range(4):
        earlier, later = (without(server.sent(m)["messages"], "cache_control") for m in (n, n + 1))
        assert begins_with(later, earlier)
    # Four marks are all that a request may have: on tools and system, and on the last blocks of this request and of the one before.
    for n in range(5):
        marked = [index for index, message in enumerate(server.sent(n)["messages"]) if "cache_control" in message["content"][-1]]
        ends = [len(server.sent(m)["messages"]) - 1 for m in (n - 1, n) if m >= 0]
        assert (marked, server.bodies[n].count(b'"cache_control"')) == (ends, 2 + len(ends))


def test_thinking_goes_back_sealed_as_it_came_to_the_same_model() -> None:
    whole = (*thinking(0, "hm\n", "SIG/+=="), *redacted(1, "SEALED=="), *call(2, "{}", id="t1", tool="bash"))
    said, server = talk(messages_server(says(*begin(), *whole, *end("tool_use")), OK), context(user("go")), 2)
    content = server.sent(1)["messages"][1]["content"]
    assert content[:2] == [
        {"type": "thinking", "thinking": "hm\n", "signature": "SIG/+=="},
        {"type": "redacted_thinking", "data": "SEALED=="},
    ]
    assert isinstance(said[1], AssistantMessage)
    assert said[1].parts[:2] == (Thinking("hm\n", "SIG/+=="), Thinking("", "SEALED==", redacted=True))


def test_thinking_goes_back_also_where_only_the_parts_are_left() -> None:
    parts = (Thinking("hm", "SIG=="), Thinking("", "SEALED==", redacted=True), Text("Look."))
    asked = context(user("go"), AssistantMessage(parts, "anthropic:claude-opus-4-8"), user("more"))
    assert without(reply(messages_server(OK), asked)[2].sent()["messages"][1]["content"], "cache_control") == [
        {"type": "thinking", "thinking": "hm", "signature": "SIG=="},
        {"type": "redacted_thinking", "data": "SEALED=="},
        {"type": "text", "text": "Look."},
    ]


def test_another_models_thinking_is_left_out() -> None:
    given = talk(messages_server(says(*begin(), *thinking(0, "secret hm", "SIG=="), *text(1, "Yes."), *end())), HI, 1)[0][1]
    assert isinstance(given, AssistantMessage)
    for model in ("anthropic:claude-haiku-4-5", "openai:fake"):
        asked = context(user("hi"), AssistantMessage(given.parts, model, given.extra), user("more"))
        body = reply(messages_server(OK), asked)[2].bodies[0].decode()
        assert "Yes." in body and "secret hm" not in body and "SIG==" not in body


def test_an_interrupted_answer_goes_out_as_plain_text_before_the_note() -> None:
    asked = context(user("go"), partial("I was say"), user("Go on."))
    sent = reply(messages_server(OK), asked)[2].sent()
    assert without(sent["messages"], "cache_control") == [
        {"role": "user", "content": [{"type": "text", "text": "go"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "I was say"}]},
        {"role": "user", "content": [{"type": "text", "text": "Go on."}]},
    ]


def test_results_and_images_go_out_in_their_form() -> None:
    asked = context(
        UserMessage((Text("see"), Blob("d", 4, "image/webp"))),
        AssistantMessage((ToolCall("t1", "bash", {"command": "ls"}),)),
        result("a\nb", id="t1"),
        blobs={"d": b"RIFF"},
    )
    first, second, third = without(reply(messages_server(OK), asked)[2].sent()["messages"], "cache_control")
    assert first["content"][1]["source"] == {"type": "base64", "media_type": "image/webp", "data": "UklGRg=="}
    assert second["content"] == [{"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}]
    assert third["content"] == [
        {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a\nb"}], "is_error": False}
    ]


@pytest.mark.parametrize(
    ("thinking", "sent", "effort"),
    [("off", None, None), ("low", {"type": "adaptive"}, {"effort": "low"}), ("high", {"type": "adaptive"}, {"effort": "high"})],
)
def test_how_much_to_think(thinking: str, sent: object, effort: object) -> None:
    body = reply(messages_server(OK), context(user("hi"), options={"thinking": thinking}))[2].sent()
    assert (body.get("thinking"), body.get("output_config")) == (sent, effort)


def test_a_model_that_thinks_by_a_budget_does_not_in_a_round_that_it_did_not_begin() -> None:
    """It would be refused with a 400, "expected thinking"."""
    sealed = (Thinking("hm", "SIG=="), ToolCall("t1", "bash", {}))
    round_of_its_own = (user("go"), AssistantMessage(sealed, "anthropic:claude-haiku-4-5"), result("ok", id="t1"))
    round_of_another = (user("go"), AssistantMessage(sealed, "openai:fake"), result("ok", id="t1"))
    budget, adaptive = {"type": "enabled", "budget_tokens": 2048}, {"type": "adaptive"}
    for model, said, sent in (
        ("claude-haiku-4-5", round_of_its_own, budget),
        ("claude-haiku-4-5", round_of_another, None),
        ("claude-haiku-4-5", (*round_of_another, answer("Done."), user("more")), budget),
        ("claude-opus-4-8", round_of_another, adaptive),
    ):
        server = MessagesServer(OK)
        server.asked = model
        asked = context(*said, tools=(BASH,), options={"thinking": "low"})
        assert reply(listening(server), asked)[2].sent().get("thinking") == sent, (model, sent)


# ---- what goes wrong -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind", "message", "means", "words"),
    [
        (400, "invalid_request_error", "tools.0: bad", Permanent, "finds the request wrong: status 400, tools.0: bad"),
        (400, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum", Overflow, "the context is too long for"),
        (400, "invalid_request_error", "Your credit balance is too low", Permanent, "used up; add credit"),
        (401, "authentication_error", "invalid x-api-key", Permanent, "check ANTHROPIC_API_KEY: status 401, invalid x-api-key"),
        (402, "billing_error", "no card", Permanent, "used up; add credit"),
        (403, "permission_error", "not yours", Permanent, "check what ANTHROPIC_API_KEY may do"),
        (404, "not_found_error", "model: claude-0", Permanent, "check the model's name and the base URL"),
        (413, "request_too_large", "more than 32 MB", Overflow, "the context is too long for"),
        (429, "rate_limit_error", "slow down", Retryable, "slow down"),
        (500, "api_error", "oops", Retryable, "oops"),
        (529, "overloaded_error", "Overloaded", Retryable, "status 529, Overloaded"),
    ],
)
def test_what_a_status_means(code: int, kind: str, message: str, means: type[ModelError], words: str) -> None:
    error = failure(messages_server(status(code, kind, message)))
    assert type(error) is means
    assert error.status == code and words in str(error) and "claude-opus-4-8" in str(error)


def test_the_provider_names_the_time_to_wait() -> None:
    error = failure(messages_server(status(429, "rate_limit_error", retry_after="7")))
    assert isinstance(error, Retryable) and error.after_s == 7.0


def test_an_error_inside_the_stream_is_what_its_type_says() -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    error = failure(messages_server(says(*begin(), *text(0, "a")[:2], overloaded)))
    assert isinstance(error, Retryable) and "Overloaded" in str(error) and error.status == 529


@pytest.mark.parametrize(
    "bad",
    [
        breaks(*begin(), *text(0, "half a")[:2]),
        breaks(),
        says(*begin(), *text(0, "half a")),
        says(),
        garbles(*begin(), *text(0, "half a")[:2]),
    ],
)
def test_a_stream_that_breaks_off_may_be_tried_again(bad: object) -> None:
    assert isinstance(failure(messages_server(bad)), Retryable)  # type: ignore[arg-type]


def test_a_refusal_without_a_word_is_told_apart() -> None:
    assert isinstance(failure(messages_server(says(*begin(), *end("refusal")))), Refused)


def test_an_answer_of_another_provider_is_rebuilt_from_its_parts() -> None:
    asked = context(user("hi"), answer("yes"), user("more"))
    assert without(reply(messages_server(OK), asked)[2].sent()["messages"][1], "cache_control") == {
        "role": "assistant",
        "content": [{"type": "text", "text": "yes"}],
    }


def test_a_cache_for_an_hour_is_asked_for_with_every_mark() -> None:
    asked = context(user("hi"), answer("yes"), user("more"), system="Be brief.", tools=(BASH,), options={"cache": "1h"})
    body = reply(messages_server(OK), asked)[2].bodies[0]
    assert body.count(b'"cache_control":{"type":"ephemeral","ttl":"1h"}') == 4 and b'"5m"' not in body
