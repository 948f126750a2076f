"""Undo takes back what the last prompt of a person changed, whatever else was submitted for it or since."""

from __future__ import annotations

from pathlib import Path

from perdure.cli.recap import recap
from perdure.history.prompts import Prompts
from perdure.program.hooks import Hook, Hooks
from perdure.record import records as r
from tests.stage import bash, call, play, stage, turn


def test_what_a_prompts_subagent_and_what_the_prompt_did_before_it_go_together(tmp_path: Path) -> None:
    async def story() -> None:
        tasks = {"^help": [turn("", call("write", path="theirs", content="b\n")), "helped"]}
        second = turn("", call("write", path="mine", content="a\n"), call("task", prompt="help"))
        async with stage(tmp_path, turn("", call("write", path="kept", content="k\n")), "one", second, "two", tasks=tasks) as s:
            assert (await s.run("first")).text == "one"
            assert (await s.run("second")).text == "two"
            await s.session.submit("by the way", mode="note")
            assert any("second" in line.text for line in await recap(s.session))
            records, prompts = await s.records(), Prompts()
            assert sum(map(prompts.begins, records)) == 2
            undone = await s.session.undo()
            assert undone.removed == ("mine", "theirs")
            assert sorted(path.name for path in s.root.iterdir()) == ["kept"]

    play(story())


def test_what_is_taken_back_already_is_told_once_and_leaves_nothing_to_drive(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", call("write", path="new", content="n\n")), "done", "heard") as s:
            await s.run("write")
            await s.session.use_thinking("low")
            first, second = await s.session.undo(), await s.session.undo()
            assert (first.removed, second.removed, second.paths) == (("new",), (), ())
            assert not (await s.session.row()).needs_driver
            await s.run("on")
            notes = [body for body in await s.bodies(r.SubmissionPlaced) if body.as_mode == "note"]
            assert (len(notes), (await s.session.state()).session.options["thinking"]) == (1, "low")

    play(story())


def test_what_people_changed_before_and_during_the_prompt_stays(tmp_path: Path) -> None:
    async def story() -> None:
        meanwhile = Hook(command="test -e meanwhile && mv meanwhile during && echo mine >> both; exit 0")
        calls = [
            call("write", path="theirs", content="b\n"),
            bash("echo agent >> both"),
            call("write", path="meanwhile", content="m\n"),
        ]
        turns = turn("", call("write", path="both", content="one\n")), "one", turn("", *calls), turn("", bash("true")), "two"
        async with stage(tmp_path, *turns) as s:
            s.home.hooks = lambda directory: Hooks(before_call=(meanwhile,))
            await s.run("first")
            (s.root / "between").write_text("mine\n")
            await s.run("second")
            undone = await s.session.undo()
            assert undone.removed == ("theirs",)
            assert [(each.path, each.why) for each in undone.conflicts] == [
                ("both", "others changed it too while the prompt was worked on")
            ]
            files = {path.name: path.read_text() for path in s.root.iterdir()}
            assert files == {"between": "mine\n", "during": "m\n", "both": "one\nagent\nmine\n"}

    play(story())
