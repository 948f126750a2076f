"""Limits of turns, tokens, time and repeated failure: counted in the log, and nothing that hangs outlives its time."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import perdure
from perdure.record import records as r
from perdure.record.records import Budget
from tests.program import functions
from tests.stage import bash, call, play, stage, took_s, turn

OVER_S = 10.0
"""How much later than its deadline a busy machine may end something."""


def test_the_turns_of_one_input_are_limited(tmp_path: Path) -> None:
    async def story() -> None:
        again = turn("", bash("echo x >> count"))
        async with stage(tmp_path, again, again, again, "never asked", turn_budget=Budget(turns=2)) as s:
            answer = await s.run()
            assert (answer.outcome, answer.reason) == ("failed", "turn budget: turns of 2 is used up")
            assert (s.root / "count").read_text() == "x\nx\n"
            assert (await s.bodies(r.BudgetExhausted))[0].limit == "turns"

    play(story())


def test_the_last_allowed_turns_answer_is_an_answer(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("true")), "made it", turn_budget=Budget(turns=2)) as s:
            assert (await s.run()).text == "made it"
            assert not await s.bodies(r.BudgetExhausted)

    play(story())


def test_a_turn_budget_begins_anew_with_each_input_and_a_session_budget_does_not(tmp_path: Path) -> None:
    async def story() -> None:
        limits = {"turn_budget": Budget(turns=1), "session_budget": Budget(turns=2)}
        async with stage(tmp_path, "one", "two", "never asked", **limits) as s:
            assert (await s.run("1")).text == "one"
            assert (await s.run("2")).text == "two"
            answer = await s.run("3")
            assert (answer.outcome, answer.reason) == ("failed", "session budget: turns of 2 is used up")
            assert len(await s.bodies(r.TurnStarted)) == 2

    play(story())


def test_a_budget_is_counted_in_the_log_over_restarts(tmp_path: Path) -> None:
    async def story() -> None:
        again = turn("", bash("true"))
        async with stage(tmp_path, *[again] * 5, turn_budget=Budget(turns=3)) as s:
            for n in range(1, 3):
                driving = asyncio.create_task(s.run(request_id="r"))
                await s.started(f"main.{n}.0")
                driving.cancel()
                await asyncio.gather(driving, return_exceptions=True)
        async with stage(tmp_path) as s:
            assert (await s.run(request_id="r")).reason == "turn budget: turns of 3 is used up"
            assert len(await s.bodies(r.TurnStarted)) == 3

    play(story())


def test_tokens_are_limited(tmp_path: Path) -> None:
    async def story() -> None:
        again = turn("", bash("true"))
        async with stage(tmp_path, *[again] * 50, session_budget=Budget(tokens=1000)) as s:
            answer = await s.run()
            assert answer.reason == "session budget: tokens of 1000 is used up"
            spent = (await s.session.state()).usage.session.tokens.total
            assert spent >= 1000
            # It stopped at the first turn that went over.
            last = (await s.bodies(r.ModelResponded))[-1].usage.total
            assert spent - last < 1000

    play(story())


def test_the_same_failure_again_and_again_ends_the_input(tmp_path: Path) -> None:
    async def story() -> None:
        fails = turn("", bash("echo no; false"))
        async with stage(tmp_path, *[fails] * 10, turn_budget=Budget(failures=3)) as s:
            assert (await s.run()).reason == "turn budget: failures of 3 is used up"
            assert len(await s.finished()) == 3

    play(story())


def test_other_failures_or_a_success_between_do_not_count_as_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        a, b, good = bash("echo a; false"), bash("echo b; false"), bash("true")
        turns = [turn("", c) for c in (a, a, b, a, a, good, a, a)]
        async with stage(tmp_path, *turns, "done", turn_budget=Budget(failures=3)) as s:
            assert (await s.run()).text == "done"

    play(story())


def test_a_hung_command_does_not_outlive_the_deadline(tmp_path: Path) -> None:
    async def story() -> None:
        hung = "trap '' TERM; touch begun; while :; do sleep 1; done"
        async with stage(tmp_path, turn("", bash(hung)), "never asked", turn_budget=Budget(wall_s=1.0)) as s:
            answer, took = await took_s(s.run())
            assert answer.outcome == "failed"
            assert "wall_s of 1" in answer.reason
            assert took < 1.0 + 2.0 + OVER_S  # the grace between SIGTERM and SIGKILL is 2 s
            finished = (await s.finished())["main.1.0"]
            assert finished.outcome in ("aborted", "error")
            assert "begun" in finished.changed

    play(story())


def test_a_hung_model_does_not_outlive_the_deadline(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("never comes", delay_s=600.0), session_budget=Budget(wall_s=1.0)) as s:
            answer, took = await took_s(s.run())
            assert (answer.outcome, answer.reason) == ("failed", "session budget: wall_s of 1 is used up")
            assert took < 1.0 + OVER_S

    play(story())


def test_a_hung_function_does_not_outlive_the_deadline_and_its_outcome_is_unknown(tmp_path: Path) -> None:
    async def story() -> None:
        tools = [perdure.from_function(functions.hang)]
        script = turn("", call("hang", mark=str(tmp_path / "begun")))
        async with stage(tmp_path, script, tools=tools, turn_budget=Budget(wall_s=1.5)) as s:
            answer, took = await took_s(s.run())
            assert answer.outcome == "failed"
            assert took < 1.5 + OVER_S
            assert (await s.finished())["main.1.0"].outcome == "unknown"
            pid = int((tmp_path / "begun").read_text())
            assert not Path(f"/proc/{pid}").exists()

    play(story())


def test_a_pause_before_a_retry_ends_at_the_deadline(tmp_path: Path) -> None:
    async def story() -> None:
        busy = turn("later", error={"status": 429, "after_s": 50.0})
        async with stage(tmp_path, busy, turn_budget=Budget(wall_s=1.0)) as s:
            answer, took = await took_s(s.run())
            assert "wall_s of 1" in answer.reason
            assert took < 1.0 + OVER_S

    play(story())


def test_an_inputs_own_deadline_stops_its_command(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("sleep 600"))) as s:
            answer, took = await took_s(s.run(deadline=time.time() + 1.0))
            assert answer.outcome == "failed"
            assert "deadline" in answer.reason
            assert took < 1.0 + OVER_S

    play(story())


@pytest.mark.parametrize("limit", [Budget(wall_s=0.5), Budget(turns=1), Budget(tokens=1)])
def test_the_session_can_be_used_after_a_turn_budget_ran_out(tmp_path: Path, limit: Budget) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("sleep 1")), "at last", turn_budget=limit) as s:
            assert (await s.run()).outcome == "failed"
            answer = await s.run("again")
            assert (answer.outcome, answer.text) == ("answered", "at last")

    play(story())
