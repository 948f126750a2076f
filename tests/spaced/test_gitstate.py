"""A call that changed the repository can't be undone; a refreshed index, and what people commit, is not that."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from perdure.spaced import gitstate
from perdure.spaced.paths import DIRECTORY_FLAGS
from tests.spaced.world import World, window

pytestmark = pytest.mark.skipif(not shutil.which("git"), reason="needs git")


def git(world: World, *arguments: str) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(world.state),
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.org",
        "GIT_CONFIG_NOSYSTEM": "1",
    }
    return subprocess.run(["git", *arguments], cwd=world.root, env=environment, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    git(world, "init", "-q", "-b", "main")
    world.put("file", "one\n")
    git(world, "add", ".")
    git(world, "commit", "-qm", "first")
    world.commit()
    return world


def state(world: World) -> dict[str, Any]:
    world.workspace.capture(world.base)
    fd = os.open(world.root / ".git", DIRECTORY_FLAGS)
    try:
        assert world.workspace.index.git is not None
        return gitstate.in_workspace(world.workspace.index.git, fd).state()
    finally:
        os.close(fd)


def commit(world: World) -> None:
    world.put("file", "two\n")
    git(world, "commit", "-qam", "second")


def stage(world: World) -> None:
    world.put("file", "staged\n")
    git(world, "add", "file")


def branch(world: World) -> None:
    git(world, "branch", "other")


def switch(world: World) -> None:
    git(world, "switch", "-q", "-c", "other")


def merge(world: World) -> None:
    (world.root / ".git/MERGE_HEAD").write_text("0" * 40)


@pytest.mark.parametrize("change", [commit, stage, branch, switch, merge])
def test_a_call_that_changed_the_repository_was_not_undone(world: World, change: Any) -> None:
    with window() as lost:
        change(world)
    plan = world.plan(lost)
    assert "git's state was changed" in plan["blocked"]
    assert plan["git_before"] != plan["git_after"]
    assert plan["git_before"]["head"].startswith("refs/heads/main ")
    if change is switch:
        assert plan["git_after"]["head"].startswith("refs/heads/other ")


@pytest.mark.parametrize("change", [commit, stage, branch])
def test_what_people_do_before_or_after_does_not_block(world: World, change: Any) -> None:
    change(world)
    with window() as lost:
        world.put("calls", "x")
    plan = world.plan(lost)
    assert "blocked" not in plan
    assert plan["take_back"] == ["calls"]
    world.restore(plan)
    world.commit()
    with window(proven=False) as lost:
        world.put("calls", "x")
    git(world, "tag", "later")
    plan = world.plan(lost)
    assert "blocked" not in plan
    assert plan["doubtful"] == [".git/refs/tags/later"]


def test_a_refreshed_index_is_no_change(world: World) -> None:
    before = (world.root / ".git/index").read_bytes()
    with window() as lost:
        os.utime(world.root / "file", ns=(10**18, 10**18))
        git(world, "status")
        world.put("calls", "x")
    assert (world.root / ".git/index").read_bytes() != before
    plan = world.plan(lost)
    assert "blocked" not in plan
    assert world.restore(plan)["plan"]["take_back"] == ["calls", "file"]


@pytest.mark.parametrize("version", ["2", "4"])
def test_entries_count_whatever_the_version_of_the_index(world: World, version: str) -> None:
    for name in ("dir/a", "dir/ab", "dir/b", "x" * 250):
        world.put(name, name)
    git(world, "add", ".")
    before = state(world)["index"]
    git(world, "update-index", "--index-version", version)
    assert (world.root / ".git/index").read_bytes()[4:8] == bytes([0, 0, 0, int(version)])
    assert state(world)["index"] == before
    world.put("dir/ab", "changed")
    git(world, "add", "dir/ab")
    assert state(world)["index"] != before


def test_flags_of_an_extended_index_count(world: World) -> None:
    before = state(world)["index"]
    git(world, "update-index", "--skip-worktree", "file")
    assert (world.root / ".git/index").read_bytes()[7] == 3
    assert state(world)["index"] != before


def test_packing_refs_is_no_change(world: World) -> None:
    before = state(world)
    git(world, "pack-refs", "--all")
    assert not (world.root / ".git/refs/heads/main").exists()
    assert state(world) == before


@pytest.mark.parametrize("at_work", [False, True])
def test_a_lock_that_the_call_left_goes_only_where_no_git_can_be_at_work(
    world: World, monkeypatch: pytest.MonkeyPatch, at_work: bool
) -> None:
    monkeypatch.setattr(gitstate, "git_may_run_outside", lambda root: at_work)
    (world.root / ".git/base.lock").touch()
    world.commit()
    with window() as lost:
        (world.root / ".git/index.lock").touch()
        world.put("calls", "x")
    plan = world.plan(lost)
    assert plan["git_before"]["locks"] == [".git/base.lock"]
    assert plan["git_after"]["locks"] == [".git/base.lock", ".git/index.lock"]
    world.restore(plan)
    assert (world.root / ".git/index.lock").exists() is at_work
    assert (world.root / ".git/base.lock").exists()


def test_a_repository_that_the_call_made_or_removed_blocks(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.commit()
    with window() as lost:
        git(world, "init", "-q")
    assert "was made" in world.plan(lost)["blocked"]
    world.commit()
    with window() as lost:
        shutil.rmtree(world.root / ".git")
    assert "was removed" in world.plan(lost)["blocked"]


def test_a_repository_in_an_own_workspace_is_ordinary_content(tmp_path: Path) -> None:
    world = World(tmp_path, own=True)
    git(world, "init", "-q", "-b", "main")
    world.put("file", "one")
    world.commit()
    before = world.content()
    git(world, "add", ".")
    git(world, "commit", "-qm", "x")
    world.undo()
    assert world.content() == before
