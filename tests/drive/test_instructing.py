"""AGENTS.md files below the root: told when the model comes to a file there, once, and again after nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from perdure.drive.instructing import above
from perdure.record import records as r
from tests.stage import Stage, bash, call, play, stage, turn


def tree(s: Stage) -> None:
    files = {
        "AGENTS.md": "root rule\n",
        "src/AGENTS.md": "src rule\n",
        "src/api/AGENTS.md": "api rule\n",
        "src/api/v1/x.py": "x = 1\n",
        "src/y.py": "y = 1\n",
        "docs/AGENTS.md": "docs rule\n",
    }
    for name, text in files.items():
        (s.root / name).parent.mkdir(parents=True, exist_ok=True)
        (s.root / name).write_text(text)


async def told(s: Stage) -> list[tuple[str | None, str]]:
    return [(stored.thread, stored.body.path) for stored in await s.records() if isinstance(stored.body, r.Instructed)]


def test_they_are_told_from_the_root_down_before_the_next_request_and_once(tmp_path: Path) -> None:
    async def story() -> None:
        turns = (
            turn("", call("read", path="src/api/v1/x.py")),
            turn("", call("read", path="src/y.py"), expect=r"src/AGENTS.md:\n\nsrc rule(?s:.*)src/api/AGENTS.md:\n\napi rule"),
            "done",
        )
        async with stage(tmp_path, *turns) as s:
            tree(s)
            await s.run()
            assert await told(s) == [("main", "src/AGENTS.md"), ("main", "src/api/AGENTS.md")]
            text = await s.told()
            assert text.count("src rule") == 1 and "docs rule" not in text
            assert (await s.session.state()).session.instructions == "root rule\n"

    play(story())


def test_an_edit_counts_and_a_command_does_not(tmp_path: Path) -> None:
    async def story() -> None:
        turns = (
            turn("", bash("cat docs/AGENTS.md src/y.py")),
            turn("", call("write", path="docs/new.md", content="new\n")),
            turn("done", expect="docs rule"),
        )
        async with stage(tmp_path, *turns) as s:
            tree(s)
            await s.run()
            assert await told(s) == [("main", "docs/AGENTS.md")]

    play(story())


def test_what_the_model_has_read_itself_and_what_is_empty_is_not_told(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", call("read", path="src/AGENTS.md"), call("read", path="bare/x")), "done") as s:
            tree(s)
            (s.root / "bare").mkdir()
            (s.root / "bare/AGENTS.md").touch()
            (s.root / "bare/x").write_text("x\n")
            await s.run()
            assert await told(s) == []

    play(story())


def test_another_spelling_of_a_path_is_the_same_folder(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", call("read", path="./docs/../src/y.py")), "done") as s:
            tree(s)
            await s.run()
            assert await told(s) == [("main", "src/AGENTS.md")]

    play(story())


def test_another_driver_does_not_tell_again_and_a_subagent_is_told_for_itself(tmp_path: Path) -> None:
    async def story() -> None:
        read = call("read", path="src/y.py")
        turns = turn("", read), "one", turn("", read, call("task", prompt="look")), "two"
        tasks = {"look": [turn("", read), turn("looked", expect="src rule")]}
        async with stage(tmp_path, *turns, tasks=tasks) as s:
            tree(s)
            await s.run()
        async with stage(tmp_path) as s:
            await s.run("again")
            threads = [thread for thread, path in await told(s) if path == "src/AGENTS.md"]
            assert len(threads) == 2 and threads[0] == "main" and threads[1] != "main"

    play(story())


def test_a_request_that_is_repeated_after_a_crash_says_the_same(tmp_path: Path) -> None:
    async def story() -> None:
        turns = turn("", call("read", path="src/y.py")), turn("done", expect="src rule", delay_s=1.0, chunks=20)
        async with stage(tmp_path, *turns) as s:
            tree(s)
            running = asyncio.create_task(s.run())
            await s.until(lambda body: isinstance(body, r.Instructed))
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            (s.root / "src/AGENTS.md").write_text("another rule\n")
            await s.session.drive()
            assert await told(s) == [("main", "src/AGENTS.md")]
            assert "another rule" not in await s.told()

    play(story())


def test_folders_between_the_root_and_a_file() -> None:
    assert above(["a/b/c.py", "a/x", "top"]) == ["a/AGENTS.md", "a/b/AGENTS.md"]
    assert above(["/etc/passwd", "../up/x", "a/../b/x", "./x", "output:main.1.0"]) == []


def lay_skill(folder: Path, name: str, description: str, body: str = "the body\n") -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "SKILL.md").write_text(f"---\ndescription: {description}\n---\n{body}")


def test_skills_are_listed_once_for_the_session_and_read_by_their_paths(tmp_path: Path) -> None:
    async def story() -> None:
        mine = tmp_path / "skills"
        lay_skill(mine, "deploy", "How we deploy", "with care\n")
        reads = call("read", path="skill:deploy/SKILL.md"), call("read", path=".perdure/skills/review/SKILL.md")
        turns = (
            turn("", *reads),
            turn("done", expect="with care(?s:.*)look twice"),
            turn("", call("read", path="skill:deploy/x")),
            "again",
        )
        async with stage(tmp_path, *turns) as s:
            s.home.skills = lambda directory: (mine,)
            lay_skill(s.root / ".perdure/skills", "review", "How we review", "look twice\n")
            lay_skill(s.root / ".perdure/skills", "deploy", "A stranger's way", "rm -rf\n")
            await s.run()
            listed = [(each.name, each.description, each.path) for each in (await s.session.state()).session.skills]
            assert listed == [
                ("deploy", "How we deploy", "skill:deploy/SKILL.md"),
                ("review", "How we review", ".perdure/skills/review/SKILL.md"),
            ]
            lay_skill(mine, "later", "Too late for this session")
            await s.run("again")
            assert len((await s.session.state()).session.skills) == 2
            assert "The skill 'deploy' has no file 'x'." in await s.told()

    play(story())


def test_a_session_without_skills_has_nothing_of_them(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "done") as s:
            await s.run()
            assert all(body.skills is None for body in await s.bodies(r.SettingsChanged))

    play(story())
