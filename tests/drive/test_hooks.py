"""People's hooks at work: commands and functions, what they see, what they decide, and what they can't hold up."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.drive.events import Event, Notice
from perdure.program.hooks import Hook, Hooks
from perdure.record import records as r
from tests.stage import Stage, appears, bash, call, gone, play, stage, turn

FUNCTIONS = "tests.program.hook_functions"


@asynccontextmanager
async def hooked(tmp_path: Path, *turns: Any, hooks: Hooks, **options: Any) -> AsyncIterator[Stage]:
    async with stage(tmp_path, *turns, **options) as s:
        s.home.hooks = lambda directory: hooks
        yield s


def answering(answer: dict[str, Any]) -> Hook:
    return Hook(f"echo '{json.dumps(answer)}'")


async def notices(s: Stage) -> list[str]:
    seen: list[Event] = []
    await s.run(emit=seen.append)
    return [event.text for event in seen if isinstance(event, Notice)]


async def decided(s: Stage) -> list[tuple[str, str, str, str]]:
    return [(body.call, body.verdict, body.by, body.reason) for body in await s.bodies(r.CallDecided)]


# ---- before a call -----------------------------------------------------------------------------------------------------------


def test_a_command_sees_the_call_and_denies_it_with_a_reason_that_the_model_reads(tmp_path: Path) -> None:
    async def story() -> None:
        hook = Hook(f'cat > {tmp_path}/told; pwd > {tmp_path}/where; echo \'{{"decision": "deny", "reason": "not on Sundays"}}\'')
        async with hooked(
            tmp_path, turn("", bash("touch x")), turn("I see", expect="not on Sundays"), hooks=Hooks(before_call=(hook,))
        ) as s:
            await s.run()
            assert json.loads((tmp_path / "told").read_text()) == {
                "hook": "before_call",
                "session": "s",
                "thread": "main",
                "call": "main.1.0",
                "tool": "bash",
                "args": {"command": "touch x"},
            }
            assert (tmp_path / "where").read_text().strip() == str(s.root)
            assert await decided(s) == [("main.1.0", "deny", "hook", "not on Sundays")]
            assert (await s.finished())["main.1.0"].outcome == "denied"
            assert not (s.root / "x").exists()
            assert await s.bodies(r.CallStarted) == []

    play(story())


def test_a_command_that_says_nothing_leaves_the_decision_to_others(tmp_path: Path) -> None:
    async def story() -> None:
        async with hooked(
            tmp_path, turn("", bash("touch x")), "done", hooks=Hooks(before_call=(Hook("true"), answering({})))
        ) as s:
            assert await notices(s) == []
            assert await decided(s) == [("main.1.0", "allow", "policy", "")]
            assert (s.root / "x").exists()

    play(story())


def test_each_sees_the_arguments_as_the_one_before_left_them_and_the_model_is_not_fooled(tmp_path: Path) -> None:
    async def story() -> None:
        first = answering({"args": {"command": "echo two > x"}})
        second = Hook(f'cat > {tmp_path}/told; echo \'{{"decision": "allow", "reason": "fine"}}\'')
        async with hooked(tmp_path, turn("", bash("echo one > x")), "done", hooks=Hooks(before_call=(first, second))) as s:
            await s.run()
            assert json.loads((tmp_path / "told").read_text())["args"] == {"command": "echo two > x"}
            (body,) = await s.bodies(r.CallDecided)
            assert (body.verdict, body.by, body.reason, body.args) == ("allow", "hook", "fine", {"command": "echo two > x"})
            assert (s.root / "x").read_text() == "two\n"
            (proposed,) = await s.bodies(r.CallProposed)
            assert proposed.args == {"command": "echo one > x"}

    play(story())


def test_arguments_that_do_not_fit_the_tool_deny_the_call(tmp_path: Path) -> None:
    async def story() -> None:
        hooks = Hooks(before_call=(answering({"args": {"order": 66}}),))
        async with hooked(
            tmp_path, turn("", bash("touch x")), turn("I see", expect="gave it other arguments, which are wrong"), hooks=hooks
        ) as s:
            await s.run()
            assert (await s.finished())["main.1.0"].outcome == "denied"

    play(story())


def test_the_first_denial_is_the_last_word(tmp_path: Path) -> None:
    async def story() -> None:
        hooks = Hooks(before_call=(answering({"decision": "deny"}), Hook(f"touch {tmp_path}/asked")))
        async with hooked(tmp_path, turn("", bash("touch x")), "done", hooks=hooks) as s:
            await s.run()
            assert not (tmp_path / "asked").exists()
            assert "does not allow this call" in (await decided(s))[0][3]

    play(story())


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        (Hook("echo out of order >&2; exit 3"), "failed: out of order"),
        (Hook("exit 4"), "failed: exit code 4"),
        (Hook("sleep 60", timeout_s=0.3), "took more than 0.3 s and was killed"),
        (Hook("echo maybe"), "printed no answer"),
        (Hook('echo \'{"decision": "perhaps"}\''), "printed no answer"),
        (Hook('echo \'{"verdict": "deny"}\''), "printed no answer"),
        (Hook("kill -9 $$"), "failed: "),
        (Hook("no-such-command-anywhere"), "not found"),
        (Hook(python=f"{FUNCTIONS}:failing"), "failed: ValueError: no idea"),
        (Hook(python=f"{FUNCTIONS}:missing"), "failed: AttributeError"),
        (Hook(python="nobody-has-this"), "no package has an entry point 'nobody-has-this' in the group perdure.hooks"),
    ],
)
def test_a_hook_that_fails_denies_the_call_and_says_why(tmp_path: Path, hook: Hook, said: str) -> None:
    async def story() -> None:
        async with hooked(
            tmp_path, turn("", bash("touch x")), turn("I see", expect="hook"), hooks=Hooks(before_call=(hook,))
        ) as s:
            began = time.monotonic()
            await s.run()
            assert time.monotonic() - began < 20
            ((_, verdict, by, reason),) = await decided(s)
            assert (verdict, by) == ("deny", "hook")
            assert said in reason
            assert not (s.root / "x").exists()

    play(story())


def test_functions_get_structs_and_return_rulings(tmp_path: Path) -> None:
    async def story() -> None:
        hooks = Hooks(before_call=(Hook(python=f"{FUNCTIONS}:polite"), Hook(python=f"{FUNCTIONS}:shouting")))
        turns = turn("", bash("echo rude > x")), turn("", bash("echo hello")), turn("done", expect="HELLO")
        async with hooked(tmp_path, *turns, hooks=hooks) as s:
            await s.run()
            assert [(verdict, reason) for _, verdict, _, reason in await decided(s)] == [("deny", "be polite"), ("allow", "")]

    play(story())


def test_a_hook_is_for_the_tools_it_names(tmp_path: Path) -> None:
    async def story() -> None:
        hooks = Hooks(before_call=(Hook('echo \'{"decision": "deny"}\'', tools=("write",)),))
        turns = turn("", bash("touch x"), call("write", path="y", content="")), "done"
        async with hooked(tmp_path, *turns, hooks=hooks) as s:
            await s.run()
            assert [body.outcome for body in (await s.finished()).values()] == ["ok", "denied"]

    play(story())


def test_what_happened_is_durable_before_a_hook_sees_it_and_an_abort_does_not_wait_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        hook = Hook(f"touch {tmp_path}/asked; sleep 600")
        async with hooked(tmp_path, turn("", bash("touch x")), "never", hooks=Hooks(before_call=(hook,))) as s:
            running = asyncio.create_task(s.run())
            await appears(tmp_path / "asked")
            assert len(await s.bodies(r.ModelResponded)) == 1
            assert await s.bodies(r.CallDecided) == []
            await s.session.abort(reason="enough")
            assert (await running).outcome == "aborted"
            assert (await s.finished())["main.1.0"].outcome == "aborted"
            assert not (s.root / "x").exists()

    play(story())


def test_a_driver_that_goes_leaves_no_hook_behind_and_the_next_one_asks_again(tmp_path: Path) -> None:
    async def story() -> None:
        hook = Hook(f"echo $$ >> {tmp_path}/asked; test -e {tmp_path}/go || sleep 600")
        async with hooked(tmp_path, turn("", bash("touch x")), "done", hooks=Hooks(before_call=(hook,))) as s:
            running = asyncio.create_task(s.run())
            await appears(tmp_path / "asked")
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            (pid,) = (tmp_path / "asked").read_text().split()
            await gone(int(pid))
            (tmp_path / "go").touch()
            await s.session.drive()
            assert (s.root / "x").exists()
            assert len((tmp_path / "asked").read_text().split()) == 2

    play(story())


# ---- the others --------------------------------------------------------------------------------------------------------------


def test_the_other_hooks_are_told_in_order_of_what_is_durable(tmp_path: Path) -> None:
    async def story() -> None:
        hook = Hook(f"cat >> {tmp_path}/told; echo >> {tmp_path}/told")
        hooks = Hooks(after_call=(hook,), before_request=(hook,), on_answer=(hook,))
        async with hooked(tmp_path, turn("", bash("echo hi; touch x; exit 3")), "All done.", hooks=hooks) as s:
            answer = await s.run()
            told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
            assert [event["hook"] for event in told] == ["before_request", "after_call", "before_request", "on_answer"]
            assert (told[0]["turn"], told[0]["attempt"], told[2]["turn"]) == (1, 1, 2)
            after = told[1]
            assert (after["tool"], after["args"], after["outcome"], after["exit_code"]) == (
                "bash",
                {"command": "echo hi; touch x; exit 3"},
                (await s.finished())["main.1.0"].outcome,
                3,
            )
            assert "hi" in after["text"] and after["changed"] == ["x"]
            assert (told[3]["submission"], told[3]["text"]) == (answer.submission, "All done.")

    play(story())


def test_the_answer_of_a_subagent_is_told_too(tmp_path: Path) -> None:
    async def story() -> None:
        hooks = Hooks(on_answer=(Hook(f"cat >> {tmp_path}/told; echo >> {tmp_path}/told"),))
        tasks = {"^count": [turn("", bash("true")), "Four."]}
        async with hooked(tmp_path, turn("", call("task", prompt="count")), "All done.", hooks=hooks, tasks=tasks) as s:
            assert (await s.run()).text == "All done."
            told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
            assert [(event["thread"], event["text"]) for event in told] == [("main.1.0", "Four."), ("main", "All done.")]

    play(story())


def test_their_failure_is_a_notice_and_holds_nothing_up(tmp_path: Path) -> None:
    async def story() -> None:
        hooks = Hooks(
            after_call=(Hook("exit 1"),),
            before_request=(Hook("sleep 60", timeout_s=0.2),),
            on_answer=(Hook(python=f"{FUNCTIONS}:failing"),),
        )
        async with hooked(tmp_path, turn("", bash("true")), "done", hooks=hooks) as s:
            said = await notices(s)
            assert len(said) == 4
            assert "`sleep 60` took more than 0.2 s" in said[0]
            assert "`exit 1` failed: exit code 1" in said[1]
            assert "ValueError: no idea" in said[3]
            assert [body.outcome for body in (await s.settled()).values()] == ["answered"]

    play(story())


def test_what_a_hook_changes_in_the_directory_is_somebodys_work(tmp_path: Path) -> None:
    async def story() -> None:
        hooks = Hooks(after_call=(Hook(python=f"{FUNCTIONS}:noting"),))
        async with hooked(tmp_path, turn("", bash("touch x")), turn("", bash("touch y")), "done", hooks=hooks) as s:
            await s.run()
            assert (s.root / "noted").read_text() == "bash ok\n" * 2
            assert set((await s.finished())["main.2.0"].changed) == {"y"}
            assert any("noted" in body.paths for body in await s.bodies(r.WorkspaceChanged))

    play(story())


def test_a_flood_from_a_hook_does_not_fill_the_memory(tmp_path: Path) -> None:
    async def story() -> None:
        hooks = Hooks(before_call=(Hook("head -c 50000000 /dev/zero"),))
        async with hooked(tmp_path, turn("", bash("touch x")), "done", hooks=hooks) as s:
            await s.run()
            ((_, verdict, _, reason),) = await decided(s)
            assert verdict == "deny" and len(reason) < 5000

    play(story())
