"""The rules that leave paths out say what git says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.spaced.exclude import Rules, kept


def left_out(rules: Rules, path: str, *, directory: bool) -> bool:
    """As a scan asks: parents first."""
    parts = path.split("/")
    above = ("/".join(parts[:n]) for n in range(1, len(parts)))
    return any(rules.leave_out(parent, directory=True) for parent in above) or rules.leave_out(path, directory=directory)


class Git:
    """A repository, asked which of some paths it ignores. `directories` are made, so that git knows them as such."""

    def __init__(self, root: Path) -> None:
        self.root = root
        subprocess.run(["git", "init", "-q", root], check=True)
        (root / ".git/info/exclude").write_text("")

    def ignored(self, text: str, paths: list[str]) -> set[str]:
        (self.root / ".gitignore").write_bytes(os.fsencode(text))
        asked = "\0".join(paths).encode()
        # --no-index: only the rules count. 1: nothing is ignored.
        done = subprocess.run(
            ["git", "-c", "core.excludesFile=", "-C", self.root, "check-ignore", "-z", "--stdin", "--no-index"],
            input=asked,
            capture_output=True,
        )
        assert done.returncode in (0, 1), done.stderr
        return {path for path in done.stdout.decode().split("\0") if path}


@pytest.fixture(scope="module")
def git(tmp_path_factory: pytest.TempPathFactory) -> Git:
    git = Git(tmp_path_factory.mktemp("git"))
    for path in DIRECTORIES:
        (git.root / path).mkdir(parents=True, exist_ok=True)
    return git


DIRECTORIES = ["a", "b", "a/b", "a/b/c", "build", "src/build", "a-b", "x[1]", "ab"]
FILES = [
    "f",
    "a/f",
    "a/b/f",
    "a/b/c/f",
    "f.log",
    "a/f.log",
    "build/f",
    "src/f",
    "ab/f",
    "src/build/f.o",
    " f",
    "f ",
    "#f",
    "!f",
    "a-b/]",
    "x[1]/-",
    "a/\\",
    "-",
    "]",
]


@pytest.mark.parametrize(
    "text",
    [
        "*.log",
        "/f",
        "a/f",
        "build/",
        "build",
        "**/f",
        "a/**",
        "a/**/f",
        "**/b/**",
        "a/*/f",
        "?",
        "[a-c]",
        "[!a]",
        "[^a-b]*",
        "*.log\n!a/f.log",
        "/*\n!/a\n/a/*\n!/a/b",
        "a/\n!a/f",
        "\\#f\n\\!f",
        "# f\nf\\ ",
        "f   ",
        " f",
        "x\\[1\\]",
        "x[1]",
        "[]]",
        "[]-]",
        "[[:alpha:]]",
        "[[:nonsense:]]f",
        "[a",
        "f\\",
        "a/b/",
        "/",
        "//f",
        "/a//f",
        "**",
        "/**",
        "***/f",
        "a***/f",
        "a**/f",
        "a?**/f",
        "a**",
        "a/b**/f",
        "[c-a]",
        "[a-]",
        "a[/]f",
        "a?f",
        "a/b/**/f",
        "f.log\r\n!a/f.log\r",
        "!f\nf",
        "*\n!*/\n!*.log",
        "\\a",
        "[\\]]",
        "a/**/b/",
        "**/",
        "*/",
    ],
)
def test_as_git_has_it(git: Git, text: str) -> None:
    agree(git, text)


def agree(git: Git, text: str) -> None:
    rules, paths = Rules(kept(text)), [*DIRECTORIES, *FILES]
    ours = {path for path in paths if left_out(rules, path, directory=path in DIRECTORIES)}
    assert ours == git.ignored(text, paths)


PIECE = st.sampled_from(["a", "b", "f", "*", "?", "**", "[ab]", "[!a]", "\\f", ".log", "*.log", "build", "-", "a*"])
PATTERN = st.tuples(
    st.sampled_from(["", "!", "/", "!/", "**/"]),
    st.lists(st.lists(PIECE, min_size=1, max_size=3).map("".join), min_size=1, max_size=3).map("/".join),
    st.sampled_from(["", "/", "/**", " "]),
).map("".join)


@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(lines=st.lists(PATTERN, min_size=1, max_size=4))
def test_whatever_the_rules_are_git_has_the_same(git: Git, lines: list[str]) -> None:
    agree(git, "\n".join(lines))


def test_remarks_and_empty_lines_are_no_rules() -> None:
    assert kept("# a\n\n  \nb\n") == ("b",)
    assert not Rules(kept("# a\n"))
    assert Rules(("*.log",))


def test_names_that_are_no_text_are_matched_too() -> None:
    assert Rules(("caf?",)).leave_out(os.fsdecode(b"caf\xff"), directory=False)
