"""Many runs, several at a time, and one line that says what came of them.

Each run has a seed of its own: the first one's is the campaign's, so that any run can be repeated alone. The runs are shared out to worker processes, each of
which forks its own drivers (`perdure.chaos.drivers`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
from msgspec import Struct

from perdure.chaos.plan import Space
from perdure.record.errors import UsageError
from perdure.space import sandbox
from perdure.space.launch import bubblewrap

KILLED_AFTER_S = 300.0
"""A worker that says nothing for so long is given up; the run in it counts as one that hangs."""


class Options(Struct, frozen=True):
    """`capture` None: chosen by each run's seed."""

    runs: int
    seed: int
    calls: int = 6
    space: Space = "host"
    capture: str | None = None
    jobs: int = 1
    keep: bool = False


class Asked(Struct, frozen=True):
    """One run, as a worker is asked for it."""

    seed: int
    folder: str
    options: Options


class Result(Struct, frozen=True):
    """What came of one run. `findings` say what was inconsistent."""

    seed: int
    findings: tuple[str, ...] = ()
    calls: int = 0
    kills: int = 0
    stops: int = 0
    people: int = 0
    recovered: int = 0
    undone: int = 0
    salvaged: int = 0
    seconds: float = 0.0


class Summary:
    def __init__(self) -> None:
        self.results: list[Result] = []
        self._began = time.monotonic()

    @property
    def inconsistent(self) -> int:
        return sum(bool(result.findings) for result in self.results)

    def line(self) -> str:
        names = ("calls", "kills", "stops", "people", "recovered", "undone", "salvaged")
        sums = " ".join(f"{name}={sum(getattr(result, name) for result in self.results)}" for name in names)
        seconds = time.monotonic() - self._began
        return f"SUMMARY runs={len(self.results)} {sums} inconsistent={self.inconsistent} seconds={seconds:.0f}"


def seed_of(seed: int, run: int) -> int:
    """The seed of a campaign's nth run, from 0."""
    return seed if run == 0 else int(hashlib.sha256(f"{seed}/{run}".encode()).hexdigest()[:12], 16)


class _Worker(NamedTuple):
    process: subprocess.Popen[bytes]
    seed: int
    folder: Path
    since: float


def run(options: Options, show: Callable[[Result, Path, Summary], None]) -> Summary:
    """All of them; `show` is called for each as it ends, with its folder. Ctrl-C ends it, with what there is by then."""
    return _Campaign(options, show).run()


def _folder(options: Options) -> Path:
    """Where the runs lie. UsageError where there can be none, before anything is begun."""
    if sys.platform != "linux":
        raise UsageError("a campaign kills by what Linux has in /proc; run it on Linux")
    try:
        folder = Path(tempfile.mkdtemp(prefix="perdure-chaos-"))
    except OSError as error:
        raise UsageError(
            f"no folder can be made for the runs ({error.strerror}); set TMPDIR to a directory that can be written"
        ) from error
    if options.space == "sandbox":
        try:
            sandbox.check(bubblewrap(), sandbox.Sandbox(), folder / "root", folder / "home")
        except UsageError:
            folder.rmdir()
            raise
    return folder


class _Campaign:
    def __init__(self, options: Options, show: Callable[[Result, Path, Summary], None]) -> None:
        self._options, self._show = options, show
        self._summary = Summary()
        self._folder = _folder(options)
        self._seeds = (seed_of(options.seed, n) for n in range(options.runs))
        self._selector = selectors.DefaultSelector()

    def run(self) -> Summary:
        try:
            with contextlib.suppress(KeyboardInterrupt):
                for _ in range(min(self._options.jobs, self._options.runs)):
                    self._begin()
                while self._selector.get_map():
                    for key, _ in self._selector.select(1.0):
                        self._hear(key.data)
                    self._end_silent()
        finally:
            for worker in list(self._workers()):
                self._end(worker)
            with contextlib.suppress(OSError):
                self._folder.rmdir()
        return self._summary

    def _workers(self) -> Iterator[_Worker]:
        return (key.data for key in list(self._selector.get_map().values()))

    def _begin(self) -> None:
        process = subprocess.Popen(
            [sys.executable, "-m", "perdure.chaos.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self._ask(process)

    def _ask(self, process: subprocess.Popen[bytes]) -> None:
        """The next run for this worker, or its end where there is none."""
        assert process.stdin is not None and process.stdout is not None
        seed = next(self._seeds, None)
        if seed is None:
            process.stdin.close()
            process.wait()
            return
        worker = _Worker(process, seed, self._folder / f"run-{seed}", time.monotonic())
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)
        process.stdin.write(msgspec.json.encode(Asked(seed, str(worker.folder), self._options)) + b"\n")
        process.stdin.flush()

    def _hear(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        self._selector.unregister(worker.process.stdout)
        line = worker.process.stdout.readline()
        if line:
            self._told(worker, msgspec.json.decode(line, type=Result))
            self._ask(worker.process)
        else:
            code = worker.process.wait()
            self._told(worker, Result(worker.seed, (f"the worker ended with {code}",)))
            self._begin_again()

    def _told(self, worker: _Worker, result: Result) -> None:
        self._summary.results.append(result)
        self._show(result, worker.folder, self._summary)
        if not (result.findings or self._options.keep):
            shutil.rmtree(worker.folder, ignore_errors=True)

    def _begin_again(self) -> None:
        if len(self._summary.results) + len(list(self._workers())) < self._options.runs:
            self._begin()

    def _end_silent(self) -> None:
        for worker in self._workers():
            if time.monotonic() - worker.since > KILLED_AFTER_S:
                self._end(worker)
                self._told(worker, Result(worker.seed, (f"hangs: nothing was heard of the run for {KILLED_AFTER_S:g} s",)))
                self._begin_again()

    def _end(self, worker: _Worker) -> None:
        """It ends everything of its run first."""
        assert worker.process.stdout is not None
        with contextlib.suppress(KeyError):
            self._selector.unregister(worker.process.stdout)
        worker.process.terminate()
        try:
            worker.process.wait(15.0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(worker.process.pid, signal.SIGKILL)
            worker.process.wait()
        shutil.rmtree(worker.folder, ignore_errors=True)
