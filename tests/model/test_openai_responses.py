"""OpenAI's Responses API, as bytes on a socket."""

from __future__ import annotations

import json

import pytest

from perdure.model.stream import AssistantMessage, Delta, ModelError, Overflow, Permanent, Refused, Retryable, UserMessage
from perdure.record.parts import Blob, Text, Thinking, ToolCall, Usage

from .asking import BASH, begins_with, failure, reply, talk
from .conversation import context, partial, user
from .responses_server import begin, breaks, call, end, garbles, reasoning, responses_server, says, status, text

OK = says(*begin(), *text(0, "x"), *end())


def test_text_reasoning_and_calls_are_streamed_and_put_together() -> None:
    whole = (*reasoning(0, "hm", "SEALED=="), *text(1, "Loo", "k."), *call(2, '{"comm', 'and": "ls"}', id="c1", tool="bash"))
    deltas, final, _ = reply(responses_server(says(*begin(), *whole, *end())))
    assert deltas[:3] == [Delta("hm", "thinking"), Delta("Loo"), Delta("k.")]
    assert "".join(delta.text for delta in deltas[3:]) == 'bash {"command": "ls"}'
    assert final.parts == (Thinking("hm", "SEALED=="), Text("Look."), ToolCall("c1", "bash", {"command": "ls"}))
    assert (final.stop, final.usage) == ("tool_calls", Usage(input=12, output=5, cached=8, unpriced=17))


def test_the_request_holds_all_and_leaves_nothing_there() -> None:
    asked = context(
        UserMessage((Text("see"), Blob("d", 4, "image/gif"))),
        partial("I was say"),
        user("Go on."),
        system="Be brief.",
        tools=(BASH,),
        options={"thinking": "high", "cache_key": "of this session", "attempt": 2},
        blobs={"d": b"GIF8"},
    )
    server = reply(responses_server(OK), asked)[2]
    sent = server.sent()
    assert (sent["store"], sent["reasoning"]["effort"]) == (False, "high")
    assert sent["include"] == ["reasoning.encrypted_content"]
    assert sent["tools"][0]["parameters"] == BASH.schema
    system, seen, cut, note = sent["input"]
    assert system == {"role": "system", "content": "Be brief."}
    assert seen["content"][1]["image_url"] == "data:image/gif;base64,R0lGOA=="
    assert (cut["role"], cut["content"], note["content"]) == ("assistant", "I was say", "Go on.")
    assert "authorization: bearer sk-test" in server.heads[0].lower()


def test_each_request_begins_with_the_one_before_and_reasoning_goes_back_sealed() -> None:
    turn = (*reasoning(0, "hm", "SEALED/+=="), *text(1, "Look."), *call(2, '{"command": "ls"}', id="c1", tool="bash"))
    answers = [says(*begin(), *turn, *end()), says(*begin(), *text(0, "Done."), *end()), OK]
    asked = context(user("go"), system="Be brief.", tools=(BASH,))
    server = talk(responses_server(*answers), asked, 3)[1]
    for n in range(2):
        assert begins_with(server.sent(n + 1)["input"], server.sent(n)["input"])
    assert server.sent(1)["input"][2] == {
        "id": "rs_0",
        "type": "reasoning",
        "summary": [{"type": "summary_text", "text": "hm"}],
        "encrypted_content": "SEALED/+==",
    }


def test_reasoning_of_another_model_is_left_out() -> None:
    whole = (*reasoning(0, "secret hm", "SEALED=="), *text(1, "Yes."))
    given = talk(responses_server(says(*begin(), *whole, *end())), context(user("hi")), 1)[0][1]
    assert isinstance(given, AssistantMessage)
    for answered in (AssistantMessage(given.parts, "openai-responses:o3", given.extra), AssistantMessage(given.parts)):
        body = reply(responses_server(OK), context(user("hi"), answered, user("more")))[2].bodies[0].decode()
        assert "Yes." in body and "secret hm" not in body and "SEALED" not in body


def test_an_answer_that_lost_its_ids_goes_back_without_reasoning() -> None:
    given = AssistantMessage((Thinking("hm", "SEALED=="), Text("Yes.")), "openai-responses:gpt-5.2")
    body = reply(responses_server(OK), context(user("hi"), given, user("more")))[2].bodies[0].decode()
    assert "Yes." in body and "SEALED" not in body and "hm" not in json.loads(body)["input"][1]["content"]


@pytest.mark.parametrize(
    ("answer", "means", "words"),
    [
        (status(400, "bad tool", "invalid_request_error"), Permanent, "finds the request wrong"),
        (status(400, "too much", "invalid_request_error", "context_length_exceeded"), Overflow, "too long"),
        (status(401, "no such key"), Permanent, "check OPENAI_API_KEY"),
        (status(403, "not yours"), Permanent, "check what OPENAI_API_KEY may do"),
        (status(404, "what model?"), Permanent, "check the model's name and the base URL"),
        (status(413, "too large"), Overflow, "too long"),
        (status(429, "out of money", "insufficient_quota", "insufficient_quota"), Permanent, "add credit"),
        (status(429, "slow down", "rate_limit_error"), Retryable, "slow down"),
        (status(503, "oops"), Retryable, "oops"),
        (says(*begin(), {"type": "error", "code": "server_error", "message": "oops", "param": None}), Retryable, "oops"),
        (says(*begin(), *end("failed", error={"code": "server_error", "message": "oops"})), Retryable, ""),
        (breaks(*begin(), *text(0, "half a")[:3]), Retryable, "the answer was cut"),
        (says(*begin(), *text(0, "half a")[:3]), Retryable, ""),
        (garbles(*begin(), *text(0, "half a")[:3]), Retryable, "the answer was cut"),
        (says(), Retryable, ""),
        (says(*begin(), *end("incomplete", incomplete_details={"reason": "content_filter"})), Refused, "refused"),
    ],
)
def test_what_a_failure_means(answer: object, means: type[ModelError], words: str) -> None:
    error = failure(responses_server(answer))  # type: ignore[arg-type]
    assert type(error) is means and words in str(error) and "openai-responses:gpt-5.2" in str(error)


def test_the_provider_names_the_time_to_wait() -> None:
    error = failure(responses_server(status(429, retry_after="7")))
    assert isinstance(error, Retryable) and error.after_s == 7.0
