"""A session that can't go on by itself says why, and which command answers it; that command then does."""

from __future__ import annotations

import os
import signal
import time

import pytest

from perdure.space import supervisor
from tests.cli.desk import Desk, bash, finish, turn, until

STAMPED_S = 3.5
"""A running command is stamped each second, and its end is then known to two."""


def cut_off(desk: Desk, *options: str) -> None:
    """A command in the middle of its work, and nothing that could say when it ended."""
    work = bash("echo theirs > theirs.txt; echo $$ > up; while :; do sleep 0.1; done")
    driver = desk.start("run", "x", "--session", "s", "--model", desk.script(turn("", work), "I looked."), *options)
    until(lambda: (desk.project / "up").exists() and (desk.project / "up").read_text())
    known = supervisor.recorded(desk.home / "spaces" / "s")
    assert known is not None
    driver.kill()
    os.kill(known.init.pid, signal.SIGKILL)
    finish(driver)


@pytest.mark.parametrize(("option", "kept"), [("--keep", True), ("--restore", False)])
def test_a_change_that_nobody_can_date_is_asked_about(desk: Desk, option: str, kept: bool) -> None:
    cut_off(desk)
    time.sleep(STAMPED_S)  # time is the fact: the change must be later than the command can have ended
    (desk.project / "mine.txt").write_text("mine\n")
    waits = desk.perdure("resume", "s")
    assert waits.returncode == 1
    assert "session s waits for changed_after_crash: " in waits.stderr and "mine.txt" in waits.stderr
    assert "    perdure resume s --keep " in waits.stderr and "    perdure resume s --restore " in waits.stderr
    assert desk.perdure("resume").returncode == 0  # nothing needs a driver: it waits for a person
    assert (desk.project / "mine.txt").read_text() == "mine\n"

    answered = desk.perdure("resume", "s", option)
    assert answered.returncode == 0, answered.stderr
    assert (desk.project / "mine.txt").exists() is kept
    assert not (desk.project / "theirs.txt").exists()
    if not kept:
        id = desk.perdure("salvage", "ls", "s").stdout.split()[0]
        desk.perdure("salvage", "apply", id, "s", "--to", "back")
        assert (desk.project / "back" / "mine.txt").read_text() == "mine\n"


def test_processes_that_can_not_be_proven_dead_are_named_until_they_are_accepted(desk: Desk) -> None:
    cut_off(desk, "--custody", "unproven")
    pid = int((desk.project / "up").read_text())
    waits = desk.perdure("resume")  # all of them, as a watcher would
    assert waits.returncode == 1
    assert "[s] perdure: waits for survivors: " in waits.stderr
    assert "    perdure resume s --accept " in waits.stderr
    again = desk.perdure("resume", "s")
    assert (again.returncode, "session s waits for survivors: " in again.stderr) == (1, True)
    accepted = desk.perdure("resume", "s", "--accept")
    assert accepted.returncode == 0, accepted.stderr
    if os.path.exists(f"/proc/{pid}"):  # noqa: PTH110
        os.kill(pid, signal.SIGKILL)
