"""Driving from this process: one driver a session, many sessions at once, leaving, taking over, and costing nothing while idle."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import perdure
from perdure.record import records as r
from perdure.record.errors import SessionBusyError, StaleEpochError
from perdure.space import death
from tests.stage import PATIENCE_S, Stage, bash, gone, home_at, play, stage, took_s, turn, write_script

HELD = "touch begun; while [ ! -e go ]; do sleep 0.02; done; echo end >> ends"

# ---- two drivers -----------------------------------------------------------------------------------------------------------


def test_a_second_driver_is_told_who_drives(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(HELD)), "done") as s:
            running = asyncio.create_task(s.run())
            await s.file("begun")
            with pytest.raises(SessionBusyError, match=f"process {os.getpid()}"):
                await s.session.drive()
            (s.root / "go").touch()
            assert (await running).text == "done"

    play(story())


def test_taking_over_adopts_the_command_and_the_old_driver_does_nothing_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(HELD)), "done") as s:
            old = asyncio.create_task(s.run())
            await s.file("begun")
            async with home_at(tmp_path / "home") as other:
                session = await other.session("s")
                new = asyncio.create_task(session.drive(take=True))
                taken = await s.until(lambda body: isinstance(body, r.Recovered) and body.decision == "attach")
                (s.root / "go").touch()
                await new
            with pytest.raises(StaleEpochError):
                await old
            records = await s.records()
            assert all(x.epoch in (0, taken.epoch) for x in records if x.seq > taken.seq), (
                "nothing of the old epoch after the take-over"
            )
            assert len(await s.bodies(r.CallStarted)) == 1
            assert (await s.finished())["main.1.0"].outcome == "ok"
            assert (s.root / "ends").read_text() == "end\n"
            assert len(await s.bodies(r.SubmissionSettled)) == 1

    play(story())


def test_of_two_watchers_of_one_death_one_takes_over(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(HELD)), "done") as s:
            driver = await a_driver(tmp_path, s)
            await s.file("begun")
            async with home_at(tmp_path / "home") as one, home_at(tmp_path / "home") as two:
                watchers = [asyncio.create_task(each.watch()) for each in (one, two)]
                await asyncio.sleep(0.3)  # both wait for the death by now; if not, the test is only easier
                driver.kill()
                await driver.wait()
                await s.until(lambda body: isinstance(body, r.EpochRaised) and body.owner.pid == os.getpid())
                (s.root / "go").touch()
                await s.until(lambda body: isinstance(body, r.EpochReleased))
                for watcher in watchers:
                    watcher.cancel()
                await asyncio.gather(*watchers, return_exceptions=True)
            assert len(await s.bodies(r.EpochRaised)) == 2
            assert (s.root / "ends").read_text() == "end\n"

    play(story())


# ---- leaving and taking over -----------------------------------------------------------------------------------------------

DRIVER = """
import asyncio, sys, perdure
async def main(home):
    async with perdure.open(home) as opened:
        await (await opened.session("s")).run("go", request_id="r")
asyncio.run(main(sys.argv[1]))
"""


async def a_driver(tmp_path: Path, s: Stage) -> asyncio.subprocess.Process:
    """Another process that drives the session."""
    return await asyncio.create_subprocess_exec(sys.executable, "-c", DRIVER, str(tmp_path / "home"), env=os.environ)


def test_a_driver_that_is_told_to_go_lets_go_at_once_and_the_next_one_adopts_what_runs(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(HELD)), "done") as s:
            driving = asyncio.create_task(s.run(request_id="r"))
            await s.file("begun")
            driving.cancel()
            _, took = await took_s(asyncio.gather(driving, return_exceptions=True))
            assert took < 2.0
            row = await s.session.row()
            assert (row.held_by, row.rest.status, row.rest.waiting_for) == (None, "waiting", "needs_driver")
        async with stage(tmp_path) as s:
            (s.root / "go").touch()
            assert (await s.run(request_id="r")).text == "done"
            assert (s.root / "ends").read_text() == "end\n"
            assert len(await s.bodies(r.CallStarted)) == 1

    play(story())


@pytest.mark.parametrize("after_ms", range(0, 160, 20))
def test_a_driver_that_is_told_to_go_at_any_moment_leaves_a_log_that_goes_on(tmp_path: Path, after_ms: int) -> None:
    async def story() -> None:
        script = turn("", bash("echo 1 >> a")), turn("", bash("echo 2 >> a"), bash("echo 3 >> a")), "done"
        async with stage(tmp_path, *script) as s:
            driving = asyncio.create_task(s.run(request_id="r"))
            await asyncio.sleep(after_ms / 1000)
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
            assert (await s.session.row()).held_by is None
        async with stage(tmp_path) as s:
            assert (await s.run(request_id="r")).text == "done"
            assert (s.root / "a").read_text() == "1\n2\n3\n"
            assert len(await s.bodies(r.CallFinished)) == len(await s.bodies(r.CallProposed)) == 3
            assert len(await s.bodies(r.ModelResponded)) == 3
            assert len(await s.bodies(r.SubmissionSettled)) == 1

    play(story())


def test_an_answer_whose_driver_was_killed_in_the_middle_is_continued_and_not_begun_again(tmp_path: Path) -> None:
    async def story() -> None:
        words = "".join(f"<{n}>" for n in range(100))
        async with stage(tmp_path, turn(words, chunks=100, delay_s=3.0), turn("and then", expect="thanks")) as s:
            driver = await a_driver(tmp_path, s)
            shown = ""
            async for event in s.session.observe():
                if isinstance(event, perdure.TextShown):
                    shown += event.text
                if len(shown) > 20:
                    break
            driver.kill()
            await driver.wait()
            continued: list[str] = []
            answer = await s.run(
                request_id="r", emit=lambda e: continued.append(e.text) if isinstance(e, perdure.TextShown) else None
            )
            assert answer.text == words
            recovered = (await s.bodies(r.Recovered))[0]
            assert recovered.decision == "continue"
            assert recovered.partial.startswith(shown)
            assert words == recovered.partial + "".join(continued), "nothing is said twice"
            assert (await s.run("thanks")).text == "and then"

    play(story())


def test_a_watcher_takes_over_from_a_killed_process_and_its_command_runs_on(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(HELD)), "done") as s:
            driver = await a_driver(tmp_path, s)
            await s.file("begun")
            watching = asyncio.create_task(s.opened.watch())
            driver.kill()
            await driver.wait()
            await s.until(lambda body: isinstance(body, r.Recovered) and body.decision == "attach")
            (s.root / "go").touch()
            assert (await s.session.wait("r", timeout_s=PATIENCE_S)).text == "done"
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            assert (s.root / "ends").read_text() == "end\n"

    play(story())


def test_a_watcher_leaves_what_ended_in_order_alone(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(HELD)), "done") as s:
            driver = await a_driver(tmp_path, s)
            await s.file("begun")
            watching = asyncio.create_task(s.opened.watch(once=True))
            (s.root / "go").touch()
            assert await driver.wait() == 0
            async with asyncio.timeout(PATIENCE_S):
                await watching
            assert len(await s.bodies(r.EpochRaised)) == 1

    play(story())


def test_a_watcher_goes_on_with_what_a_driver_left_behind(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(HELD)), "done") as s:
            driving = asyncio.create_task(s.run(request_id="r"))
            await s.file("begun")
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
            (s.root / "go").touch()
            await s.opened.watch(once=True)
            assert (await s.session.wait("r", 1.0)).text == "done"
            assert (s.root / "ends").read_text() == "end\n"

    play(story())


def test_a_watcher_leaves_a_session_that_waits_for_somebody_alone_until_something_comes_in(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "done") as s:
            away = s.root.rename(tmp_path / "away")
            assert (await s.run(request_id="r")).waiting_for == "root_replaced"
            epoch = (await s.session.row()).epoch
            await s.opened.watch(once=True)
            assert (await s.session.row()).epoch == epoch
            away.rename(s.root)
            await s.session.submit("look again", mode="note")
            await s.opened.watch(once=True)
            assert (await s.session.wait("r", 1.0)).text == "done"

    play(story())


# ---- many at once ----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def many(tmp_path: Path, count: int, script: str) -> AsyncIterator[tuple[perdure.Opened, list[perdure.Session]]]:
    async with home_at(tmp_path / "home") as opened:
        sessions = []
        for n in range(count):
            root = tmp_path / f"root-{n}"
            root.mkdir()
            sessions.append(await opened.session(f"s{n}", directory=root, model=script))
        yield opened, sessions


def test_twenty_sessions_at_once_do_not_disturb_each_other(tmp_path: Path) -> None:
    """One of them can't go on at all, another fails for good; all others are answered."""

    async def story() -> None:
        script = write_script(tmp_path / "s.json", turn("", bash("echo $PWD > where; sleep 0.2")), "done")
        fails = write_script(tmp_path / "fails.json", turn("", error={"status": 401}))
        gone_script = write_script(tmp_path / "gone.json", "never")
        async with many(tmp_path, 18, script) as (opened, sessions):
            for name, model in (("failing", fails), ("stuck", gone_script)):
                (tmp_path / f"root-{name}").mkdir()
                sessions.append(await opened.session(name, directory=tmp_path / f"root-{name}", model=model))
            (tmp_path / "gone.json").unlink()
            ids = [await session.submit("go") for session in sessions]
            async with asyncio.timeout(60.0):
                await opened.watch(once=True)
            answers = [await s.wait(id, 1.0) for s, id in zip(sessions[:-1], ids, strict=False)]
            assert [a.text for a in answers[:18]] == ["done"] * 18
            assert answers[18].outcome == "failed"
            assert (await sessions[19].row()).rest.waiting_for == "model_unavailable"
            for n in range(18):
                assert (tmp_path / f"root-{n}" / "where").read_text().strip() == str(tmp_path / f"root-{n}")

    play(story())


def test_a_watcher_serves_what_comes_in_while_it_watches(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "one", "two") as s:
            watching = asyncio.create_task(s.opened.watch())
            first = await s.session.submit("1")
            assert (await s.session.wait(first, PATIENCE_S)).text == "one"
            second = await s.session.submit("2")
            assert (await s.session.wait(second, PATIENCE_S)).text == "two"
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    play(story())


# ---- idle is free ----------------------------------------------------------------------------------------------------------


def test_a_session_that_waits_holds_no_process(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("true")), "done", turn("", bash("echo back")), "again") as s:
            await s.run()
            space = (await s.session.state()).workspace.space
            assert space is not None
            await gone(space.init.pid)
            assert (await s.run()).text == "again"
            assert (await s.finished())["main.3.0"].result.text == "back\n"
            # It left in order, so nothing was lost.
            assert not [body for body in await s.bodies(r.WorkspaceChanged) if body.path_count]

    play(story())


def test_a_background_process_keeps_its_supervisor(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(
            tmp_path, turn("", bash("exec sleep 600", background=True)), "done", turn("", bash("true")), "still"
        ) as s:
            await s.run()
            space = (await s.session.state()).workspace.space
            assert space is not None
            await asyncio.sleep(2.5)  # several times its idle time
            assert death.dead(space.init, space.incarnation.boot_id) is False
            await s.run()
            assert [p.command for p in (await s.finished())["main.3.0"].left] == ["sleep 600"]
            os.kill(space.init.pid, signal.SIGKILL)

    play(story())


# ---- giving up -------------------------------------------------------------------------------------------------------------

CRASHER = """
import asyncio, os, sys, perdure
from perdure.record import records as r
def die(event):
    if isinstance(event, perdure.Recorded) and isinstance(event.stored.body, r.SpaceOpened | r.Recovered | r.SettingsChanged | r.TurnStarted):
        os._exit(9)
async def main(home):
    async with perdure.open(home) as opened:
        print((await (await opened.session("s")).run("go", request_id="r", emit=die)).outcome)
asyncio.run(main(sys.argv[1]))
"""


def test_ten_drivers_that_crash_without_progress_are_enough(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "never asked", turn("alive", expect="crashed")) as s:
            for _ in range(10):
                driver = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", CRASHER, str(tmp_path / "home"), env=os.environ
                )
                assert await driver.wait() == 9
            answer = await s.run(request_id="r")
            assert answer.outcome == "failed"
            assert "10 drivers in a row crashed without progress" in answer.reason
            assert not await s.bodies(r.ModelResponded)

    play(story())


def test_a_recovery_that_crashes_each_time_is_given_up_with_its_call_unknown(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo begun > begun; exec sleep 60")), "never asked") as s:
            driving = asyncio.create_task(s.run("go", request_id="r"))
            await s.file("begun")
            driving.cancel()
            await asyncio.gather(driving, return_exceptions=True)
            (opened,) = await s.bodies(r.SpaceOpened)
            os.kill(opened.init.pid, signal.SIGKILL)
            for _ in range(10):
                driver = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", CRASHER, str(tmp_path / "home"), env=os.environ
                )
                assert await driver.wait() == 9
            answer = await s.run(request_id="r")
            assert answer.outcome == "failed"
            assert "drivers in a row crashed without progress" in answer.reason
            (finished,) = await s.bodies(r.CallFinished)
            assert finished.outcome == "unknown"

    play(story())
