"""Rules at work, and calls that wait for a person's word: over restarts, in any order, for ever, and never by silence."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import perdure
from perdure.drive.deciding import Ask
from perdure.program.builtin import BUILTIN
from perdure.program.hooks import Hook, Hooks
from perdure.program.permissions import Rules, parse
from perdure.program.tools import ToolSet
from perdure.record import records as r
from perdure.record.errors import UsageError
from perdure.state.state import State
from tests.stage import Stage, bash, call, play, stage, turn, write_script

ASKING = parse({"ask": ["bash(touch *)"], "deny": ["bash(rm *)", "write(.env)"]})


@asynccontextmanager
async def ruled(
    tmp_path: Path, *turns: Any, rules: Rules | None = ASKING, ask: Ask = "wait", hooks: Hooks | None = None, **options: Any
) -> AsyncIterator[Stage]:
    """A stage whose drivers go by these rules."""
    async with stage(tmp_path, *turns, **options) as s:
        s.home.rules = lambda directory: rules
        s.home.ask = ask
        if hooks is not None:
            s.home.hooks = lambda directory: hooks
        yield s


async def decided(s: Stage) -> dict[str, tuple[str, str]]:
    return {body.call: (body.verdict, body.by) for body in await s.bodies(r.CallDecided)}


async def resumed(s: Stage) -> str | None:
    async with asyncio.timeout(30):
        return (await s.session.drive()).rest.waiting_for


def test_a_rule_that_denies_is_told_to_the_model(tmp_path: Path) -> None:
    async def story() -> None:
        turns = (turn("", bash("rm -rf ."), call("write", path=".env", content="x")), turn("I see", expect="rule `bash.rm"))
        async with ruled(tmp_path, *turns) as s:
            assert (await s.run()).outcome == "answered"
            assert await decided(s) == {"main.1.0": ("deny", "policy"), "main.1.1": ("deny", "policy")}
            assert {body.outcome for body in (await s.finished()).values()} == {"denied"}
            assert not await s.bodies(r.CallStarted)
            assert "deny bash(rm *)" in (await s.session.state()).session.rules

    play(story())


def test_a_question_waits_through_a_restart_and_is_answered_by_another_process(tmp_path: Path) -> None:
    async def first() -> None:
        async with ruled(tmp_path, turn("", bash("touch x")), "done") as s:
            answer = await s.run()
            assert (answer.outcome, answer.waiting_for) == ("waiting", "approval")
            assert "main.1.0" in answer.detail and "touch x" in answer.detail
            row = await s.session.row()
            assert (row.rest.status, row.rest.due_at, row.held_by, row.needs_driver) == ("waiting", None, None, False)
            assert not await s.bodies(r.CallStarted) and not await s.bodies(r.CallDecided)

    async def nobody() -> None:
        async with ruled(tmp_path) as s:
            assert await resumed(s) == "approval"
            assert len(await s.bodies(r.ApprovalRequested)) == 1

    async def answering() -> None:
        async with stage(tmp_path) as s:
            question = await s.session.approve("main", reason="fine")
            assert (question.call, question.rule) == ("main.1.0", "bash(touch *)")
            assert [due.session for due in await s.home.store.due(0)] == ["s"]

    async def last() -> None:
        async with ruled(tmp_path) as s:
            assert await resumed(s) is None
            assert await decided(s) == {"main.1.0": ("allow", "person")}
            assert (s.root / "x").exists()

    for part in (first, nobody, answering, last):
        play(part())


def test_two_questions_are_answered_in_reverse_order_across_a_restart_each_with_its_own_word(tmp_path: Path) -> None:
    async def first() -> None:
        async with ruled(tmp_path, turn("", bash("touch a"), bash("touch b")), "done") as s:
            assert (await s.run()).waiting_for == "approval"
            assert [q.call for q in await s.session.questions()] == ["main.1.0", "main.1.1"]
            await s.session.approve("main.1.1")
            assert await resumed(s) == "approval"
            assert not await s.bodies(r.CallStarted)

    async def last() -> None:
        async with ruled(tmp_path) as s:
            await s.session.deny("main.1.0", reason="not a")
            assert await resumed(s) is None
            assert await decided(s) == {"main.1.0": ("deny", "person"), "main.1.1": ("allow", "person")}
            assert [body.call for body in await s.bodies(r.CallStarted)] == ["main.1.1"]
            assert (await s.finished())["main.1.0"].result.text == "not a"
            assert (s.root / "b").exists() and not (s.root / "a").exists()

    play(first())
    play(last())


def test_always_is_about_exactly_that_command_in_this_session(tmp_path: Path) -> None:
    async def story() -> None:
        turns = (turn("", bash("touch x")), turn("", bash("touch x")), turn("", bash("touch x y")), "done")
        async with ruled(tmp_path, *turns) as s:
            await s.run()
            await s.session.approve(always=True)
            assert await resumed(s) == "approval"
            assert await decided(s) == {"main.1.0": ("allow", "person"), "main.2.0": ("allow", "person")}
            assert [q.text for q in await s.session.questions()] == ["bash: touch x y"]

    play(story())


def test_always_does_not_win_over_a_rule_that_denies(tmp_path: Path) -> None:
    async def story() -> None:
        async with ruled(tmp_path, turn("", bash("touch x")), turn("", bash("touch x")), "done") as s:
            await s.run()
            await s.session.approve(always=True)
            s.home.rules = lambda directory: parse({"deny": ["bash(touch *)"]})
            assert await resumed(s) is None
            assert await decided(s) == {"main.1.0": ("deny", "policy"), "main.2.0": ("deny", "policy")}

    play(story())


def test_the_first_answer_counts_and_the_same_again_changes_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        async with ruled(tmp_path, turn("", bash("touch x")), "done") as s:
            await s.run()
            (question,) = await s.session.questions()
            await s.session.deny("main.1.0")
            with pytest.raises(UsageError, match="was answered already: deny"):
                await s.session.approve("main.1.0")
            late = r.ApprovalAnswered("main.1.0", question.digest, "allow")
            from perdure.log.store import Admission
            from perdure.record.records import Draft

            await s.home.store.admit("s", Admission("late", Draft(late, "main"), busy=False))
            await resumed(s)
            assert await decided(s) == {"main.1.0": ("deny", "person")}

    play(story())


def test_an_answer_to_another_question_is_none(tmp_path: Path) -> None:
    async def story() -> None:
        async with ruled(tmp_path, turn("", bash("touch x")), "done") as s:
            await s.run()
            with pytest.raises(UsageError, match="is not what it was"):
                await s.session.approve("main.1.0", digest="f" * 64)
            for wrong, said in (("main.9", "is not open"), ("x", "asks about main.1.0")):
                with pytest.raises(UsageError, match=said):
                    await s.session.approve(wrong)
            assert await resumed(s) == "approval"

    play(story())


def test_a_changed_tool_voids_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with ruled(tmp_path, turn("", bash("touch x")), "done") as s:
            await s.run()
            await s.session.approve()
            changed = ToolSet([replace(tool, description="Runs it twice.") if tool.name == "bash" else tool for tool in BUILTIN])
            monkeypatch.setattr(s.home, "tools", lambda created: changed)
            assert await resumed(s) == "approval"
            first, second = await s.bodies(r.ApprovalRequested)
            assert first.digest != second.digest
            assert not await s.bodies(r.CallDecided)

    play(story())


@pytest.mark.parametrize(("rules", "verdict"), [(Rules(), "allow"), (parse({"deny": ["bash"]}), "deny")])
def test_rules_that_changed_meanwhile_decide_anew(tmp_path: Path, rules: Rules, verdict: str) -> None:
    async def story() -> None:
        async with ruled(tmp_path, turn("", bash("touch x")), "done") as s:
            await s.run()
            s.home.rules = lambda directory: rules
            assert await resumed(s) is None
            assert await decided(s) == {"main.1.0": (verdict, "policy")}
            assert (await s.session.state()).session.rules == rules.told()

    play(story())


def test_a_driver_without_rules_of_its_own_goes_by_those_of_the_log(tmp_path: Path) -> None:
    async def story() -> None:
        async with ruled(tmp_path, turn("", bash("touch x")), turn("", bash("rm x")), "done") as s:
            await s.run()
            s.home.rules = lambda directory: None
            assert await resumed(s) == "approval"
            await s.session.approve()
            assert await resumed(s) is None
            assert (await decided(s))["main.2.0"] == ("deny", "policy")

    play(story())


def test_where_nobody_is_asked_policy_denies_and_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with ruled(tmp_path, turn("", bash("touch x")), turn("I see", expect="nobody is asked here"), ask="deny") as s:
            assert (await s.run()).outcome == "answered"
            assert await decided(s) == {"main.1.0": ("deny", "policy")}
            assert not await s.bodies(r.ApprovalAnswered)

    play(story())


def test_silence_is_no_answer_and_a_deadline_ends_the_prompt_without_one(tmp_path: Path) -> None:
    async def story() -> None:
        now = [1000.0]
        async with ruled(tmp_path, turn("", bash("touch x")), "done", clock=lambda: now[0]) as s:
            answer = await s.run(deadline=5000.0)
            assert answer.waiting_for == "approval"
            assert (await s.session.row()).rest.due_at == 5000.0
            now[0] = 4000.0
            assert await resumed(s) == "approval"
            now[0] = 5001.0
            assert [due.session for due in await s.home.store.due(now[0])] == ["s"]
            assert await resumed(s) is None
            assert await decided(s) == {}
            assert (await s.finished())["main.1.0"].outcome == "aborted"

    play(story())


def test_an_abort_and_a_steer_end_the_question(tmp_path: Path) -> None:
    async def story() -> None:
        async with ruled(tmp_path, turn("", bash("touch x")), turn("", bash("touch y")), "done") as s:
            await s.run()
            await s.session.submit("do something else", mode="steer")
            assert await resumed(s) == "approval"
            assert (await s.finished())["main.1.0"].outcome == "aborted"
            with pytest.raises(UsageError, match="is not open"):
                await s.session.approve("main.1.0")
            await s.session.abort()
            assert await resumed(s) is None
            assert not await s.session.questions()

    play(story())


def test_what_reads_and_is_allowed_goes_before_a_question_and_the_rest_waits_for_it(tmp_path: Path) -> None:
    async def story() -> None:
        reads = (call("list"), call("read", path="secret"), call("list"))
        rules = parse({"ask": ["read(secret)"]})
        async with ruled(tmp_path, turn("", *reads), "done", rules=rules) as s:
            assert (await s.run()).waiting_for == "approval"
            assert list(await s.finished()) == ["main.1.0"]
            await s.session.approve()
            assert await resumed(s) is None
            assert list(await s.finished()) == ["main.1.0", "main.1.1", "main.1.2"]

    play(story())


def test_a_subagents_question_is_the_sessions(tmp_path: Path) -> None:
    async def story() -> None:
        tasks = {"make it": [turn("", bash("touch x")), "made"]}
        async with ruled(tmp_path, turn("", call("task", prompt="make it")), "done", tasks=tasks) as s:
            answer = await s.run()
            assert answer.waiting_for == "approval"
            (question,) = await s.session.questions()
            await s.session.approve(question.call)
            assert await resumed(s) is None
            assert (s.root / "x").exists()

    play(story())


def test_a_program_gives_its_rules_to_the_home(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "root").mkdir()
        model = write_script(tmp_path / "s.json", turn("", bash("touch x")), "done")
        async with perdure.open(tmp_path / "home", permissions={"ask": ["bash"]}) as home:
            session = await home.session("s", directory=tmp_path / "root", model=model)
            assert (await session.run("go")).waiting_for == "approval"
        with pytest.raises(UsageError, match="is no rule"):
            async with perdure.open(tmp_path / "home", permissions={"ask": ["("]}):
                pass

    play(story())


# ---- hooks -------------------------------------------------------------------------------------------------------------------


def test_a_hook_may_allow_without_a_person_but_not_what_a_rule_denies(tmp_path: Path) -> None:
    async def story() -> None:
        hooks = Hooks(before_call=(Hook('echo \'{"decision": "allow", "reason": "fine"}\''),))
        async with ruled(tmp_path, turn("", bash("touch x"), bash("rm x")), "done", hooks=hooks) as s:
            assert (await s.run()).outcome == "answered"
            assert await decided(s) == {"main.1.0": ("allow", "hook"), "main.1.1": ("deny", "policy")}

    play(story())


def test_the_rules_are_put_again_to_what_a_hook_made_of_a_call(tmp_path: Path) -> None:
    async def story() -> None:
        to_rm = Hooks(before_call=(Hook('echo \'{"args": {"command": "rm x"}}\''),))
        async with ruled(tmp_path, turn("", bash("true")), "done", hooks=to_rm) as s:
            await s.run()
            assert await decided(s) == {"main.1.0": ("deny", "policy")}

    async def asked() -> None:
        hooks = Hooks(before_call=(Hook(f'echo x >> {tmp_path}/asked; echo \'{{"args": {{"command": "touch y"}}}}\''),))
        async with ruled(tmp_path, turn("", bash("true")), "done", hooks=hooks, name="t") as s:
            await s.run()
            (question,) = await s.session.questions()
            assert question.text == "bash: touch y"
            await s.session.approve()
            assert await resumed(s) is None
            assert (s.root / "y").exists()
            assert (tmp_path / "asked").read_text() == "x\n"

    play(story())
    play(asked())


def test_answers_are_folded_only_to_the_newest_question() -> None:
    from perdure.record.records import Stored
    from perdure.state.calls import reduce

    def at(seq: int, body: Any) -> Stored:
        return Stored(seq, 0.0, 1, "c", body, "main")

    calls = reduce({}, at(1, r.CallProposed("c", "bash", {"command": "a"})))
    calls = reduce(calls, at(2, r.ApprovalAnswered("c", "d1", "allow")))
    assert calls["c"].answer is None
    calls = reduce(calls, at(3, r.ApprovalRequested("c", "d1")))
    calls = reduce(calls, at(4, r.ApprovalAnswered("c", "d1", "allow")))
    calls = reduce(calls, at(5, r.ApprovalRequested("c", "d2", args={"command": "b"})))
    assert (calls["c"].answer, calls["c"].args, calls["c"].awaits_approval) == (None, {"command": "b"}, True)
    calls = reduce(calls, at(6, r.ApprovalAnswered("c", "d1", "allow")))
    assert calls["c"].answer is None
    calls = reduce(calls, at(7, r.ApprovalAnswered("c", "d2", "deny")))
    calls = reduce(calls, at(8, r.ApprovalAnswered("c", "d2", "allow")))
    assert calls["c"].answer is not None and calls["c"].answer.verdict == "deny"
    assert State().calls == {}
