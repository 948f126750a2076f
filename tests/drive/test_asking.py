"""Requests that fail, are retried, cut and continued; and what a model is sent, to the byte."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import perdure
from perdure.drive.asking import RETRY_CAP_S
from perdure.record import records as r
from perdure.record.errors import CorruptLogError
from tests.model.chat_server import ChatServer, breaks, call, chat_server, end, says, status, text
from tests.stage import bash, play, stage, turn, write_script


class LeapingClock:
    """The wall clock, but for the pauses before retries: as soon as one is announced, it is over."""

    def __init__(self) -> None:
        self._ahead_s = 0.0

    def __call__(self) -> float:
        return time.time() + self._ahead_s

    def leap(self, event: perdure.Event) -> None:
        if isinstance(event, perdure.Recorded) and isinstance(event.stored.body, r.ModelFailed):
            retry_at = event.stored.body.retry_at
            self._ahead_s += max(0.0, (retry_at or 0.0) - self())


class Failed(NamedTuple):
    answer: perdure.Answer
    failures: list[r.ModelFailed]
    pauses_s: list[float]


async def fail(tmp_path: Path, *turns: dict[str, Any] | str) -> Failed:
    """One input; the failed attempts on the way, and the pauses that followed them, rounded to seconds."""
    clock = LeapingClock()
    async with stage(tmp_path, *turns, clock=clock) as s:
        answer = await s.run(emit=clock.leap)
        failed = [(x.at, x.body) for x in await s.records() if isinstance(x.body, r.ModelFailed)]
        pauses_s = [round(body.retry_at - at) for at, body in failed if body.retry_at is not None]
        return Failed(answer, [body for _, body in failed], pauses_s)


# ---- retries ---------------------------------------------------------------------------------------------------------------


def test_a_failure_that_may_pass_is_tried_three_times_two_and_four_seconds_apart(tmp_path: Path) -> None:
    async def story() -> None:
        answer, failures, pauses_s = await fail(tmp_path, turn("there", error={"status": 503, "times": 2}))
        assert answer.text == "there"
        assert pauses_s == [2, 4]
        assert [f.attempt for f in failures] == [1, 2]

    play(story())


def test_the_third_failure_is_the_last(tmp_path: Path) -> None:
    async def story() -> None:
        answer, failures, pauses_s = await fail(tmp_path, turn("never", error={"status": 503, "times": 9}))
        assert answer.outcome == "failed"
        assert "503" in answer.reason
        assert (len(failures), pauses_s) == (3, [2, 4])

    play(story())


def test_the_provider_says_when_to_come_back_but_not_beyond_the_cap(tmp_path: Path) -> None:
    async def story() -> None:
        _, _, pauses_s = await fail(tmp_path, turn("there", error={"status": 429, "times": 1, "after_s": 17.0}))
        assert pauses_s == [17]

    play(story())


def test_a_request_to_come_back_in_an_hour_is_cut_to_the_cap(tmp_path: Path) -> None:
    async def story() -> None:
        _, _, pauses_s = await fail(tmp_path, turn("there", error={"status": 429, "times": 1, "after_s": 3600.0}))
        assert pauses_s == [RETRY_CAP_S]

    play(story())


def test_attempts_are_counted_in_the_log_over_restarts(tmp_path: Path) -> None:
    """Each driver goes while the retry waits; the third attempt is still the last."""

    async def story() -> None:
        busy = turn("never", error={"status": 503, "times": 9, "after_s": 0.3})
        failed = 0
        async with stage(tmp_path, busy) as s:
            await s.session.submit("go", request_id="r")
        while failed < 3:
            async with stage(tmp_path) as s:
                driving = asyncio.create_task(s.session.drive())
                while len(await s.bodies(r.ModelFailed)) == failed:
                    await asyncio.sleep(0.01)
                failed = len(await s.bodies(r.ModelFailed))
                driving.cancel()
                await asyncio.gather(driving, return_exceptions=True)
        async with stage(tmp_path) as s:
            assert (await s.run(request_id="r")).outcome == "failed"
            assert len(await s.bodies(r.ModelFailed)) == 3

    play(story())


def test_a_permanent_failure_settles_at_once_and_the_session_lives_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("never", error={"status": 401, "times": 1}), name="s") as s:
            answer = await s.run("first")
            assert (answer.outcome, len(await s.bodies(r.ModelFailed))) == ("failed", 1)
            assert "401" in answer.reason
            write_script(tmp_path / "s.json", turn("better now", expect="given up.*second"))
        async with stage(tmp_path) as s:
            assert (await s.run("second")).text == "better now"

    play(story())


@pytest.mark.parametrize("blank", ["", "  \n "])
def test_a_blank_reply_is_a_failure_that_may_pass(tmp_path: Path, blank: str) -> None:
    async def story() -> None:
        answer, failures, _ = await fail(tmp_path, blank)
        assert answer.outcome == "failed"
        assert "blank" in answer.reason
        assert len(failures) == 3
        assert all(f.usage.total > 0 for f in failures), "it was paid for"

    play(story())


@pytest.mark.parametrize(("fields", "failure"), [({"overflow": True}, "overflow"), ({"refused": True}, "refused")])
def test_a_request_that_is_too_long_or_refused_is_not_sent_again(tmp_path: Path, fields: dict[str, bool], failure: str) -> None:
    async def story() -> None:
        answer, failures, pauses_s = await fail(tmp_path, turn("never", **fields))
        assert answer.outcome == "failed"
        assert [f.failure for f in failures] == [failure]
        assert pauses_s == []

    play(story())


def test_a_model_that_can_not_be_had_is_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "never") as s:
            (tmp_path / "s.json").unlink()
            answer = await s.run(request_id="r")
            assert (answer.outcome, answer.waiting_for) == ("waiting", "model_unavailable")
            assert "s.json" in answer.detail
            assert (await s.session.row()).rest.waiting_for == "model_unavailable"
            write_script(tmp_path / "s.json", "here I am")
        async with stage(tmp_path) as s:
            assert (await s.run(request_id="r")).text == "here I am"

    play(story())


# ---- answers that were cut -------------------------------------------------------------------------------------------------


def at(server: ChatServer) -> dict[str, Any]:
    """A session's options, to ask that server."""
    return {"model": "openai:fake", "model_options": {"base_url": server.url}}


def test_a_cut_answer_goes_on_where_it_stopped(tmp_path: Path) -> None:
    async def story() -> None:
        clock = LeapingClock()
        answers = breaks(*text("The answer ", "is ")), says(*text("42."), *end()), says(*text("Yes."), *end())
        async with chat_server(*answers) as server, stage(tmp_path, "unused", clock=clock, **at(server)) as s:
            answer = await s.run("what is it?", emit=clock.leap)
            assert answer.text == "The answer is 42."
            failed = (await s.bodies(r.ModelFailed))[0]
            assert failed.partial == "The answer is "
            sent = server.sent(1)["messages"]
            assert sent[-2] == {"role": "assistant", "content": "The answer is "}
            assert "Go on exactly where it stopped" in str(sent[-1])
            await s.run("sure?")
            assert {"role": "assistant", "content": "The answer is 42."} in server.sent(2)["messages"]

    play(story())


def test_an_answer_is_continued_three_times_at_most(tmp_path: Path) -> None:
    async def story() -> None:
        clock = LeapingClock()
        answers = [breaks(*text("bit "))] * 9
        async with chat_server(*answers) as server, stage(tmp_path, "unused", clock=clock, **at(server)) as s:
            answer = await s.run(emit=clock.leap)
            assert answer.outcome == "failed"
            assert len(server.bodies) == 3

    play(story())


def test_a_call_that_was_cut_is_asked_for_again_and_never_run(tmp_path: Path) -> None:
    async def story() -> None:
        clock = LeapingClock()
        cut = breaks(*text("I will "), *call(0, '{"command": "touch', id="c1", tool="bash"))
        answers = cut, says(*text("No, I won't."), *end())
        async with chat_server(*answers) as server, stage(tmp_path, "unused", clock=clock, **at(server)) as s:
            assert (await s.run(emit=clock.leap)).text == "No, I won't."
            assert not await s.bodies(r.CallProposed)
            assert (await s.bodies(r.ModelFailed))[0].partial == ""

    play(story())


# ---- the stable prefix -----------------------------------------------------------------------------------------------------


def extends(later: str, earlier: str) -> bool:
    """Whether the later list of messages begins with all of the earlier one."""
    return later.startswith(earlier.removesuffix("]"))


def test_each_request_begins_with_the_bytes_of_the_one_before(tmp_path: Path) -> None:
    """Also after a retry, a resume and a person's edit."""

    async def story() -> None:
        run = [*call(0, '{"command": "echo hi"}', id="c1", tool="bash"), *end("tool_calls")]
        answers = [says(*run), status(503), says(*text("first"), *end()), says(*run), says(*text("second"), *end())]
        (tmp_path / "root-s").mkdir()
        (tmp_path / "root-s" / "AGENTS.md").write_text("Always be kind.\n")
        async with chat_server(*answers) as server:
            clock = LeapingClock()
            async with stage(tmp_path, "unused", clock=clock, **at(server)) as s:
                assert (await s.run("one", emit=clock.leap)).text == "first"
                (s.root / "AGENTS.md").write_text("Be quick instead.\n")
            async with stage(tmp_path) as s:
                assert (await s.run("two")).text == "second"
            messages = [server.messages(n) for n in range(5)]
            assert messages[2] == messages[1], "a retry sends the same bytes"
            assert all(extends(later, earlier) for earlier, later in itertools.pairwise(messages))
            assert all(server.sent(n)["tools"] == server.sent(0)["tools"] for n in range(5))
            first = str(server.sent(0)["messages"][0])
            assert "Always be kind." in first
            assert str(tmp_path / "root-s") in first
            assert "changed by someone else" in messages[4] and "AGENTS.md" in messages[4]

    play(story())


def test_a_result_over_16_kib_lies_in_a_blob_and_is_sent_whole(tmp_path: Path) -> None:
    async def story() -> None:
        seen = "BEGIN.*" + "x" * 20000 + ".*END"
        show = bash("echo BEGIN; head -c 20000 /dev/zero | tr '\\0' x; echo; echo END")
        async with stage(tmp_path, turn("", show), turn("saw it", expect=seen)) as s:
            assert (await s.run()).text == "saw it"
            result = (await s.finished())["main.1.0"].result
            assert result.blob is not None and result.blob.size_bytes > 20000
            assert len(result.text) < 3000
        async with stage(tmp_path) as s:
            # A new process has to fetch it from the store.
            write_script(tmp_path / "s.json", "gone", "gone", "still there")
            assert (await s.run("and?")).text == "still there"

    play(story())


def test_streamed_text_is_forgotten_when_everything_is_answered(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("word by word", chunks=6, delay_s=0.6)) as s:
            await s.run()
            assert await s.home.live.read("s", "main", 1, 1) == []

    play(story())


def test_a_transcript_with_a_lost_chunk_is_never_sent_without_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("head -c 20000 /dev/zero | tr '\\0' x | fold -w 100")), "done", "never") as s:
            await s.run()
            assert (await s.finished())["main.1.0"].result.blob is not None
            await s.home.store._log.write(lambda connection: connection.execute("DELETE FROM chunk WHERE size > 16384"))
            with pytest.raises(CorruptLogError, match=r"1 chunk.*perdure show"):
                await s.run("go on")

    play(story())
