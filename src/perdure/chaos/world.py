"""The world of one run: a folder with home, workspace and counters, the processes in it, and what may be done to them.

    home/  root/  effects/  out/  script.json

Every process that is started there carries `PERDURE_CHAOS=<folder>` in its environment, but for the drivers, which are known by their pids.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from perdure.chaos.drivers import HOLD, Drivers
from perdure.chaos.files import make
from perdure.chaos.plan import Plan, Step
from perdure.space import death, sandbox, supervisor
from perdure.spaced import steps

SESSION = "s"
FIRST = "go"
"""The first submission, and its id."""

MARK = "PERDURE_CHAOS"
LOOK_S = 0.004
PROC = Path("/proc")


class HangingError(Exception):
    """Something that has to come did not."""


class Started(NamedTuple):
    """A process of ours; `out` holds what it wrote, `steps` the steps that it took. `pidfd` is None where it was over before it could be had."""

    pid: int
    pidfd: int | None
    name: str
    arguments: tuple[str, ...]
    out: Path
    steps: Path

    def said(self) -> str:
        return self.out.read_text(errors="replace") if self.out.exists() else ""


class World:
    def __init__(self, folder: Path, plan: Plan, drivers: Drivers) -> None:
        self.folder, self.plan = folder, plan
        self.home, self.root, self.effects, self.out = (folder / name for name in ("home", "root", "effects", "out"))
        for path in (self.root, self.effects, self.out):
            path.mkdir(parents=True)
        make(self.root, plan.before())
        if plan.git:
            self._make_repository()
        self.script = plan.script(folder / "script.json")
        self.living: list[Started] = []
        self._drivers = drivers
        self._started = 0
        self._stopped: list[tuple[int, str]] = []
        self._armed: list[Path] = []
        self._log = open(folder / "events", "w")  # noqa: SIM115
        self._began = time.monotonic()

    def _make_repository(self) -> None:
        for arguments in (
            ["init", "-q"],
            ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "begin"],
        ):
            subprocess.run(["git", *arguments], cwd=self.root, check=True, stdin=subprocess.DEVNULL)

    def note(self, what: str) -> None:
        """For whoever looks at a failing run."""
        self._log.write(f"{time.monotonic() - self._began:8.3f} {time.time_ns()} {what}\n")
        self._log.flush()

    # ---- processes of the command line -------------------------------------------------------------------------------------

    def start(self, *arguments: str, step: Step | None = None) -> Started:
        self._started += 1
        name = f"{self._started}-{arguments[0]}"
        traced, setting = self._steps(f"steps-{self._started}", step)
        env = {"PERDURE_HOME": str(self.home), MARK: str(self.folder), steps.ENVIRONMENT: setting, "NO_COLOR": "1"}
        pid = self._drivers.start(list(arguments), env=env, directory=self.folder, out=self.out / name)
        started = Started(pid, _pidfd(pid), name, arguments, self.out / name, traced)
        if step is not None:
            self._armed.append(traced)
        self.living.append(started)
        self.note(f"{name}: pid {pid}, {' '.join(arguments)}{f', {setting}' if step else ''}")
        return started

    def _steps(self, name: str, step: Step | None) -> tuple[Path, str]:
        """Where a driver's or a supervisor's steps are told, and what it is told to do; a sandbox sees the state folder alone, at a place of its own."""
        inside = step is not None and step.role == "spaced" and self.plan.space == "sandbox"
        traced = (self.state_folder if inside else self.folder) / name
        told = f"{sandbox.STATE}/{name}" if inside else traced
        return traced, f"{step.role}:{step.at}:{step.action}:{told}" if step else ""

    def hold_lock(self) -> Started:
        return self.start(HOLD)

    def status(self, started: Started) -> int | None:
        """Its exit code, below 0 for a signal; None while it lives."""
        self._drivers.look()
        status = self._drivers.ended.get(started.pid)
        if status is None:
            return None
        code = os.waitstatus_to_exitcode(status)
        if started in self.living:
            self.living.remove(started)
            if started.pidfd is not None:
                os.close(started.pidfd)
            self.note(f"{started.name} ended with {code}")
        return code

    def finish(self, started: Started, timeout_s: float) -> int:
        """Wait for its end; HangingError after the time."""
        deadline = time.monotonic() + timeout_s
        while (code := self.status(started)) is None:
            if time.monotonic() > deadline:
                raise HangingError(
                    f"`perdure {started.name.partition('-')[2]}` (pid {started.pid}) did not end within {timeout_s:g} s"
                )
            self._drivers.look(0.05)
        return code

    def run(self, *arguments: str, timeout_s: float) -> tuple[int, str]:
        """A command from start to end: its exit code and what it said."""
        started = self.start(*arguments)
        return self.finish(started, timeout_s), started.said()

    def alive(self) -> list[Started]:
        """Those of the command line that live."""
        return [started for started in list(self.living) if self.status(started) is None]

    def send(self, started: Started, number: signal.Signals) -> None:
        self.note(f"{number.name} to {started.name}")
        if started.pidfd is None:
            return
        with contextlib.suppress(ProcessLookupError, OSError):
            signal.pidfd_send_signal(started.pidfd, number)
        if number == signal.SIGSTOP:
            self._stopped.append((os.dup(started.pidfd), started.name))

    # ---- processes of the Space --------------------------------------------------------------------------------------------

    @property
    def state_folder(self) -> Path:
        return self.home / "spaces" / SESSION

    def supervisor(self) -> int | None:
        """The pid of the living supervisor, where its folder names one."""
        known = supervisor.recorded(self.state_folder)
        if known is not None and death.dead(known.init, known.boot_id) is False:
            return known.init.pid
        return None

    def processes(self) -> dict[int, bool]:
        """Everything of this run but the command line: by pid, whether it is a call's."""
        mark, found = f"{MARK}={self.folder}\0".encode(), {}
        for entry in PROC.iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit():
                    environ = (entry / "environ").read_bytes() + b"\0"
                    if mark in environ or str(self.state_folder).encode() in (entry / "cmdline").read_bytes():
                        found[int(entry.name)] = b"PERDURE_CALL_KEY=" in environ
        return found

    def strike(self, pid: int, number: signal.Signals, what: str) -> bool:
        """Signal a process that is not a child of ours; whether it was there."""
        try:
            pidfd = os.pidfd_open(pid)
        except OSError:
            return False
        self.note(f"{number.name} to {what} {pid}")
        try:
            signal.pidfd_send_signal(pidfd, number)
            if number == signal.SIGSTOP:
                self._stopped.append((os.dup(pidfd), what))
        except OSError:
            return False
        finally:
            os.close(pidfd)
        return True

    def thaw(self, of: Started | None = None) -> None:
        """Whatever was stopped goes on, or only what was stopped of one process of the command line."""
        chosen = [item for item in self._stopped if of is None or item[1] == of.name]
        self._stopped = [item for item in self._stopped if item not in chosen]
        for pidfd, what in chosen:
            self.note(f"SIGCONT to {what}")
            with contextlib.suppress(OSError):
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            os.close(pidfd)

    def disarm(self) -> None:
        """Nothing is to happen at a step any more: what was asked of a supervisor may lie ahead of it still, at its end."""
        for traced in self._armed:
            for mark in ("fired", "go"):
                with contextlib.suppress(OSError):  # a state folder that was deleted
                    traced.with_name(f"{traced.name}.{mark}").touch()
        self._armed.clear()

    # ---- its end -----------------------------------------------------------------------------------------------------------

    def close(self, *, keep: bool) -> None:
        """Nothing of it runs on."""
        self.thaw()
        for started in self.alive():
            self.send(started, signal.SIGKILL)
            with contextlib.suppress(HangingError):
                self.finish(started, 5.0)
        for pid in self.processes():
            self.strike(pid, signal.SIGKILL, f"what is left, {command_of(pid)},")
        self._log.close()
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None


def command_of(pid: int) -> str:
    """Its command line, for people."""
    try:
        return (PROC / str(pid) / "cmdline").read_text(errors="replace").replace("\0", " ")[:200]
    except OSError:
        return "gone"


def wait_for(fact: Callable[[], object], what: str, timeout_s: float) -> None:
    """Until it is true; HangingError, naming what did not come, after the time."""
    deadline = time.monotonic() + timeout_s
    while not fact():
        if time.monotonic() > deadline:
            raise HangingError(f"{what} did not come within {timeout_s:g} s")
        time.sleep(LOOK_S)
