"""Skills: what a folder's SKILL.md says, whose come first, and what a path of one can't reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.program import skills
from perdure.record.records import Skill


def lay(folder: Path, name: str, head: str, body: str = "Do it.\n") -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "SKILL.md").write_text(f"---\n{head}\n---\n{body}")


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("---\nname: x\ndescription: When to use it.\n---\nbody", "When to use it."),
        ('---\ndescription: "Quoted: yes"\n---\n', "Quoted: yes"),
        ("---\ndescription: >\n  Two\n  lines\nname: x\n---\n", "Two lines"),
        ("---\r\ndescription: from Windows\r\n---\r\n", "from Windows"),
        ("---\ndescription: goes\n  on here\n---\n", "goes on here"),
    ],
)
def test_the_head_says_what_a_skill_is_for(text: str, description: str) -> None:
    assert skills.skill("x", "p", text) == Skill("x", description, "p")


@pytest.mark.parametrize(
    "text", ["", "# no head", "---\nname: x\n---\n", "---\ndescription: never ends\n", "---\ndescription:\n---\n"]
)
def test_a_file_that_does_not_say_is_none(text: str) -> None:
    assert skills.skill("x", "p", text) is None


def test_the_first_folder_wins_and_what_is_no_skill_is_passed_over(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    lay(one, "deploy", "description: Mine")
    lay(two, "deploy", "description: Theirs")
    lay(two, "review", "description: Review")
    lay(two, ".hidden", "description: Hidden")
    (two / "empty").mkdir()
    (two / "file").write_text("x")
    found = skills.distinct(skills.users((one, tmp_path / "missing", two)))
    assert [(each.name, each.description, each.path) for each in found] == [
        ("deploy", "Mine", "skill:deploy/SKILL.md"),
        ("review", "Review", "skill:review/SKILL.md"),
    ]
    assert b"Mine" in skills.find((one, two), "deploy/SKILL.md")
    assert b"Mine" in skills.find((one, two), "deploy")


def test_no_path_of_a_skill_leads_out_of_it(tmp_path: Path) -> None:
    lay(tmp_path / "skills", "a", "description: A")
    (tmp_path / "secret").write_text("s")
    (tmp_path / "skills/a/link").symlink_to(tmp_path / "secret")
    for rest in ("a/../../secret", "../secret", "..", "", "/etc/passwd", "a//etc/passwd", "a/link", "b", "a/none", "a/."):
        with pytest.raises(LookupError):
            skills.find((tmp_path / "skills",), rest)
