"""Whose change it is, every branch of the rule, on stat keys alone and on a real file system."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.spaced.window import EARLIER, LATER, OURS, Window, judge
from tests.spaced.world import World, now_ns, window

WINDOW = Window(100, 200)


@pytest.mark.parametrize(
    ("own", "above", "verdict"),
    [
        (150, (), OURS),
        (100, (), OURS),
        (200, (), OURS),
        (99, (), EARLIER),
        (99, (100,), OURS),
        (99, (99, 150, 500), OURS),
        (99, (99, 500), LATER),
        (150, (500,), OURS),
        (201, (), LATER),
        (201, (150,), LATER),
    ],
)
def test_a_change_is_the_calls_if_it_is_not_after_the_end_and_it_or_something_above_was_changed_in_the_window(
    own: int, above: tuple[int, ...], verdict: str
) -> None:
    assert judge(WINDOW, own, above) == verdict


@pytest.mark.parametrize(
    ("own", "above", "verdict"), [(150, (), OURS), (150, (99,), OURS), (201, (), LATER), (99, (201,), LATER)]
)
def test_a_power_cut_tears_nothing_that_lies_where_something_was_changed_since(
    own: int, above: tuple[int, ...], verdict: str
) -> None:
    assert judge(Window(0, 200), own, above) == verdict


def test_without_a_window_everything_is_taken_back() -> None:
    assert judge(None, 10**30) == OURS


def test_an_edit_before_the_start_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("notes", "base")
    world.commit()
    world.put("notes", "a person was here")
    with window() as lost:
        pass
    plan = world.plan(lost)
    assert (plan["take_back"], plan["kept"], plan["doubtful"]) == ([], ["notes"], [])


@pytest.mark.parametrize("proven", [True, False])
def test_an_edit_after_the_end_is_kept_and_doubted_only_where_the_end_is_a_stamp(tmp_path: Path, proven: bool) -> None:
    world = World(tmp_path)
    world.put("notes", "base")
    world.commit()
    with window(proven=proven) as lost:
        world.put("notes", "the call's")
    world.put("notes", "a person was here")
    plan = world.plan(lost)
    assert (plan["take_back"], plan["kept"]) == ([], ["notes"])
    assert plan["doubtful"] == ([] if proven else ["notes"])


def test_an_edit_inside_is_taken_back_and_salvaged(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("dir/notes", "base")
    world.commit()
    before = world.content()
    with window() as lost:
        world.put("dir/notes", "the call's")
    plan = world.plan(lost)
    assert plan["take_back"] == ["dir/notes"]
    assert any(data == b"the call's" for data in world.store.values())
    world.restore(plan)
    assert world.content() == before


def test_a_deleted_file_is_judged_by_its_directory(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("dir/gone", "base")
    world.put("dir/other", "base")
    world.put("top", "base")
    world.commit()
    before = world.content()
    with window() as lost:
        (world.root / "dir/gone").unlink()
        (world.root / "top").unlink()
    assert world.undo(lost)["plan"]["kept"] == []
    assert world.content() == before


def test_a_file_deleted_before_the_start_stays_deleted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("dir/gone", "base")
    world.commit()
    (world.root / "dir/gone").unlink()
    with window() as lost:
        pass
    assert world.plan(lost)["kept"] == ["dir/gone"]


def test_a_file_deleted_after_the_end_stays_deleted(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("dir/gone", "base")
    world.commit()
    with window(proven=False) as lost:
        pass
    (world.root / "dir/gone").unlink()
    plan = world.plan(lost)
    assert (plan["take_back"], plan["doubtful"]) == ([], ["dir/gone"])


def test_a_directory_that_the_call_moved_goes_back_with_children_whose_ctimes_are_old(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("src/pkg/deep/file", "base")
    world.commit()
    before = world.content()
    now_ns()
    with window() as lost:
        (world.root / "src/pkg").rename(world.root / "src/moved")
    assert world.undo(lost)["plan"]["kept"] == []
    assert world.content() == before


def test_a_directory_that_a_person_moved_into_place_before_the_start_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("src/pkg/file", "base")
    world.commit()
    (world.root / "src/pkg").rename(world.root / "src/moved")
    with window() as lost:
        world.put("other", "the call's")
    restored = world.undo(lost)
    assert restored["plan"]["take_back"] == ["other"]
    assert (world.root / "src/moved/file").read_text() == "base"


def test_what_was_moved_is_not_removed_where_its_old_name_cant_be_given_back(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("data", "only copy")
    world.commit()
    with window() as lost:
        (world.root / "data").rename(world.root / "renamed")
    world.put("later", "a person changed the directory after the end")
    world.undo(lost)
    assert (world.root / "renamed").read_text() == "only copy"


def test_a_persons_file_in_a_directory_that_the_call_made_stays(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.commit()
    with window() as lost:
        world.put("made/by/call", "x")
    world.put("made/by/person", "mine")
    restored = world.undo(lost)
    assert restored["plan"]["take_back"] == ["made/by/call"]
    assert world.content()["made/by/person"][0] == b"mine"
    assert "made/by/person" in restored["capture"]["changed"]


def test_a_change_of_mode_or_time_alone_follows_the_same_rule(tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in ("mode", "time", "persons"):
        world.put(name, "base")
    (world.root / "dir").mkdir()
    world.commit()
    before = world.content()
    (world.root / "persons").chmod(0o600)
    with window() as lost:
        (world.root / "mode").chmod(0o755)
        (world.root / "dir").chmod(0o700)
        os.utime(world.root / "time", ns=(1, 1))
    restored = world.undo(lost)
    assert restored["plan"]["take_back"] == ["dir", "mode", "time"]
    after = world.content()
    assert after.pop("persons")[1] == 0o600
    before.pop("persons")
    assert after == before
