"""Real processes of the command line, without a start of the interpreter for each: they are forked from one that has everything imported.

`Drivers.begin()` forks that one before this process has a thread or an open file of a log. It only forks, waits and reports, so every driver is as fresh as if
it had been started from a shell: its own process, session, environment, working directory and output.

Over a socket pair, a line of JSON each: {"args", "env", "directory", "out"} → {"pid"}, and later {"ended": pid, "status"}, a wait status of waitpid(2).
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from perdure.spaced import steps

HOLD = "hold"
"""Instead of a command: sit in a transaction of the home, stopped."""

LOADED = (
    "perdure.cli.main",
    "perdure.cli.run",
    "perdure.cli.resume",
    "perdure.cli.inbox",
    "perdure.cli.verifying",
    "perdure.cli.salvage",
)
ALSO = ("perdure.api", "perdure.log.sqlite", "perdure.model.scripted", "perdure.space.launch", "apsw")


class Drivers:
    """The side that asks. `ended` holds the wait status of each process that has ended."""

    def __init__(self, connection: socket.socket, pid: int) -> None:
        self._connection = connection
        self._lines: list[bytes] = []
        self._unread = b""
        self._pid = pid
        self.ended: dict[int, int] = {}

    @classmethod
    def begin(cls) -> Drivers:
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            _Nursery(theirs).run()
        theirs.close()
        return cls(ours, pid)

    def start(self, arguments: list[str], *, env: Mapping[str, str], directory: Path, out: Path) -> int:
        """`perdure ARGUMENTS`, or `hold`; its pid. Its output, errors included, goes to a file."""
        asked = {"args": arguments, "env": dict(env), "directory": str(directory), "out": str(out)}
        self._connection.sendall(json.dumps(asked).encode() + b"\n")
        while True:
            told = self._next()
            if "pid" in told:
                self.ended.pop(told["pid"], None)  # of an earlier process, whose number is used again
                return int(told["pid"])

    def look(self, timeout_s: float = 0.0) -> None:
        """Take in what has ended; wait so long for something to end."""
        while self._lines or select.select([self._connection], [], [], timeout_s)[0]:
            self._next()
            timeout_s = 0.0

    def close(self) -> None:
        self._connection.close()
        os.waitpid(self._pid, 0)

    def _next(self) -> dict[str, Any]:
        while not self._lines:
            data = self._connection.recv(1 << 16)
            if not data:
                raise EOFError("the process that drivers are forked from is gone")
            *self._lines, self._unread = (self._unread + data).split(b"\n")
        told: dict[str, Any] = json.loads(self._lines.pop(0))
        if "ended" in told:
            self.ended[told["ended"]] = told["status"]
        return told


class _Nursery:
    """The side that forks."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._unread = b""

    def run(self) -> NoReturn:
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for name in (*LOADED, *ALSO):
            importlib.import_module(name)
        importlib.import_module("perdure.space.launch").namespace_problem()
        gc.collect()
        gc.freeze()
        wake, wake_end = os.pipe()
        for fd in (wake, wake_end):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        while True:
            ready = select.select([self._connection.fileno(), wake], [], [])[0]
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
                self._reap()
            if self._connection.fileno() in ready:
                data = self._connection.recv(1 << 16)
                if not data:
                    os._exit(0)
                *lines, self._unread = (self._unread + data).split(b"\n")
                for line in lines:
                    self._fork(json.loads(line), (wake, wake_end))

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self._tell({"ended": pid, "status": status})

    def _fork(self, asked: dict[str, Any], mine: tuple[int, ...]) -> None:
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.default_int_handler)
            for fd in mine:
                os.close(fd)
            self._connection.close()
            _become(asked)
        self._tell({"pid": pid})

    def _tell(self, told: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._connection.sendall(json.dumps(told).encode() + b"\n")


def _become(asked: dict[str, Any]) -> NoReturn:
    """This forked process is a driver from now on."""
    code = 1
    try:
        gc.unfreeze()
        os.setsid()
        os.umask(0o022)
        null = os.open(os.devnull, os.O_RDONLY)
        out = os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for fd, standard in ((null, 0), (out, 1), (out, 2)):
            os.dup2(fd, standard)
        os.environ.update(asked["env"])
        _listen()
        os.chdir(asked["directory"])
        sys.argv = ["perdure", *asked["args"]]
        if asked["args"] == [HOLD]:
            _hold(Path(asked["env"]["PERDURE_HOME"]))
        else:
            # By name, since the campaign stands beside the command line, not below it.
            importlib.import_module("perdure.cli.main").main()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _listen() -> None:
    """What is to happen at a step of this driver happens in no supervisor that it starts, and the reverse."""
    setting = os.environ.get(steps.ENVIRONMENT, "")
    if setting.startswith("driver:"):
        steps.listen("driver")
        del os.environ[steps.ENVIRONMENT]
    steps.listen = lambda role: None


def _hold(home: Path) -> None:
    """A process of the home that was stopped inside a transaction, as by a debugger."""
    import apsw

    connection = apsw.Connection(str(home / "log.db"))
    connection.set_busy_timeout(5000)
    connection.execute("BEGIN IMMEDIATE")
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.01)
    connection.execute("ROLLBACK")
    connection.close()
