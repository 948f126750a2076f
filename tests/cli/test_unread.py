"""Output that nobody reads any more, or that has no room, is dropped; the work goes on."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.cli.desk import PATIENCE_S, PERDURE, Desk, bash, turn, until

TWO_CALLS = (turn("", bash("touch begun; while [ ! -e go ]; do sleep 0.05; done")), turn("", bash("touch second")), "Done.")


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_readers_that_are_gone_from_the_first_byte_stop_no_work(desk: Desk, options: tuple[str, ...]) -> None:
    """With both streams broken even a notice must not end the driver: here one tells of a killed supervisor."""
    reading, writing = os.pipe()
    os.close(reading)
    driver = subprocess.Popen(
        [*PERDURE, "run", "x", "--session", "s", "--model", desk.script(*TWO_CALLS), *options],
        cwd=desk.project,
        env=desk.environment,
        stdin=subprocess.DEVNULL,
        stdout=writing,
        stderr=writing,
    )
    os.close(writing)
    until(lambda: (desk.project / "begun").exists())
    opened = [record for record in desk.log("s") if record["kind"] == "space_opened"]
    os.kill(opened[-1]["init"]["pid"], signal.SIGKILL)
    assert driver.wait(PATIENCE_S) == 0
    assert (desk.project / "second").exists()


def test_a_reader_that_does_not_read_holds_up_neither_work_nor_leaving(desk: Desk) -> None:
    """A pager that nobody scrolls, a terminal that was stopped with Ctrl-S."""
    reading, writing = os.pipe()
    much = turn("word " * 60_000, bash("touch begun; while [ ! -e go ]; do sleep 0.05; done"))
    driver = subprocess.Popen(
        [*PERDURE, "run", "x", "--session", "s", "--model", desk.script(much, "Done.")],
        cwd=desk.project,
        env=desk.environment,
        stdin=subprocess.DEVNULL,
        stdout=writing,
    )
    os.close(writing)
    until(lambda: (desk.project / "begun").exists())
    driver.send_signal(signal.SIGTERM)
    assert driver.wait(PATIENCE_S) == 128 + signal.SIGTERM
    os.close(reading)
    (desk.project / "go").touch()
    resumed = desk.perdure("resume", "s")
    assert (resumed.returncode, resumed.stdout.splitlines()[-1]) == (0, "· answered")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_output_on_a_full_disk_stops_no_work(desk: Desk) -> None:
    (desk.project / "go").touch()
    with open("/dev/full", "w") as full:
        arguments = [*PERDURE, "run", "x", "--session", "s", "--model", desk.script(*TWO_CALLS)]
        ran = subprocess.run(
            arguments, cwd=desk.project, env=desk.environment, stdout=full, stderr=full, timeout=PATIENCE_S, check=False
        )
    assert ran.returncode == 0
    assert (desk.project / "second").exists()
