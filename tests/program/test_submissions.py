"""What becomes of an input: placed, settled once, with a reason."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from perdure.record import records as r
from perdure.record.errors import SessionBusyError, UsageError
from tests.stage import Stage, bash, play, stage, turn

HELD = "touch begun; while [ ! -e go ]; do sleep 0.02; done"
"""A command that runs until the test lets it."""


async def settled_once(s: Stage) -> None:
    admitted = [body.submission for body in await s.bodies(r.SubmissionAdmitted)]
    settled = [body.submission for body in await s.bodies(r.SubmissionSettled)]
    assert Counter(settled) == Counter(admitted)


def test_inputs_are_answered_in_their_order(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "one", turn("two", expect="second")) as s:
            first = await s.session.submit("first")
            second = await s.session.submit("second")
            await s.session.drive()
            assert (await s.session.wait(first)).text == "one"
            assert (await s.session.wait(second)).text == "two"
            await settled_once(s)

    play(story())


def test_a_follow_up_to_a_running_session_waits_for_its_end(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(HELD)), "first done", turn("second done", expect="second")) as s:
            running = asyncio.create_task(s.run("first"))
            await s.file("begun")
            second = await s.session.submit("second")
            (s.root / "go").touch()
            assert (await running).text == "first done"
            assert (await s.session.wait(second)).text == "second done"
            placed = [body.submission for body in await s.bodies(r.SubmissionPlaced)]
            assert placed[-1] == second
            await settled_once(s)

    play(story())


def test_a_steer_is_placed_after_the_running_call_and_the_rest_of_the_round_does_not_run(tmp_path: Path) -> None:
    async def story() -> None:
        script = (turn("", bash(HELD), bash("touch never")), turn("turned", expect="go left"))
        async with stage(tmp_path, *script) as s:
            running = asyncio.create_task(s.run("first"))
            await s.file("begun")
            steer = await s.session.submit("go left", mode="steer")
            (s.root / "go").touch()
            assert (await running).text == "turned"
            finished = await s.finished()
            assert finished["main.1.0"].outcome == "ok"
            assert finished["main.1.1"].outcome == "aborted"
            assert "steered" in finished["main.1.1"].result.text
            assert not (s.root / "never").exists()
            settlement = (await s.settled())[steer]
            assert (settlement.outcome, settlement.reason) == ("noted", "joined the work in progress")
            await settled_once(s)

    play(story())


def test_a_steer_that_comes_too_late_becomes_a_follow_up(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("slow answer", delay_s=0.5, chunks=5), turn("and left", expect="go left")) as s:
            running = asyncio.create_task(s.run("first"))
            await s.until(lambda body: isinstance(body, r.TurnStarted))
            steer = await s.session.submit("go left", mode="steer")
            assert (await running).text == "slow answer"
            assert (await s.session.wait(steer)).text == "and left"
            assert (await s.bodies(r.SubmissionPlaced))[-1].as_mode == "follow_up"
            await settled_once(s)

    play(story())


def test_a_note_is_kept_for_the_next_request_and_starts_no_run(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("noted it", expect="the key is under the mat.*where")) as s:
            note = await s.session.submit("the key is under the mat", mode="note")
            await s.session.drive()
            assert (await s.settled())[note].outcome == "noted"
            assert not await s.bodies(r.TurnStarted)
            assert (await s.run("where is it?")).text == "noted it"
            await settled_once(s)

    play(story())


def test_a_note_during_a_run_joins_at_the_next_turn(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(HELD)), turn("read it", expect="by the way")) as s:
            running = asyncio.create_task(s.run("first"))
            await s.file("begun")
            note = await s.session.submit("by the way", mode="note")
            (s.root / "go").touch()
            assert (await running).text == "read it"
            assert (await s.finished())["main.1.0"].outcome == "ok"
            assert (await s.session.wait(note)).outcome == "noted"

    play(story())


def test_a_reject_is_refused_while_the_session_is_busy_and_served_when_it_is_not(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(HELD)), "done", "served") as s:
            running = asyncio.create_task(s.run("first"))
            await s.file("begun")
            with pytest.raises(SessionBusyError):
                await s.session.submit("only if idle", mode="reject", request_id="r1")
            (s.root / "go").touch()
            await running
            assert (await s.run("only if idle", mode="reject", request_id="r1")).text == "served"
            await settled_once(s)

    play(story())


def test_a_session_is_free_for_a_reject_as_soon_as_its_last_input_is_settled(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "done", "served") as s:
            running = asyncio.create_task(s.run("first"))
            await s.until(lambda body: isinstance(body, r.SubmissionSettled))
            await s.session.submit("only if idle", mode="reject", request_id="r1")
            await running
            await s.session.drive()
            assert (await s.session.wait("r1")).text == "served"

    play(story())


def test_the_same_request_again_is_admitted_once(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "once") as s:
            assert (await s.run("do it", request_id="r1")).text == "once"
            assert (await s.run("do it", request_id="r1")).text == "once"
            assert len(await s.bodies(r.SubmissionAdmitted)) == 1
            with pytest.raises(UsageError):
                await s.session.submit("do something else", request_id="r1")

    play(story())


def test_an_empty_prompt_is_refused_with_the_remedy(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "never asked") as s:
            with pytest.raises(UsageError, match="say what"):
                await s.session.submit("  \n")
            assert not await s.bodies(r.SubmissionAdmitted)

    play(story())


def test_an_input_past_its_deadline_is_not_begun(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "never asked") as s:
            answer = await s.run("too late", deadline=1.0)
            assert answer.outcome == "failed"
            assert "deadline" in answer.reason
            assert not await s.bodies(r.TurnStarted)

    play(story())


def test_waiting_for_what_was_never_admitted_is_an_error(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "never asked") as s:
            with pytest.raises(UsageError, match="no submission 'nonsense'"):
                await s.session.wait("nonsense")

    play(story())


def test_threads_share_the_space_and_keep_their_conversations_apart(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "main's answer") as s:
            await s.session.submit("for main")
            await s.session.submit("for the other", thread="other")
            await s.session.drive()
            threads = (await s.session.state()).threads
            assert threads["main"].responses == threads["other"].responses == 1
            assert len(threads["main"].entries) == len(threads["other"].entries) == 2
            await settled_once(s)

    play(story())
