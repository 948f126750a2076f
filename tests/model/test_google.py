"""The Gemini API, as bytes on a socket."""

from __future__ import annotations

import pytest

from perdure.model.stream import AssistantMessage, Delta, ModelError, Overflow, Permanent, Refused, Retryable, UserMessage
from perdure.record.parts import Blob, Text, Thinking, ToolCall, Usage

from .asking import BASH, begins_with, failure, reply, talk
from .conversation import context, partial, user
from .gemini_server import breaks, call, end, garbles, gemini_server, says, status, text, thought

PER_DAY = {
    "@type": "type.googleapis.com/google.rpc.QuotaFailure",
    "violations": [{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}],
}
OK = says(*text("x"), end())


def test_text_thoughts_and_calls_are_streamed_and_put_together() -> None:
    answer = says(thought("hm"), *text("Loo", "k."), call("bash", {"command": "ls"}, "U0lH"), end())
    deltas, final, _ = reply(gemini_server(answer))
    assert deltas == [Delta("hm", "thinking"), Delta("Loo"), Delta("k."), Delta('bash {"command":"ls"}', "call")]
    assert [type(part) for part in final.parts] == [Thinking, Text, ToolCall]
    assert isinstance(final.parts[2], ToolCall) and final.parts[2].args == {"command": "ls"}
    assert (final.stop, final.usage) == ("tool_calls", Usage(input=12, output=5, cached=8, unpriced=17))


def test_the_request_holds_all() -> None:
    asked = context(
        UserMessage((Text("see"), Blob("d", 4, "image/jpeg"))),
        partial("I was say"),
        user("Go on."),
        system="Be brief.",
        tools=(BASH,),
        options={"thinking": "low"},
        blobs={"d": b"\xff\xd8\xff\xe0"},
    )
    server = reply(gemini_server(OK), asked)[2]
    sent = server.sent()
    assert sent["systemInstruction"]["parts"] == [{"text": "Be brief."}]
    assert sent["generationConfig"]["thinkingConfig"] == {"include_thoughts": True, "thinking_level": "LOW"}
    assert sent["tools"][0]["functionDeclarations"][0]["name"] == "bash"
    seen, cut, note = sent["contents"]
    assert seen["parts"][1]["inlineData"] == {"data": "_9j_4A==", "mime_type": "image/jpeg"}
    assert cut == {"role": "model", "parts": [{"text": "I was say"}]}
    assert note == {"role": "user", "parts": [{"text": "Go on."}]}
    assert "x-goog-api-key: sk-test" in server.heads[0].lower() and "connection: close" in server.heads[0].lower()


def test_each_request_begins_with_the_one_before_and_signatures_go_back() -> None:
    answers = [
        says(thought("hm"), call("bash", {"command": "ls"}, "U0lHLys9"), end()),
        says(call("bash", {}, "U0lHMg=="), call("bash", {"command": "pwd"}), end()),
        says(*text("Done."), end()),
        OK,
    ]
    server = talk(gemini_server(*answers), context(user("go"), system="Be brief.", tools=(BASH,)), 4)[1]
    for n in range(3):
        assert begins_with(server.sent(n + 1)["contents"], server.sent(n)["contents"])
        assert server.sent(n + 1)["tools"] == server.sent(n)["tools"]
    assert server.sent(1)["contents"][1]["parts"][-1]["thoughtSignature"] == "U0lHLys9"
    assert server.sent(3)["contents"][3]["parts"][0]["thoughtSignature"] == "U0lHMg=="


def test_another_models_thoughts_and_signatures_are_left_out() -> None:
    answer = says(thought("secret hm"), *text("Yes."), call("bash", {}, "U0lHLys9"), end())
    given = talk(gemini_server(answer), context(user("hi")), 1)[0]
    assert isinstance(given[1], AssistantMessage)
    moved = AssistantMessage(given[1].parts, "google:gemini-3-flash", given[1].extra)
    body = reply(gemini_server(OK), context(given[0], moved, given[2]))[2].bodies[0].decode()
    assert "Yes." in body and "secret hm" not in body and "U0lHLys9" not in body


@pytest.mark.parametrize(
    ("answer", "means", "words"),
    [
        (status(400, "INVALID_ARGUMENT", "bad tool"), Permanent, "finds the request wrong"),
        (status(400, "INVALID_ARGUMENT", "API key not valid. Please pass a valid API key."), Permanent, "API key not valid"),
        (
            status(400, "INVALID_ARGUMENT", "The input token count (9) exceeds the maximum number of tokens allowed (8)."),
            Overflow,
            "too long",
        ),
        (status(403, "PERMISSION_DENIED", "not yours"), Permanent, "check what GOOGLE_API_KEY may do"),
        (status(404, "NOT_FOUND", "what model?"), Permanent, "check the model's name and the base URL"),
        (status(413, "INVALID_ARGUMENT", "too large"), Overflow, "too long"),
        (status(429, "RESOURCE_EXHAUSTED", "slow down"), Retryable, "slow down"),
        (status(429, "RESOURCE_EXHAUSTED", "that was all for today", [PER_DAY]), Permanent, "add credit"),
        (status(500, "INTERNAL", "oops"), Retryable, "oops"),
        (status(503, "UNAVAILABLE", "The model is overloaded."), Retryable, "overloaded"),
        (breaks(*text("half a")), Retryable, "the answer was cut"),
        (says(*text("half a")), Retryable, "the answer was cut"),
        (garbles(*text("half a")), Retryable, "the answer was cut"),
        (says(), Retryable, ""),
        (says({"promptFeedback": {"blockReason": "SAFETY"}}), Refused, "refused"),
        (says(end("SAFETY")), Refused, "refused"),
    ],
)
def test_what_a_failure_means(answer: object, means: type[ModelError], words: str) -> None:
    error = failure(gemini_server(answer))  # type: ignore[arg-type]
    assert type(error) is means and words in str(error) and "google:gemini-3-pro-preview" in str(error)


def test_the_provider_names_the_time_to_wait() -> None:
    told = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "9s"}
    for limited, after_s in (
        (status(429, "RESOURCE_EXHAUSTED", retry_after="7"), 7.0),
        (status(429, "RESOURCE_EXHAUSTED", "slow down", [told]), 9.0),
    ):
        error = failure(gemini_server(limited))
        assert isinstance(error, Retryable) and error.after_s == after_s
