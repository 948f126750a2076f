"""What recovery took back can be looked at and brought back, and never lands on top of anything."""

from __future__ import annotations

import os
import signal

from perdure.space import supervisor
from tests.cli.desk import Desk, bash, finish, turn, until

HALF = "printf 'half\\n' > kept.txt; mkdir new; printf '#!/bin/sh\\n' > new/tool; chmod +x new/tool"


def cut_off(desk: Desk, command: str = HALF) -> None:
    """A command that had written half of what it wanted when everything died."""
    (desk.project / "kept.txt").write_text("before\n")
    work = bash(f"{command}; touch up; sleep 60")
    model = desk.script(turn("", work), turn("I look first.", expect="cut off.*Taken back"))
    driver = desk.start("run", "x", "--session", "s", "--model", model)
    until((desk.project / "up").exists)
    known = supervisor.recorded(desk.home / "spaces" / "s")
    assert known is not None
    driver.kill()
    os.kill(known.init.pid, signal.SIGKILL)
    finish(driver)


def test_it_is_listed_compared_and_written_into_a_new_folder(desk: Desk) -> None:
    cut_off(desk)
    resumed = desk.perdure("resume", "s")
    assert resumed.returncode == 0, resumed.stderr + resumed.stdout
    assert (desk.project / "kept.txt").read_text() == "before\n"
    assert not (desk.project / "new").exists()

    (line,) = desk.perdure("salvage", "ls", "s").stdout.splitlines()
    id = line.split()[0]
    assert "main.1.0" in line and "kept.txt" in line
    assert f"salvage {id}" in desk.perdure("show", "s").stdout

    shown = desk.perdure("salvage", "diff", id, "s").stdout
    assert "-before\n" in shown and "+half\n" in shown and "added new/tool" in shown

    applied = desk.perdure("salvage", "apply", id[:5], "s", "--to", "back")
    assert applied.returncode == 0, applied.stderr
    assert (desk.project / "back" / "kept.txt").read_text() == "half\n"
    assert (desk.project / "back" / "new" / "tool").stat().st_mode & 0o777 == 0o755
    assert (desk.project / "kept.txt").read_text() == "before\n"
    again = desk.perdure("salvage", "apply", id, "s", "--to", "back")
    assert (again.returncode, "back can't be made: File exists" in again.stderr) == (2, True)


def test_what_was_too_large_to_be_stored_is_listed_with_its_place(desk: Desk) -> None:
    cut_off(desk, "mkdir new; truncate --size 300M new/large; printf end >> new/large")
    assert desk.perdure("resume", "s").returncode == 0
    assert not (desk.project / "new").exists()
    (place,) = [line.split()[0] for line in desk.perdure("salvage", "ls", "s").stdout.splitlines() if "too large" in line]
    with open(place, "rb") as file:
        file.seek(300 << 20)
        assert file.read() == b"end"
