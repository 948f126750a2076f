"""Stopping: a command, a request, what waits; from here or from another process; and a race with the end."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from pathlib import Path

import pytest

import perdure
from perdure.record import records as r
from tests.program import functions
from tests.stage import PATIENCE_S, Stage, appears, bash, call, gone, play, stage, took_s, turn

SLEEPER = "echo half > half.txt; echo $$ > pid; echo working; exec sleep 600"


async def running_command(s: Stage) -> tuple[asyncio.Task[perdure.Answer], int]:
    task = asyncio.create_task(s.run("work"))
    path = await s.file("pid")
    while not (text := path.read_text()):
        await asyncio.sleep(0.01)
    return task, int(text)


def test_an_aborted_command_dies_and_its_files_stay_as_they_are(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(SLEEPER)), turn("I see", expect="stopped.*enough")) as s:
            running, _ = await running_command(s)
            await s.session.abort(reason="enough")
            answer = await running
            assert (answer.outcome, answer.reason) == ("aborted", "enough")
            finished = (await s.finished())["main.1.0"]
            assert (finished.outcome, finished.cause) == ("aborted", "abort")
            assert "half.txt" in finished.changed
            assert "The files are as it left them" in finished.result.text
            assert (s.root / "half.txt").read_text() == "half\n"
            settlement = (await s.settled())[answer.submission]
            assert settlement.interrupted == ("main.1.0",)
            assert settlement.advisory is not None and "enough" in settlement.advisory
            assert (await s.run("and now?")).text == "I see"

    play(story())


def test_an_aborted_request_ends_at_once_and_what_was_read_stays_in_the_transcript(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("one two three four five six", delay_s=60.0, chunks=600)) as s:
            shown: list[str] = []
            seen = asyncio.Event()

            def show(event: perdure.Event) -> None:
                if isinstance(event, perdure.TextShown):
                    shown.append(event.text)
                    seen.set()

            running = asyncio.create_task(s.run("talk", emit=show))
            async with asyncio.timeout(PATIENCE_S):
                await seen.wait()
            await s.session.abort(reason="changed my mind")
            answer, waited_s = await took_s(running)
            assert answer.outcome == "aborted"
            assert waited_s < 10.0
            assert (await s.bodies(r.ModelFailed))[0].failure == "cut"
            assert not await s.bodies(r.ModelResponded)
            assert (await s.told()).endswith("".join(shown))

    play(story())


def test_an_aborted_input_that_waits_ends_without_waiting_for_what_runs(tmp_path: Path) -> None:
    async def story() -> None:
        held = "touch begun; while [ ! -e go ]; do sleep 0.02; done"
        async with stage(
            tmp_path, turn("", bash(held), bash("touch second; while [ ! -e on ]; do sleep 0.02; done")), "done"
        ) as s:
            running = asyncio.create_task(s.run("first"))
            await s.file("begun")
            queued = await s.session.submit("second")
            await s.session.abort(queued, reason="never mind")
            (s.root / "go").touch()
            await s.file("second")
            answer = await s.session.wait(queued, timeout_s=PATIENCE_S)
            assert (answer.outcome, answer.reason) == ("aborted", "never mind")
            (s.root / "on").touch()
            assert (await running).outcome == "answered"

    play(story())


def test_calls_that_had_not_begun_end_aborted_with_the_reason(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(SLEEPER), call("write", path="w", content="x"), bash("touch b"))) as s:
            running, _ = await running_command(s)
            await s.session.abort(reason="stop it")
            await running
            finished = await s.finished()
            assert [f.outcome for f in finished.values()] == ["aborted"] * 3
            assert "not run: stop it" in finished["main.1.1"].result.text
            assert not (s.root / "w").exists() and not (s.root / "b").exists()

    play(story())


ABORTER = """
import asyncio, sys, perdure
async def main(home):
    async with perdure.open(home) as opened:
        await (await opened.session("s")).abort(reason="from next door")
asyncio.run(main(sys.argv[1]))
"""


def test_an_abort_from_another_process_is_heard(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(SLEEPER))) as s:
            running, _ = await running_command(s)
            other = await asyncio.create_subprocess_exec(sys.executable, "-c", ABORTER, str(tmp_path / "home"), env=os.environ)
            assert await other.wait() == 0
            answer, waited_s = await took_s(running)
            assert (answer.outcome, answer.reason) == ("aborted", "from next door")
            assert waited_s < 5.0

    play(story())


def test_an_abort_of_one_input_leaves_the_next_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(SLEEPER)), turn("second done", expect="second")) as s:
            first = asyncio.create_task(s.run("first"))
            await s.file("pid")
            second = await s.session.submit("second")
            active = next(iter((await s.session.state()).submissions))
            await s.session.abort(active)
            assert (await first).outcome == "aborted"
            assert (await s.session.wait(second)).text == "second done"

    play(story())


def test_a_settled_input_can_not_be_aborted(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "done", "done again") as s:
            answer = await s.run()
            await s.session.abort(answer.submission)
            await s.session.drive()
            assert (await s.session.wait(answer.submission)).outcome == "answered"
            assert (await s.run("again")).outcome == "answered"

    play(story())


@pytest.mark.parametrize("seed", range(6))
def test_abort_and_finish_race_to_one_settlement(tmp_path: Path, seed: int) -> None:
    """The one that the log has first wins; either way there is one settlement and one result."""

    async def story() -> None:
        chance = random.Random(seed)
        async with stage(tmp_path, turn("", bash("sleep 0.2")), "done") as s:
            running = asyncio.create_task(s.run())
            await s.started("main.1.0")
            await asyncio.sleep(0.15 + 0.12 * chance.random())
            aborted = await s.session.abort(reason="race")
            answer = await running
            records = await s.records()
            settled = [x for x in records if isinstance(x.body, r.SubmissionSettled)]
            assert len(settled) == 1
            assert len([x for x in records if isinstance(x.body, r.CallFinished)]) == 1
            assert (answer.outcome == "aborted") == (aborted.seq < settled[0].seq)

    play(story())


def test_the_aborted_commands_whole_tree_is_dead(tmp_path: Path) -> None:
    async def story() -> None:
        tree = "(setsid sleep 600 & echo $! > inner; wait) & echo $$ > pid; wait"
        async with stage(tmp_path, turn("", bash(tree))) as s:
            running, _ = await running_command(s)
            await s.file("inner")
            await s.session.abort()
            await running
            assert not (await s.finished())["main.1.0"].left
            space = (await s.session.state()).workspace.space
            assert space is not None
            for pid in Path(f"/proc/{space.init.pid}/task/{space.init.pid}/children").read_text().split():
                await gone(int(pid))

    play(story())


def test_an_abort_that_comes_while_nobody_drives_stops_what_runs_when_somebody_does(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(SLEEPER))) as s:
            running, _ = await running_command(s)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await s.session.abort(reason="left behind")
            await s.session.drive()
            finished = (await s.finished())["main.1.0"]
            assert (finished.outcome, finished.cause) == ("aborted", "abort")
            assert (s.root / "half.txt").read_text() == "half\n"
            (settlement,) = (await s.settled()).values()
            assert (settlement.outcome, settlement.reason) == ("aborted", "left behind")
            assert not (await s.session.state()).calls

    play(story())


@pytest.mark.parametrize("custody", ["pidns", "unproven"])
def test_both_custodies_stop_a_command_and_go_on(tmp_path: Path, custody: str) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(SLEEPER)), turn("on", expect="stopped"), custody=custody) as s:
            running, _ = await running_command(s)
            await s.session.abort()
            assert (await running).outcome == "aborted"
            assert (await s.run("again")).text == "on"
            space = (await s.session.state()).workspace.space
            assert space is not None and space.custody == custody

    play(story())


def test_a_stopped_function_may_have_taken_effect_and_that_is_what_the_model_is_told(tmp_path: Path) -> None:
    async def story() -> None:
        tool = perdure.from_function(functions.hang)
        script = (
            turn("", call("hang", mark=str(tmp_path / "pid"))),
            turn("I see", expect="stopped \\(enough\\).*may have taken effect"),
        )
        async with stage(tmp_path, *script, tools=[tool]) as s:
            running = asyncio.create_task(s.run())
            await appears(tmp_path / "pid")
            await s.session.abort(reason="enough")
            assert (await running).outcome == "aborted"
            finished = (await s.finished())["main.1.0"]
            assert finished.outcome == "unknown"
            assert "crash" not in finished.result.text
            assert (await s.run("and now?")).text == "I see"

    play(story())
