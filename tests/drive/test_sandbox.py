"""A session in a sandbox: what cuts a command off there is mended by running it again, and whoever has to know is told."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from perdure.drive.events import Event, Notice
from perdure.drive.recovery import STAMP_SLACK_NS
from perdure.record import records as r
from perdure.record.errors import UsageError
from perdure.space import sandbox, supervisor
from perdure.space.launch import bubblewrap
from perdure.state.threads import SCRATCH_GONE
from tests.stage import Stage, appears, bash, call, play, stage, turn

pytestmark = pytest.mark.skipif(bool(sandbox.problem(bubblewrap())), reason="no sandbox here")

BOX: dict[str, Any] = {"space": "sandbox"}
SLOW = "echo begun >> count; touch begun; while [ ! -e go ]; do sleep 0.02; done; echo end >> count"


def kill_supervisor(s: Stage) -> None:
    known = supervisor.recorded(s.home.spaces.folder(s.session.id))
    assert known is not None
    os.kill(known.init.pid, 9)


async def effects(s: Stage) -> list[str]:
    return [body.effect for body in await s.bodies(r.CallStarted) if body.call.startswith("main")]


async def driven(s: Stage) -> list[str]:
    """Drive until it rests; what was noticed."""
    seen: list[Event] = []
    await s.run(emit=seen.append)
    return [event.text for event in seen if isinstance(event, Notice)]


# ---- classes of effect -------------------------------------------------------------------------------------------------------


def test_a_command_of_a_hermetic_sandbox_changes_nothing_but_the_workspace(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo one > one")), "done", **BOX) as s:
            assert await driven(s) == []
            assert await effects(s) == ["workspace"]
            (opened,) = await s.bodies(r.SpaceOpened)
            assert opened.hermetic and opened.self_test and all(opened.self_test.values())
            assert (s.root / "one").read_text() == "one\n"

    play(story())


def test_with_the_network_a_command_may_reach_outside_and_people_are_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("true")), "done", network=True, **BOX) as s:
            (notice,) = await driven(s)
            assert "not hermetic" in notice and "network: commands can reach the network" in notice
            assert await effects(s) == ["external"]
            (opened,) = await s.bodies(r.SpaceOpened)
            assert not opened.hermetic and not opened.self_test["network"]

    play(story())


@pytest.mark.parametrize("capture", ["watch", "scan"])
def test_what_leads_out_of_the_tree_takes_the_label_away_for_as_long_as_it_is_there(tmp_path: Path, capture: str) -> None:
    """A FIFO that somebody outside may read, and a file with a name outside, there from the beginning or made meanwhile."""

    async def story() -> None:
        look = turn("", bash("cat kept"))
        async with stage(tmp_path, *[look, "done"] * 5, capture=capture, **BOX) as s:
            (s.root / "kept").write_text("kept\n")
            outside = tmp_path / "outside"
            os.link(s.root / "kept", outside)
            await s.run("linked", request_id="1")
            outside.unlink()
            await s.run("alone", request_id="2")
            os.mkfifo(s.root / "fifo")
            await s.run("fifo", request_id="3")
            (s.root / "fifo").unlink()
            os.link(s.root / "kept", s.root / "twice")
            await s.run("two names in the tree", request_id="4")
            os.link(s.root / "twice", outside)
            await s.run("a third one outside", request_id="5")
            assert await effects(s) == ["external", "workspace", "external", "workspace", "external"]

    play(story())


def test_a_command_that_made_a_way_out_is_not_run_again(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("mkfifo way; touch begun; sleep 300")), "done", **BOX) as s:
            running = asyncio.create_task(s.run())
            await appears(s.root / "begun")
            kill_supervisor(s)
            assert (await running).outcome == "answered"
            finished = (await s.finished())["main.1.0"]
            assert finished.outcome == "interrupted" and not (s.root / "begun").exists()

    play(story())


# ---- recovery ----------------------------------------------------------------------------------------------------------------


def test_a_command_that_is_cut_off_is_undone_and_run_again_and_the_model_hears_of_scratch_files_only(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash(SLOW)), turn("", bash("true")), "done", **BOX) as s:
            running = asyncio.create_task(s.run())
            await appears(s.root / "begun")
            kill_supervisor(s)
            await s.until(lambda body: isinstance(body, r.CallStarted) and body.attempt == 2)
            await appears(s.root / "begun")
            (s.root / "go").touch()
            assert (await running).outcome == "answered"
            assert (s.root / "count").read_text() == "begun\nend\n"
            assert [body.outcome for body in (await s.finished()).values()] == ["ok", "ok"]
            assert [body.decision for body in await s.bodies(r.Recovered)] == ["undo_start"]
            told = await s.told()
            assert told.count(SCRATCH_GONE) == 1 and "cut off" not in told

    play(story())


def test_what_is_too_large_to_be_stored_is_moved_aside_out_of_a_sandbox_too(tmp_path: Path) -> None:
    """A mount lies between the workspace and the state folder there, and no rename leads over one."""

    async def story() -> None:
        command = "truncate -s 300M large; echo end >> large; " + SLOW
        async with stage(tmp_path, turn("", bash(command)), "done", **BOX) as s:
            running = asyncio.create_task(s.run())
            await appears(s.root / "begun")
            kill_supervisor(s)
            await s.until(lambda body: isinstance(body, r.CallStarted) and body.attempt == 2)
            await appears(s.root / "begun")
            (s.root / "go").touch()
            assert (await running).outcome == "answered"
            folder = s.home.spaces.folder(s.session.id) / "workspace" / "quarantine"
            (aside,) = [path for path in folder.rglob("*") if path.is_file()]
            assert aside.name == "large" and aside.stat().st_size == (300 << 20) + 4
            assert aside.read_bytes()[-4:] == b"end\n" and aside.stat().st_blocks * 512 < 1 << 20
            assert (s.root / "large").stat().st_size == (300 << 20) + 4

    play(story())


def test_a_command_is_run_again_twice_and_no_more(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo $$ > begun; sleep 300")), "done", **BOX) as s:
            running = asyncio.create_task(s.run())
            for n in range(3):
                await s.until(lambda body, n=n: isinstance(body, r.CallStarted) and body.attempt == n + 1)  # type: ignore[misc]
                await appears(s.root / "begun")
                kill_supervisor(s)
            assert (await running).outcome == "answered"
            assert [body.decision for body in await s.bodies(r.Recovered)] == ["undo_start", "undo_start", "undo_interrupt"]
            finished = (await s.finished())["main.1.0"]
            assert finished.outcome == "interrupted"
            assert "each of the 3 times that it ran" in finished.result.text
            assert "could not reach outside" in finished.result.text and "may or may not" not in finished.result.text
            assert not (s.root / "begun").exists()

    play(story())


def test_two_such_calls_end_the_prompt_and_say_what_became_of_them(tmp_path: Path) -> None:
    async def story() -> None:
        poison = turn("", bash("echo $$ > begun; sleep 300"))
        async with stage(tmp_path, poison, poison, "done", **BOX) as s:
            running = asyncio.create_task(s.run())
            for call, attempt in [("main.1.0", 1), ("main.1.0", 2), ("main.1.0", 3), ("main.2.0", 1)]:
                await s.until(
                    lambda body, c=call, n=attempt: isinstance(body, r.CallStarted) and (body.call, body.attempt) == (c, n)
                )  # type: ignore[misc]
                await appears(s.root / "begun")
                kill_supervisor(s)
            answer = await running
            assert (answer.outcome, "took its Space down twice" in answer.reason) == ("failed", True)
            finished = await s.finished()
            assert [finished[id].outcome for id in ("main.1.0", "main.2.0")] == ["interrupted", "aborted"]
            assert "was cut off and undone each time it ran" in finished["main.2.0"].result.text

    play(story())


def test_a_command_whose_files_people_changed_since_is_not_run_again(tmp_path: Path) -> None:
    """What they made of its file is kept, with what it had written there; once more would be twice."""

    async def story() -> None:
        async with stage(tmp_path, turn("", bash(SLOW)), "done", **BOX) as s:
            running = asyncio.create_task(s.run())
            await appears(s.root / "begun")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            kill_supervisor(s)
            await asyncio.sleep(STAMP_SLACK_NS / 1e9 + 0.2)
            with open(s.root / "count", "a") as file:
                file.write("hers\n")
            assert (await s.session.drive()).rest.waiting_for == "changed_after_crash"
            await s.session.answer("changed_after_crash", "keep")
            assert (await s.session.drive()).rest.status == "settled"
            assert (await s.finished())["main.1.0"].outcome == "interrupted"
            assert (s.root / "count").read_text() == "begun\nhers\n"
            assert not (s.root / "begun").exists()

    play(story())


def test_a_new_life_after_idling_is_told_only_where_a_command_could_have_left_something(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(
            tmp_path, turn("", call("list")), "looked", turn("", bash("touch /tmp/x")), "touched", "again", **BOX
        ) as s:
            await s.run("one", request_id="1")
            kill_supervisor(s)
            await s.run("two", request_id="2")
            assert SCRATCH_GONE not in await s.told()
            kill_supervisor(s)
            await s.run("three", request_id="3")
            assert (await s.told()).count(SCRATCH_GONE) <= 1

    play(story())


# ---- what a machine may lack -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"space": "box"}, {"space": "sandbox", "custody": "unproven"}, {"network": True}, {"binds": ["/usr"]}]
)
def test_what_does_not_go_together_is_refused_before_anything_is_stored(tmp_path: Path, options: dict[str, Any]) -> None:
    async def story() -> None:
        with pytest.raises(UsageError, match="host"):
            async with stage(tmp_path, "done", **options):
                pass

    play(story())


def test_without_bubblewrap_a_sandbox_is_refused_and_an_old_session_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        async with stage(tmp_path, "one", "two", **BOX) as s:
            assert (await s.run("one", request_id="1")).outcome == "answered"
        with monkeypatch.context() as patch:
            for module in ("perdure.space.host", "perdure.engine.hosting"):
                patch.setattr(f"{module}.bubblewrap", lambda: None)
            async with stage(tmp_path) as s:
                answer = await s.run("two", request_id="2")
                assert answer.waiting_for == "space_unavailable" and "--space host" in answer.detail
            with pytest.raises(UsageError, match=r"bubblewrap.*--space host"):
                async with stage(tmp_path, "three", name="t", **BOX):
                    pass
        async with stage(tmp_path) as s:
            await s.session.drive()
            assert [body.outcome for body in (await s.settled()).values()] == ["answered", "answered"]

    play(story())


def test_a_toolchain_that_is_gone_is_waited_for_by_name(tmp_path: Path) -> None:
    async def story() -> None:
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "name").write_text("tool\n")
        command = f"cat {tools}/name"
        async with stage(tmp_path, turn("", bash(command)), "one", turn("", bash(command)), "two", binds=[tools], **BOX) as s:
            await s.run("one", request_id="1")
            assert (await s.finished())["main.1.0"].result.text == "tool\n"
            moved = tools.rename(tmp_path / "moved")
            kill_supervisor(s)
            answer = await s.run("two", request_id="2")
            assert answer.waiting_for == "space_unavailable" and str(tools) in answer.detail and "put it back" in answer.detail
            moved.rename(tools)
            await s.session.drive()
            assert [body.outcome for body in (await s.finished()).values()] == ["ok", "ok"]

    play(story())
