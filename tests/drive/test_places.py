"""A tool outside of the Space acts no longer than the driver that waits for it lives."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from perdure.space import death
from tests.program import functions

RUN = """
import asyncio, os, sys
from perdure.drive.places import Processes
from perdure.program.tools import from_function
from tests.program import functions
asyncio.run(Processes(os.environ).run(from_function(functions.hang), {"mark": sys.argv[1]}, "key", 60.0))
"""


def test_a_tool_dies_with_its_driver(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    driver = subprocess.Popen([sys.executable, "-c", RUN, str(mark)], cwd=Path(functions.__file__).parents[2])
    while not (mark.exists() and mark.read_text()):
        assert driver.poll() is None
        time.sleep(0.01)
    driver.kill()
    driver.wait()
    deadline = time.monotonic() + 10
    while death.identify(int(mark.read_text())) is not None:
        assert time.monotonic() < deadline, "the tool lives on"
        time.sleep(0.01)
