"""What a command that was cut off may have left: a beginning of its effects, and nothing else."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from perdure.chaos.effects import Effect, Folder, Link, Many, Mode, Move, Put, Remove, after, fits
from perdure.chaos.files import Files, differences, folder, make, on_disk, text

BEFORE: Files = {"d": folder(), "d/a": text("a\n"), "old": text("old\n")}
EFFECTS: tuple[Effect, ...] = (
    Move("d", "e"),
    Put("e/new", "new"),
    Remove("old"),
    Folder("m"),
    Many("m", 3),
    Link("l", "e/a"),
    Mode("e/a", 0o600),
    Put("big", "x", 5000),
)


def test_shells_do_what_the_oracle_says_they_do(tmp_path: Path) -> None:
    make(tmp_path, BEFORE)
    for n, effect in enumerate(EFFECTS, 1):
        subprocess.run(["sh", "-c", effect.shell()], cwd=tmp_path, check=True, umask=0o022)
        assert differences(on_disk(tmp_path), after(BEFORE, EFFECTS[:n])) == []


def test_every_beginning_fits_and_only_the_whole_is_all() -> None:
    for n in range(len(EFFECTS) + 1):
        so_far = after(BEFORE, EFFECTS[:n])
        assert fits(dict(BEFORE), EFFECTS, dict(so_far), "part")
        assert fits(dict(BEFORE), EFFECTS, dict(so_far), "all") == (n == len(EFFECTS))
        assert fits(dict(BEFORE), EFFECTS, dict(so_far), "none") == (n == 0)


def test_a_file_being_written_is_a_beginning_of_it() -> None:
    cut = after(BEFORE, EFFECTS[:-1])
    assert fits(dict(BEFORE), EFFECTS, {**cut, "big": text("x" * 77)}, "part")
    assert not fits(dict(BEFORE), EFFECTS, {**cut, "big": text("x" * 76 + "y")}, "part")


@pytest.mark.parametrize("odd", ["another's", "a gap"])
def test_what_is_no_beginning_does_not_fit(odd: str) -> None:
    found = after(BEFORE, EFFECTS)
    if odd == "a gap":
        del found["e/new"]
    else:
        found["stray"] = text("?")
    assert not fits(dict(BEFORE), EFFECTS, found, "part")
