"""Ctrl-C stops the turn and nothing else; told to go, a driver leaves in order, and what runs goes on without it."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.cli.desk import Desk, bash, finish, turn, until

SLOW = bash("echo begun >> count; for i in $(seq 40); do sleep 0.1; [ -e stop ] && break; done; echo ended >> count")


def begun(desk: Desk) -> bool:
    return (desk.project / "count").exists()


def test_the_first_ctrl_c_stops_the_command_and_the_session_waits_for_its_person(desk: Desk) -> None:
    driver = desk.start("run", "x", "--session", "s", "--model", desk.script(turn("", SLOW), "Never."))
    until(lambda: begun(desk))
    driver.send_signal(signal.SIGINT)
    code, out, errors = finish(driver)
    assert code == 1
    assert "✗ aborted: Ctrl-C" in out
    assert "Ctrl-C again leaves at once" in errors
    assert (desk.project / "count").read_text() == "begun\n"
    assert desk.json("ls", "--json")[0]["status"] == "settled"


def test_the_second_ctrl_c_leaves_as_a_crash_would(desk: Desk) -> None:
    """The supervisor is frozen, so that the first Ctrl-C can't be over before the second comes."""
    driver = desk.start("run", "x", "--session", "s", "--model", desk.script(turn("", SLOW), "Never."))
    until(lambda: begun(desk))
    supervisor = next(record["init"]["pid"] for record in desk.log("s") if record["kind"] == "space_opened")
    os.kill(supervisor, signal.SIGSTOP)
    driver.send_signal(signal.SIGINT)
    until(lambda: "abort_requested" in desk.kinds("s"))
    driver.send_signal(signal.SIGINT)
    assert finish(driver)[0] == 130
    os.kill(supervisor, signal.SIGCONT)
    assert desk.json("ls", "--json")[0]["waiting_for"] == "needs_driver"
    assert desk.perdure("resume", "s").returncode == 1
    assert "submission_settled" in desk.kinds("s")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_driver_that_is_told_to_go_leaves_what_runs_to_the_next(desk: Desk, number: signal.Signals, code: int) -> None:
    driver = desk.start("run", "x", "--session", "s", "--model", desk.script(turn("", SLOW), "Done."))
    until(lambda: begun(desk))
    told = time.monotonic()
    driver.send_signal(number)
    ended, _, errors = finish(driver)
    assert time.monotonic() - told < 2.5
    assert ended == code
    assert "`perdure resume` goes on with it" in errors
    assert desk.json("ls", "--json")[0]["waiting_for"] == "needs_driver"
    (desk.project / "stop").touch()
    resumed = desk.perdure("resume", "s")
    assert resumed.returncode == 0, resumed.stderr
    assert (desk.project / "count").read_text() == "begun\nended\n"
    assert "Done." in resumed.stdout
