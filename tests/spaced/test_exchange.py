"""Between the look at a path and the change of it a supervisor can be stopped, and a person can save: every byte of theirs stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.spaced import exchange, steps
from tests.spaced.world import World, now_ns, window


def saved_in_place(path: Path) -> None:
    path.write_text("mine")


def saved_beside(path: Path) -> None:
    """As editors do: complete, then renamed."""
    path.with_name("editor").write_text("mine")
    path.with_name("editor").rename(path)


def made_a_directory(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "inside").write_text("mine")


def lose(world: World, path: str) -> dict[str, Any]:
    """The window of a call that was lost after it had changed that one path."""
    with window() as lost:
        if path == "gone":
            (world.root / path).unlink()
        else:
            world.put(path, "by the lost call")
    now_ns()
    return lost


@pytest.mark.parametrize("save", [saved_in_place, saved_beside, made_a_directory])
@pytest.mark.parametrize(("path", "at"), [("changed", "before rename"), ("gone", "before rename"), ("stray", "before unlink")])
@pytest.mark.parametrize("able", [True, False])
def test_what_is_saved_behind_the_last_look_stays(
    tmp_path: Path, path: str, at: str, save: Callable[[Path], None], able: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not able:
        if path == "changed":
            pytest.skip("without an exchange of names the look just before has to do")
        monkeypatch.setattr(exchange, "_call", None)
    world = World(tmp_path)
    world.put("changed", "before")
    world.put("gone", "before")
    world.commit()
    plan = world.plan(lose(world, path))
    taken: list[str] = []

    def person(step: str) -> None:
        if step == at and not taken:
            taken.append(step)
            save(world.root / path)

    monkeypatch.setattr(steps, "_hook", person)
    restored = world.restore(plan)
    theirs = world.root / path
    assert taken
    assert (theirs / "inside" if theirs.is_dir() else theirs).read_text() == "mine"
    assert path in restored["plan"]["kept"]
    assert not [name for name in os.listdir(world.root) if name.startswith(".perdure")]


def test_a_deletion_behind_the_last_look_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.put("changed", "before")
    world.commit()
    plan = world.plan(lose(world, "changed"))
    monkeypatch.setattr(steps, "_hook", lambda step: (world.root / "changed").unlink() if step == "before rename" else None)
    world.restore(plan)
    assert os.listdir(world.root) == []


def test_of_two_that_are_saved_the_newer_one_keeps_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, seen = tmp_path / "file", (0, 0, 0, 0, 0)
    file.write_text("older")
    (tmp_path / "temporary").write_text("restored")
    call = exchange._exchange

    def saved_again(directory: int, one: str, other: str) -> bool | None:
        """Right before what was found is given back."""
        if file.read_text() == "restored":
            saved_beside(file)
        return call(directory, one, other)

    monkeypatch.setattr(exchange, "_exchange", saved_again)
    directory = os.open(tmp_path, os.O_RDONLY)
    if call(directory, "file", "file") is None:
        pytest.skip("no exchange of names here")
    assert not exchange.put(directory, "temporary", "file", seen)
    os.close(directory)
    assert (file.read_text(), os.listdir(tmp_path)) == ("mine", ["file"])
