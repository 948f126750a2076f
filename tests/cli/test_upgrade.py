"""Sessions live through an upgrade: what an older supervisor runs goes on, and it makes room for a new one when nothing does."""

from __future__ import annotations

import shutil
from pathlib import Path

import perdure
from perdure.spaced.release import RELEASE
from tests.cli.desk import Desk, bash, turn, until


def test_the_supervisors_release_is_the_packages() -> None:
    assert perdure.__version__ == RELEASE


def older_release(desk: Desk) -> dict[str, str]:
    """The variables with which `perdure` is this code under another release's name."""
    source = desk.folder / "older" / "perdure"
    shutil.copytree(Path(perdure.__file__).parent, source, ignore=shutil.ignore_patterns("__pycache__"))
    release = source / "spaced" / "release.py"
    release.write_text(release.read_text().replace(RELEASE, "0.0.9"))
    return {"PYTHONPATH": str(source.parent)}


def instances(desk: Desk, session: str) -> list[int]:
    return [record["instance"] for record in desk.log(session) if record["kind"] == "space_opened"]


def test_an_older_supervisor_goes_when_nothing_runs_under_it(desk: Desk) -> None:
    older = older_release(desk)
    model = desk.script(turn("", bash("echo one >> log")), "One.", turn("", bash("echo two >> log")), "Two.")
    assert desk.perdure("run", "first", "--session", "s", "--model", model, **older).returncode == 0
    assert desk.perdure("run", "second", "--session", "s").stdout.endswith("Two.\n· answered\n")
    assert instances(desk, "s") == [1, 2]
    assert (desk.project / "log").read_text() == "one\ntwo\n"


def test_what_an_older_supervisor_runs_is_left_alone(desk: Desk) -> None:
    older = older_release(desk)
    turns = (
        turn("", bash("until test -e stop; do sleep 0.05; done; touch stopped", background=True)),
        "One.",
        turn("", bash("true")),
        "Two.",
        turn("", bash("true")),
        "Three.",
    )
    model = desk.script(*turns)
    assert desk.perdure("run", "first", "--session", "s", "--model", model, **older).returncode == 0
    assert "Two." in desk.perdure("run", "second", "--session", "s").stdout
    assert instances(desk, "s") == [1]
    (desk.project / "stop").touch()
    until(lambda: (desk.project / "stopped").exists())
    assert "Three." in desk.perdure("run", "third", "--session", "s").stdout
    assert instances(desk, "s") == [1, 2]
