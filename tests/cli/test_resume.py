"""`resume`: after whatever happened, and whoever else is at it."""

from __future__ import annotations

import shutil
import signal

from tests.cli.desk import Desk, bash, call, finish, turn, until

HELD = bash("echo begun >> count; until [ -e go ]; do sleep 0.05; done; echo ended >> count")


def begun(desk: Desk) -> bool:
    return (desk.project / "count").exists()


def killed_in_a_command(desk: Desk, session: str = "s") -> None:
    """A driver that is gone, and a command that is not."""
    driver = desk.start("run", "x", "--session", session, "--model", desk.script(turn("", HELD), "Done."))
    until(lambda: begun(desk))
    driver.kill()
    finish(driver)


def test_a_command_goes_on_without_its_driver_and_is_taken_over(desk: Desk) -> None:
    killed_in_a_command(desk)
    (row,) = desk.json("ls", "--json")
    assert (row["status"], row["waiting_for"], row["dir"]) == ("waiting", "needs_driver", str(desk.project))
    (desk.project / "go").touch()
    done = desk.perdure("resume", "s")
    assert done.returncode == 0, done.stderr
    (told,) = [line for line in done.stdout.splitlines() if line.startswith("↻ bash   echo begun")]
    assert "still runs, and is followed on" in told or "its recorded outcome was taken over" in told
    assert (desk.project / "count").read_text() == "begun\nended\n"
    assert desk.perdure("verify", "s").returncode == 0


def test_without_a_name_everything_that_needs_a_driver_is_driven(desk: Desk) -> None:
    killed_in_a_command(desk)
    (desk.project / "go").touch()
    done = desk.perdure("resume")
    assert done.returncode == 0, done.stderr
    assert "[s] ↻ bash   echo begun" in done.stdout and "[s] Done." in done.stdout
    again = desk.perdure("resume")
    assert (again.returncode, again.stderr) == (0, "no session needs a driver\n")
    settled = desk.perdure("resume", "s")
    assert (settled.returncode, "there is nothing to go on with" in settled.stderr) == (0, True)


def test_a_watcher_takes_over_as_soon_as_a_driver_dies(desk: Desk) -> None:
    watcher = desk.start("resume", "--watch")
    driver = desk.start("run", "x", "--session", "s", "--model", desk.script(turn("", HELD), "Done."))
    until(lambda: begun(desk))
    driver.kill()
    finish(driver)
    until(lambda: desk.kinds("s").count("epoch_raised") == 2)
    (desk.project / "go").touch()
    assert desk.perdure("wait", "s", "--timeout", "20").stdout == "Done.\n"
    watcher.send_signal(signal.SIGINT)
    code, out, _ = finish(watcher)
    assert (code, "[s] Done." in out) == (130, True)


def test_a_living_driver_is_left_alone_unless_it_is_to_be_taken_over(desk: Desk) -> None:
    driver = desk.start("run", "x", "--session", "s", "--model", desk.script(turn("", HELD), "Done."))
    until(lambda: begun(desk))
    nothing = desk.perdure("resume")
    assert nothing.returncode == 0 and "no session needs a driver" in nothing.stderr, "what others drive is not waited for"
    refused = desk.perdure("resume", "s")
    assert refused.returncode == 1
    assert f"is driven by process {driver.pid}" in refused.stderr
    assert desk.json("ls", "--json")[0] | {"status": "running", "driver": driver.pid} == desk.json("ls", "--json")[0]
    taker = desk.start("resume", "s", "--take")
    code, _, errors = finish(driver)
    (desk.project / "go").touch()
    assert (finish(taker)[0], code) == (0, 75), errors
    assert "Traceback" not in errors
    assert (desk.project / "count").read_text() == "begun\nended\n"


def test_a_prompt_for_a_session_that_is_driven_elsewhere_waits_for_its_turn_there(desk: Desk) -> None:
    model = desk.script(turn("", HELD), "First.", turn("Second.", expect="^and more$"))
    driver = desk.start("run", "x", "--session", "s", "--model", model)
    until(lambda: begun(desk))
    second = desk.start("run", "and more", "--session", "s")
    until(lambda: desk.kinds("s").count("submission_admitted") == 2)
    (desk.project / "go").touch()
    code, out, errors = finish(second)
    assert (code, "Second." in out) == (0, True), errors
    assert finish(driver)[0] == 0


def test_who_follows_another_driver_goes_on_when_that_one_dies(desk: Desk) -> None:
    model = desk.script(turn("", HELD), "First.", turn("Second.", expect="^and more$"))
    driver = desk.start("run", "x", "--session", "s", "--model", model)
    until(lambda: begun(desk))
    second = desk.start("run", "and more", "--session", "s")
    until(lambda: desk.kinds("s").count("submission_admitted") == 2)
    driver.kill()
    finish(driver)
    until(lambda: desk.kinds("s").count("epoch_raised") == 2)
    (desk.project / "go").touch()
    code, out, errors = finish(second)
    assert (code, "First." in out, "Second." in out) == (0, True, True), errors
    assert (desk.project / "count").read_text() == "begun\nended\n"


def test_a_session_that_is_driven_is_stopped_before_it_is_given_up(desk: Desk) -> None:
    driver = desk.start("run", "x", "--session", "s", "--model", desk.script(turn("", HELD), "Done."))
    until(lambda: begun(desk))
    given_up = desk.perdure("abandon", "s")
    assert (given_up.returncode, finish(driver)[0]) == (0, 1), given_up.stderr
    assert (desk.project / "count").read_text() == "begun\n"
    assert desk.json("ls", "--json")[0]["status"] == "settled"


def test_a_root_that_is_gone_is_waited_for_and_can_be_given_up(desk: Desk) -> None:
    killed_in_a_command(desk)
    desk.end_supervisors()
    moved = desk.project.rename(desk.folder / "moved")
    desk.project.mkdir()
    waits = desk.perdure("resume", "s")
    assert waits.returncode == 1
    assert "session s waits for root_replaced" in waits.stderr
    assert "    perdure abandon s   gives the session up" in waits.stderr
    assert desk.json("ls", "--json")[0]["waiting_for"] == "root_replaced"

    given_up = desk.perdure("abandon", "s")
    assert given_up.returncode == 0, given_up.stderr
    assert "is given up" in given_up.stdout
    (finished,) = [record for record in desk.log("s") if record["kind"] == "call_finished"]
    assert finished["outcome"] == "unknown"
    assert desk.json("ls", "--json")[0]["status"] == "settled"
    assert (moved / "count").read_text() == "begun\n"
    new = desk.perdure("run", "x", "--model", desk.script(turn("", call("write", path="b", content="b")), "Mine now."))
    assert new.returncode == 0, new.stderr


def test_a_directory_of_an_unsettled_session_is_refused_to_others(desk: Desk) -> None:
    killed_in_a_command(desk)
    for directory in (desk.project, desk.folder / "project" / "inside", desk.folder):
        directory.mkdir(exist_ok=True)
        environment = {"PERDURE_HOME": str(desk.home)}
        if directory == desk.folder:
            continue  # it holds the home as well, which is refused before
        refused = desk.perdure("run", "x", "--model", desk.script("Hi."), "-C", str(directory), **environment)
        assert refused.returncode == 2
        assert "perdure resume s" in refused.stderr and "perdure abandon s" in refused.stderr
    assert len(desk.json("ls", "--json")) == 1
    shutil.rmtree(desk.folder / "project" / "inside")
