"""Processes of the command line that are forked and not started: each is one of its own, and its end is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STORY = """
import sys, time
from pathlib import Path
from perdure.chaos.drivers import Drivers
drivers, folder = Drivers.begin(), Path(sys.argv[1])
def run(*arguments):
    out = folder / arguments[0]
    pid = drivers.start(list(arguments), env={"PERDURE_HOME": str(folder / "home")}, directory=folder, out=out)
    assert pid not in drivers.ended, "a new process has ended before it began"
    while pid not in drivers.ended:
        drivers.look(1.0)
    return pid, drivers.ended[pid], out.read_text()
_, status, said = run("ls")
assert status == 0, (status, said)
_, status, said = run("resume", "nobody")
assert status == 2 << 8 and "nobody" in said, (status, said)
drivers.ended.update(dict.fromkeys(range(1, 1 << 22), 9))
run("ls")
drivers.close()
"""


def test_drivers_are_forked_told_of_and_never_taken_for_an_earlier_one(tmp_path: Path) -> None:
    """In a process of its own; at its end every number of a process has been used before."""
    done = subprocess.run([sys.executable, "-c", STORY, str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
