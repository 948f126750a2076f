"""A subagent: a call that is a conversation of its own, in the same directory, driver, budget and log."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import perdure
from perdure.record import records as r
from perdure.record.errors import UsageError
from perdure.record.records import Budget
from tests.stage import bash, call, play, stage, turn


def task(prompt: str) -> dict[str, object]:
    return call("task", prompt=prompt)


def test_its_answer_is_the_calls_result_and_the_rest_stays_with_it(tmp_path: Path) -> None:
    async def story() -> None:
        tasks = {"^count": [turn("Looking.", bash("echo one > a; ls")), turn("There is one file.", expect="a")]}
        turns = turn("", task("count the files")), turn("One.", expect="There is one file.")
        async with stage(tmp_path, *turns, tasks=tasks) as s:
            assert (await s.run()).text == "One."
            finished = await s.finished()
            assert list(finished) == ["main.1.0.1.0", "main.1.0"]
            assert (finished["main.1.0"].outcome, finished["main.1.0"].result.text) == ("ok", "There is one file.")
            assert "Looking." not in await s.told()
            assert list((await s.session.state()).threads) == ["main"]
            assert {stored.thread for stored in await s.records() if isinstance(stored.body, r.TurnStarted)} == {
                "main",
                "main.1.0",
            }

    play(story())


def test_several_are_answered_each_with_its_own_in_the_models_order(tmp_path: Path) -> None:
    async def story() -> None:
        tasks = {"^first": [turn("", bash("echo 1 >> log")), "one"], "^second": [turn("", bash("echo 2 >> log")), "two"]}
        turns = turn("", task("first"), task("second"), bash("cat log")), turn("done", expect="one.*two.*1\n2")
        async with stage(tmp_path, *turns, tasks=tasks) as s:
            assert (await s.run()).text == "done"

    play(story())


def test_it_cannot_give_tasks_to_others(tmp_path: Path) -> None:
    async def story() -> None:
        tasks = {"^outer": [turn("", task("inner")), turn("I did it.", expect="do this yourself")]}
        async with stage(tmp_path, turn("", task("outer")), turn("done", expect="I did it."), tasks=tasks) as s:
            assert (await s.run()).text == "done"

    play(story())


def test_it_does_not_know_what_the_other_has_read(tmp_path: Path) -> None:
    """Each writes only over what it has seen itself."""

    async def story() -> None:
        tasks = {"^change": [turn("", call("read", path="a")), turn("", call("write", path="a", content="theirs\n")), "changed"]}
        turns = (
            turn("", call("read", path="a")),
            turn("", task("change it")),
            turn("", call("write", path="a", content="mine\n")),
            turn("done", expect="changed"),
        )
        async with stage(tmp_path, *turns, tasks=tasks) as s:
            (s.root / "a").write_text("first\n")
            assert (await s.run()).text == "done"
            assert (await s.finished())["main.3.0"].outcome == "error"
            assert (s.root / "a").read_text() == "theirs\n"

    play(story())


# ---- when it does not come to an end ---------------------------------------------------------------------------------------


def test_an_abort_of_the_prompt_stops_its_command(tmp_path: Path) -> None:
    async def story() -> None:
        tasks = {"^wait": [turn("", bash("touch begun; sleep 1000"))]}
        async with stage(tmp_path, turn("", task("wait for it")), "I am here.", tasks=tasks) as s:
            submission = await s.session.submit("go")
            driving = asyncio.create_task(s.session.drive())
            await s.file("begun")
            await s.session.abort(submission, reason="enough")
            await driving
            finished = await s.finished()
            assert [body.outcome for body in finished.values()] == ["aborted", "aborted"]
            assert "What it did to the files stays" in finished["main.1.0"].result.text
            assert {body.outcome for body in (await s.settled()).values()} == {"aborted"}
            assert (await s.run("and now")).text == "I am here."

    play(story())


def test_what_it_spends_counts_for_the_prompt(tmp_path: Path) -> None:
    async def story() -> None:
        tasks = {"^talk": [turn("x" * 4000, bash("true")), "y" * 4000, "never"]}
        turns = turn("", task("talk much")), turn("", task("talk much")), "never"
        async with stage(tmp_path, *turns, tasks=tasks, turn_budget=Budget(tokens=3000)) as s:
            answer = await s.run()
            assert answer.outcome == "failed" and "tokens" in answer.reason
            assert not any(body.call == "main.2.0" and body.outcome == "ok" for body in await s.bodies(r.CallFinished))

    play(story())


def test_its_failure_is_told_and_the_work_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        tasks = {"^fail": [turn("", error={"status": 400})]}
        turns = turn("", task("fail at once")), turn("done", expect="stopped before it was done.*status 400")
        async with stage(tmp_path, *turns, tasks=tasks) as s:
            assert (await s.run()).text == "done"
            assert (await s.finished())["main.1.0"].outcome == "interrupted"

    play(story())


def test_a_driver_that_leaves_in_its_middle_is_followed_by_one_that_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        tasks = {"^long": [turn("", bash("touch begun; until test -e go; do sleep 0.02; done; echo x >> count")), "finished"]}
        async with stage(tmp_path, turn("", task("long work")), turn("done", expect="finished"), tasks=tasks) as s:
            submission = await s.session.submit("go")
            driving = asyncio.create_task(s.session.drive())
            await s.file("begun")
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
            (s.root / "go").touch()
            await s.session.drive()
            assert (await s.session.wait(submission)).text == "done"
            assert (s.root / "count").read_text() == "x\n"
            assert len([body for body in await s.bodies(r.CallStarted) if body.call == "main.1.0"]) == 1

    play(story())


@pytest.mark.parametrize("mode", ["follow_up", "steer", "note"])
def test_what_people_ask_it_is_settled_before_its_call_ends(tmp_path: Path, mode: perdure.api.SubmissionMode) -> None:
    async def story() -> None:
        wait = bash("touch begun; until test -e go; do sleep 0.02; done")
        tasks = {"^long": [turn("", wait), "finished", "and more"]}
        async with stage(tmp_path, turn("", task("long work")), "done", tasks=tasks) as s:
            running = asyncio.create_task(s.run())
            await s.file("begun")
            asked = await s.session.submit("also this", mode=mode, thread="main.1.0")
            (s.root / "go").touch()
            assert (await running).text == "done"
            assert not (await s.session.state()).submissions
            assert asked in await s.settled()
            expected = "and more" if mode == "follow_up" else "finished"
            assert ((await s.finished())["main.1.0"].outcome, (await s.finished())["main.1.0"].result.text) == ("ok", expected)

    play(story())


def test_a_request_has_no_id_that_a_subagents_task_may_get(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "done") as s:
            with pytest.raises(UsageError, match="choose another"):
                await s.session.submit("mine", request_id="task:main.1.0")
            assert await s.session.submit("mine", request_id="task:7") == "task:7"

    play(story())
