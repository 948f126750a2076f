from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.model.scripted import Scripted
from perdure.model.stream import Delta, Overflow, Permanent, Refused, Retryable, ToolMessage
from perdure.record.errors import UsageError
from perdure.record.parts import Blob, Text, Thinking, ToolCall, Usage

from .conversation import answer, ask, called, context, partial, result, user

Script = Callable[..., Scripted]


@pytest.fixture
def script(tmp_path: Path) -> Script:
    def write(*turns: Any) -> Scripted:
        path = tmp_path / "script.json"
        path.write_text(json.dumps({"turns": turns}))
        return Scripted(path)

    return write


def test_the_turn_is_chosen_by_the_responses_committed(script: Script) -> None:
    model = script({"text": "one"}, {"text": "two"})
    for _ in range(2):
        assert ask(model, context(user("go"), responses=1))[1].parts == (Text("two"),)
        assert ask(model, context(user("go"), responses=0))[1].parts == (Text("one"),)


def test_text_thinking_and_calls_arrive_as_deltas_and_in_the_final(script: Script) -> None:
    calls = [{"tool": "read", "args": {"path": "a"}}, {"tool": "bash", "raw": "{oops"}]
    model = script({}, {"thinking": "hm", "text": "Look.", "calls": calls})
    deltas, final = ask(model, context(user("go"), responses=1))
    assert deltas == [Delta("hm", "thinking"), Delta("Look."), Delta('read {"path":"a"}', "call"), Delta("bash {oops", "call")]
    assert final.parts == (
        Thinking("hm"),
        Text("Look."),
        ToolCall("call_2_1", "read", {"path": "a"}),
        ToolCall("call_2_2", "bash", {}, raw="{oops"),
    )
    assert final.stop == "tool_calls"
    assert final.usage == Usage(input=0, output=(2 + 5 + 12 + 5) // 4)


def test_input_is_counted_at_four_characters_a_token(script: Script) -> None:
    final = ask(script({"text": "fine"}), context(user("x" * 40), called(), result("y" * 40), system="z" * 20))[1]
    assert final.usage == Usage(input=25, output=1)


def test_a_blank_turn_is_a_blank_answer(script: Script) -> None:
    deltas, final = ask(script({}), context(user("go")))
    assert (deltas, final.parts, final.stop) == ([], (), "stop")


def test_text_comes_in_chunks_over_the_delay(script: Script) -> None:
    started = time.monotonic()
    deltas, final = ask(script({"text": "abcdefg", "chunks": 3, "delay_s": 0.15}), context(user("go")))
    assert [delta.text for delta in deltas] == ["ab", "cd", "efg"]
    assert final.parts == (Text("abcdefg"),)
    assert time.monotonic() - started >= 0.15


def test_a_turn_that_lasts_beyond_the_deadline_may_be_tried_again(script: Script) -> None:
    with pytest.raises(Retryable, match=r"within 0\.05 s"):
        ask(script({"text": "never", "delay_s": 60.0}), context(user("go")), deadline_s=0.05)


def test_an_expectation_is_searched_in_what_came_after_the_last_whole_answer(script: Script) -> None:
    model = script({"expect": "was undone.*check the outside"})
    ask(model, context(user("go"), called(), result("was undone;\ncheck the outside"), partial("I"), user("go on")))
    with pytest.raises(Permanent, match=r"turn 1 of .*script\.json expected /was undone.*/ and was given: 'fine'"):
        ask(model, context(user("was undone, check the outside"), answer("ok"), user("fine")))


def test_a_failed_expectation_quotes_no_more_than_300_characters(script: Script) -> None:
    with pytest.raises(Permanent) as failure:
        ask(script({"expect": "no"}), context(user("y" * 1000)))
    assert "y" * 300 in str(failure.value) and "y" * 301 not in str(failure.value)


def test_an_expectation_sees_results_that_live_in_blobs(script: Script) -> None:
    message = ToolMessage("call_1_1", "bash", "", blob=Blob("d", 6))
    ask(script({"expect": "needle"}), context(user("go"), called(), message, blobs={"d": b"needle"}))


@pytest.mark.parametrize("status", [408, 409, 429, 500, 529])
def test_an_injected_error_fails_the_first_attempts_only(script: Script, status: int) -> None:
    model = script({"text": "ok", "error": {"status": status, "times": 2, "after_s": 1.5}})
    for options in ({}, {"attempt": 1}, {"attempt": 2}):
        with pytest.raises(Retryable) as failure:
            ask(model, context(user("go"), options=options))
        assert (failure.value.status, failure.value.after_s) == (status, 1.5)
    assert ask(model, context(user("go"), options={"attempt": 3}))[1].parts == (Text("ok"),)


@pytest.mark.parametrize("status", [400, 401, 404])
def test_an_injected_client_error_is_permanent(script: Script, status: int) -> None:
    with pytest.raises(Permanent) as failure:
        ask(script({"error": {"status": status}}), context(user("go")))
    assert failure.value.status == status


def test_overflow_and_refusal_can_be_scripted(script: Script) -> None:
    with pytest.raises(Overflow, match="turn 1"):
        ask(script({"overflow": True}), context(user("go")))
    with pytest.raises(Refused, match="turn 1"):
        ask(script({"refused": True}), context(user("go")))


def test_an_interrupted_answer_is_continued_where_it_stopped(script: Script) -> None:
    call = {"tool": "bash", "args": {}}
    model = script({"thinking": "hm", "text": "Hello, world", "calls": [call]})
    deltas, final = ask(model, context(user("hi"), partial("Hello,"), user("Go on.")))
    assert deltas[0] == Delta(" world")
    assert final.parts == (Text(" world"), ToolCall("call_1_1", "bash", {}))


def test_several_partials_are_one_answer_so_far(script: Script) -> None:
    final = ask(script({"text": "abcdef"}), context(user("hi"), partial("ab"), user("on"), partial("cd"), user("on")))[1]
    assert final.parts == (Text("ef"),)


def test_a_partial_of_another_answer_changes_nothing(script: Script) -> None:
    final = ask(script({"text": "Hello"}), context(user("hi"), partial("Good bye"), user("Go on.")))[1]
    assert final.parts == (Text("Hello"),)


def test_a_script_that_is_over_says_so(script: Script) -> None:
    with pytest.raises(Permanent, match=r"script\.json ends after turn 1, and the session asks for turn 2"):
        ask(script({"text": "one"}), context(user("go"), responses=1))


@pytest.mark.parametrize(
    ("turn", "complaint"),
    [
        ({"chunks": 0}, r"turn 2: field chunks: Expected `int` >= 1"),
        ({"delay_s": "1"}, r"turn 2: field delay_s: Expected `float`, got `str`"),
        ({"calls": [{"args": {}}]}, r"turn 2: field calls\[0\]: .*missing required field `tool`"),
        ({"error": {"status": 200}}, r"turn 2: field error\.status"),
        ({"txet": "typo"}, r"turn 2: .*unknown field `txet`"),
        ({"expect": "("}, r"turn 2, field expect: not a regular expression"),
    ],
)
def test_a_wrong_turn_is_refused_naming_file_turn_and_field(script: Script, turn: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UsageError, match=r"script\.json, " + complaint):
        script({"text": "fine"}, turn)


def test_a_file_that_is_no_script_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.json can't be read: No such file"):
        Scripted(tmp_path / "nowhere.json")
    (tmp_path / "torn.json").write_text('{"turns": [')
    with pytest.raises(UsageError, match=r"torn\.json is not of the form"):
        Scripted(tmp_path / "torn.json")
