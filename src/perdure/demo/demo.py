"""The demonstration: an agent mends a small project and is killed three times on the way.

    1. the driver, in the middle of a command          the command runs on and is adopted
    2. driver, supervisor and command, in mid write     the files are put back, the model is told and looks
    3. the driver, in the middle of an answer           the text is continued

Each driver is a real process of the command line, each kill a real SIGKILL. This process only watches the log, waits for the moment, and kills.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from perdure.engine.home import Home
from perdure.history.line import Line
from perdure.history.paint import Paint
from perdure.history.timeline import Kill, tally, timeline
from perdure.history.transcript import transcript
from perdure.record import records as r
from perdure.record.errors import PerdureError
from perdure.record.records import Stored

HERE = Path(__file__).parent
SESSION = "demo"
PROMPT = "A discount over several lines loses a cent. Find out why, mend it, and add tests and more cases."
TOLD = ("kill", "recovery", "session", "failure")
MID_COMMAND_S = 1.0
MID_ANSWER_CHARS = 150
LIMIT_S = 600.0


def main(model: str | None = None, *, keep: bool = False) -> int:
    """Run it and show what happened; 0 if the agent finished, the files are right and the tests pass. `keep` leaves the folder."""
    folder = Path(tempfile.mkdtemp(prefix="perdure-demo-"))
    try:
        return asyncio.run(_Demo(folder, model or f"scripted:{HERE / 'script.json'}").run())
    finally:
        if keep:
            click.echo(f"The demonstration's folder is {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


class _Demo:
    def __init__(self, folder: Path, model: str) -> None:
        self._project = folder / "shop"
        self._home_path = folder / "home"
        self._model = model
        self._kills: list[Kill] = []
        self._records: list[Stored] = []
        self._driver: subprocess.Popen[bytes] | None = None
        self._printed = 0

    async def run(self) -> int:
        shutil.copytree(HERE / "project", self._project)
        click.secho(f"An agent mends a project in {self._project}. It will be killed three times.\n", bold=True)
        self._start("run", PROMPT, "-C", str(self._project), "--session", SESSION, "--model", self._model)
        home = await Home.open(self._home_path)
        try:
            await self._until(home, self._mid_command)
            self._kill("the driver, in the middle of a command")
            self._start("resume", SESSION)
            first = self._running()
            await self._until(home, lambda: self._mid_command() and self._running() != first)
            self._kill("driver, supervisor and command, in the middle of writing files", supervisor=True)
            self._start("resume", SESSION)
            await self._until(home, None, lambda: self._mid_answer(home))
            self._kill("the driver, in the middle of an answer")
            self._start("resume", SESSION)
            await self._until(home, self._settled)
        finally:
            self._end_driver()
            await home.close()
        return self._report()

    # ---- driving and killing -----------------------------------------------------------------------------------------------

    def _start(self, *arguments: str) -> None:
        self._end_driver()
        self._driver = subprocess.Popen(
            [sys.executable, "-c", "from perdure.cli.main import main; main()", *arguments],
            env={**os.environ, "PERDURE_HOME": str(self._home_path)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def _kill(self, what: str, *, supervisor: bool = False) -> None:
        assert self._driver is not None
        self._driver.kill()
        if supervisor:
            opened = [s.body for s in self._records if isinstance(s.body, r.SpaceOpened)][-1]
            os.kill(opened.init.pid, signal.SIGKILL)
        self._kills.append(Kill(time.time(), what))
        click.secho(f"\n  ✗ SIGKILL  {what}\n", fg="red", bold=True)

    def _end_driver(self) -> None:
        if self._driver is not None:
            if self._driver.poll() is None:
                self._driver.terminate()
            self._driver.communicate()

    # ---- watching ----------------------------------------------------------------------------------------------------------

    async def _until(self, home: Home, moment: Callable[[], bool] | None, look: Callable[[], object] | None = None) -> None:
        """Show records as they come, until the moment is there."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            await self._show(home)
            if (moment is not None and moment()) or (look is not None and await look()):  # type: ignore[misc]
                return
            if moment != self._settled and self._settled():
                return
            assert self._driver is not None
            if self._driver.poll() not in (None, 0):
                _, errors = self._driver.communicate()
                raise PerdureError(f"the driver ended with {self._driver.returncode}: {errors.decode().strip()}")
            if time.monotonic() > deadline:
                raise PerdureError(f"the demonstration did not get on within {LIMIT_S:g} s")
            await asyncio.sleep(0.02)

    async def _show(self, home: Home) -> None:
        after = self._records[-1].seq if self._records else 0
        try:
            new = [stored async for stored in home.store.read(SESSION, after)]
        except PerdureError:
            return  # the first driver has not made the session yet
        self._records += new
        for line in transcript(self._records, output_lines=2):
            if line.seq > after and "not finished" not in line.text:
                _echo(line)

    def _running(self) -> str | None:
        """The command that runs, by its call."""
        open_calls = [s.body.call for s in self._records if isinstance(s.body, r.CallStarted) and s.body.effect == "external"]
        finished = {s.body.call for s in self._records if isinstance(s.body, r.CallFinished)}
        return open_calls[-1] if open_calls and open_calls[-1] not in finished else None

    def _mid_command(self) -> bool:
        call = self._running()
        started = [s.at for s in self._records if isinstance(s.body, r.CallStarted) and s.body.call == call]
        return call is not None and time.time() - started[-1] > MID_COMMAND_S

    async def _mid_answer(self, home: Home) -> bool:
        turns = [s.body.turn for s in self._records if isinstance(s.body, r.TurnStarted)]
        answered = {s.body.turn for s in self._records if isinstance(s.body, r.ModelResponded)}
        if not turns or turns[-1] in answered:
            return False
        pieces = await home.live.read(SESSION, "main", turns[-1], 1)
        return sum(len(piece.text) for piece in pieces if piece.channel == "text") > MID_ANSWER_CHARS

    def _settled(self) -> bool:
        return any(isinstance(s.body, r.SubmissionSettled) for s in self._records)

    # ---- the report --------------------------------------------------------------------------------------------------------

    def _report(self) -> int:
        click.secho("\nThe kills, and what became of them", bold=True)
        for line in timeline(self._records, self._kills):
            if line.style in TOLD or line.text.endswith("begins"):
                _echo(line)
        sums = tally(self._records)
        verified = self._command("verify", SESSION)
        tests = subprocess.run(["sh", "check"], cwd=self._project, capture_output=True, text=True)
        runs = self._project.parent / "acceptance.log"
        click.echo()
        _check(sums.settled, f"the agent finished, with {sums.drivers} drivers and {sums.supervisors} supervisors")
        _check(verified.returncode == 0, f"the directory is what the log says: {verified.stdout.strip().splitlines()[-1]}")
        _check(tests.returncode == 0, f"the project's tests pass: {(tests.stderr.strip().splitlines() or ['no output'])[-1]}")
        if runs.exists():
            count = len(runs.read_text().splitlines())
            _check(count == 1, f"the command that was running at the first kill ran {'once' if count == 1 else f'{count} times'}")
        return 0 if sums.settled and verified.returncode == 0 and tests.returncode == 0 else 1

    def _command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", "from perdure.cli.main import main; main()", *arguments],
            env={**os.environ, "PERDURE_HOME": str(self._home_path)},
            capture_output=True,
            text=True,
        )


def _echo(line: Line) -> None:
    print("  " + Paint(sys.stdout).line(line), flush=True)


def _check(right: bool, text: str) -> None:
    click.secho(f"  {'✓' if right else '✗'} {text}", fg="green" if right else "red", bold=True)
