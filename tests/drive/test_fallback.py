"""A list of models: who is asked when one gives nothing, and how long that lasts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.record import records as r
from perdure.record.errors import UsageError
from tests.drive.test_asking import LeapingClock
from tests.model import chat_server as chat
from tests.model import messages_server as claude
from tests.model.asking import without
from tests.stage import Stage, bash, play, stage, turn, write_script

CLAUDE = "anthropic:claude-opus-4-8"


def broken(code: int = 401, times: int = 9, **fields: Any) -> dict[str, Any]:
    return turn("never", error={"status": code, "times": times}, **fields)


def two(tmp_path: Path, first: list[Any], second: list[Any]) -> list[str]:
    return [write_script(tmp_path / "a.json", *first), write_script(tmp_path / "b.json", *second)]


def who(tmp_path: Path, name: str) -> str:
    return f"scripted:{tmp_path}/{name}.json"


async def answered(s: Stage) -> list[str]:
    return [body.model for body in await s.bodies(r.ModelResponded)]


@pytest.mark.parametrize(("code", "attempts"), [(401, 1), (404, 1), (503, 3), (429, 3)])
def test_a_model_that_gives_nothing_is_followed_by_the_next(tmp_path: Path, code: int, attempts: int) -> None:
    async def story() -> None:
        clock = LeapingClock()
        models = two(tmp_path, [broken(code)], ["from the second"])
        async with stage(tmp_path, "unused", clock=clock, model=models) as s:
            assert (await s.run(emit=clock.leap)).text == "from the second"
            failed = await s.bodies(r.ModelFailed)
            assert [(f.model, f.next_model) for f in failed] == [
                *[(who(tmp_path, "a"), "")] * (attempts - 1),
                (who(tmp_path, "a"), who(tmp_path, "b")),
            ]
            assert await answered(s) == [who(tmp_path, "b")]

    play(story())


def test_it_stays_with_the_one_that_answered_and_the_next_prompt_begins_with_the_first(tmp_path: Path) -> None:
    async def story() -> None:
        first = [broken(times=1), turn("the first again, it is not asked for"), turn("first")]
        models = two(tmp_path, first, [turn("look", bash("true")), turn("second"), "unused"])
        async with stage(tmp_path, "unused", model=models) as s:
            assert (await s.run("one")).text == "second"
            assert [body.model for body in await s.bodies(r.TurnStarted)] == [who(tmp_path, "a"), who(tmp_path, "b")]
            assert (await s.run("two")).text == "first"
            assert await answered(s) == [who(tmp_path, "b"), who(tmp_path, "b"), who(tmp_path, "a")]

    play(story())


@pytest.mark.parametrize("fields", [{"overflow": True}, {"refused": True}])
def test_what_is_too_long_or_refused_goes_to_nobody_else(tmp_path: Path, fields: dict[str, Any]) -> None:
    async def story() -> None:
        models = two(tmp_path, [turn("never", **fields)], ["not asked"])
        async with stage(tmp_path, "unused", model=models) as s:
            assert (await s.run()).outcome == "failed"
            assert [f.next_model for f in await s.bodies(r.ModelFailed)] == [""]

    play(story())


def test_where_all_fail_each_attempt_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        clock = LeapingClock()
        models = two(tmp_path, [broken(401)], [broken(503)])
        async with stage(tmp_path, "unused", clock=clock, model=models) as s:
            answer = await s.run(emit=clock.leap)
            assert (answer.outcome, "b.json" in answer.reason, "503" in answer.reason) == ("failed", True, True)
            assert [f.model for f in await s.bodies(r.ModelFailed)] == [who(tmp_path, "a"), *[who(tmp_path, "b")] * 3]

    play(story())


def test_the_model_chosen_by_a_person_is_asked_first(tmp_path: Path) -> None:
    async def story() -> None:
        models = two(tmp_path, [broken(), "of the first"], ["of the second", "of the second again", "unused"])
        async with stage(tmp_path, "unused", model=models) as s:
            assert (await s.run()).text == "of the second"
            await s.session.use_model([who(tmp_path, "b"), who(tmp_path, "a")])
            assert (await s.run("more")).text == "of the second again"
            state = await s.session.state()
            assert (state.session.model, state.session.fallbacks) == (who(tmp_path, "b"), (who(tmp_path, "a"),))

    play(story())


def test_a_model_chosen_while_another_one_fails_takes_over_at_once(tmp_path: Path) -> None:
    async def story() -> None:
        first, second = two(tmp_path, [broken(503)], ["of the second"])
        clock = LeapingClock()
        async with stage(tmp_path, "unused", clock=clock, model=first) as s:
            choosing: list[asyncio.Future[Any]] = []

            async def choose_first(failed: perdure.Event) -> None:
                await s.session.use_model(second)
                clock.leap(failed)

            def choose(event: perdure.Event) -> None:
                failed = isinstance(event, perdure.Recorded) and isinstance(event.stored.body, r.ModelFailed)
                if failed and not choosing:
                    choosing.append(asyncio.ensure_future(choose_first(event)))
                else:
                    clock.leap(event)

            assert (await s.run(emit=choose)).text == "of the second"
            assert [f.next_model for f in await s.bodies(r.ModelFailed)] == ["", "", second]

    play(story())


def test_each_model_of_a_list_is_looked_at_when_the_session_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_BASE_URL", raising=False)

    async def story() -> None:
        for wrong, words in ((f"{{}},{CLAUDE}", "ANTHROPIC_API_KEY is not set"), ("{},{}", "named twice")):
            with pytest.raises(UsageError, match=words):
                async with stage(tmp_path, "unused", model=wrong.format(*[write_script(tmp_path / "a.json", "hi")] * 2)):
                    pass

    play(story())


# ---- on the wire -----------------------------------------------------------------------------------------------------------


def test_the_next_provider_goes_on_with_what_was_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of the first, without its thinking, then the note; and from there the second's own signature."""

    async def story() -> None:
        clock = LeapingClock()
        hm = chat.chunk({"reasoning_content": "secret hm"})
        goes_on = (*claude.thinking(0, "so", "SIG=="), *claude.text(1, "42."), *claude.call(2, "{}", id="t1", tool="list"))
        second = (
            claude.says(*claude.begin(), *goes_on, *claude.end("tool_use")),
            claude.says(*claude.begin(), *claude.text(0, "Yes."), *claude.end()),
        )
        async with (
            chat.chat_server(*[chat.breaks(hm, *chat.text("The answer is "))] * 3) as one,
            claude.messages_server(*second) as other,
        ):
            monkeypatch.setenv("ANTHROPIC_BASE_URL", other.url)
            options = {"base_url": one.url, "thinking": "low"}
            async with stage(tmp_path, "unused", clock=clock, model=["openai:fake", CLAUDE], model_options=options) as s:
                assert (await s.run("what is it?", emit=clock.leap)).text == "Yes."
                assert [body.options for body in await s.bodies(r.TurnStarted)] == [{"thinking": "low"}] * 2
        assert (len(one.bodies), len(other.bodies)) == (3, 2)
        assert one.sent()["reasoning_effort"] == "low" and other.sent()["thinking"] == {"type": "adaptive"}
        _, cut, note = without(other.sent(0)["messages"], "cache_control")
        assert cut == {"role": "assistant", "content": [{"type": "text", "text": "The answer is The answer is The answer is "}]}
        assert "Go on exactly where it stopped" in str(note)
        assert "secret hm" not in str(other.bodies)
        answered = other.sent(1)["messages"][1]["content"]
        assert answered[0] == {"type": "thinking", "thinking": "so", "signature": "SIG=="}
        assert answered[1]["text"] == "The answer is The answer is The answer is 42."

    play(story())


def test_a_driver_that_dies_after_the_change_leaves_the_next_one_with_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with (
            chat.chat_server(chat.status(401)) as one,
            claude.messages_server() as other,
        ):
            other.then(other.hang())
            other.then(claude.says(*claude.begin(), *claude.text(0, "Here."), *claude.end()))
            monkeypatch.setenv("ANTHROPIC_BASE_URL", other.url)
            options = {"base_url": one.url}
            async with stage(tmp_path, "unused", model=["openai:fake", CLAUDE], model_options=options) as s:
                driving = asyncio.create_task(s.session.run("go", request_id="r"))
                while not other.bodies:
                    await asyncio.sleep(0.01)
                driving.cancel()
                await asyncio.gather(driving, return_exceptions=True)
            async with stage(tmp_path) as s:
                answer: perdure.Answer = await s.run("go", request_id="r")
                assert (answer.text, len(one.bodies), len(other.bodies)) == ("Here.", 1, 2)

    play(story())
