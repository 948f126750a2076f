"""The supervisor's life: lock, identity, floor, ledger, root, then a lane's thread for each connection until nobody needs it.

    spaced STATE ROOT --epoch N [--ready-fd N] [--detach] [--own] [--exclude JSON] [--capture ENGINE] [--idle-s S] [--sandbox JSON]     serve
    spaced STATE ROOT --try --sandbox JSON               print whether this sandbox holds
    spaced --scan ROOT STATE [--base JSON] [--own]               print one capture, change nothing; what equals the base is copied nowhere

The main thread accepts, reaps and ticks; it never waits for anything else. Signals arrive through a wake-up descriptor, so nothing is
masked that a command could inherit. Exit codes: 0 idle or asked to, 3 another one holds the folder or the root, 4 an epoch below the floor, 5 a full disk.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import socket
import sys
import threading
import time
from typing import Any

from perdure.spaced import confine, selftest, state, wire
from perdure.spaced.custody import Custody
from perdure.spaced.engine import AUTO
from perdure.spaced.errors import FULL
from perdure.spaced.fence import Gate
from perdure.spaced.keeper import rename
from perdure.spaced.ledger import Ledger
from perdure.spaced.operations import Operations
from perdure.spaced.release import RELEASE
from perdure.spaced.requests import Requests
from perdure.spaced.state import HeldError
from perdure.spaced.steps import listen, step
from perdure.spaced.workspace import Workspace, mounts_below

HELD = 3
STALE = 4
NO_ROOM = 5
IDLE_S = 60.0
TICK_S = 1.0


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    if options["scan"]:
        root, folder = options["paths"]
        return _scan(root, folder, options["base"], options["exclude"], own=options["own"])
    if options["sandbox"] is not None:
        confine.prepare(options["sandbox"]["hidden"], options["sandbox"]["empty"])
    if options["try"]:
        print(json.dumps(selftest.run(options["sandbox"])))
        return 0
    listen("spaced")
    rename("spaced")
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    folder, root = options["paths"]
    if options["detach"] and os.fork():
        os._exit(0)
    with contextlib.suppress(PermissionError):
        os.setsid()
    try:
        supervisor = Supervisor(folder, root, options)
    except HeldError as error:
        return _ready(options["ready"], {"error": "held", "what": error.what, "message": str(error)}, HELD)
    if options["epoch"] < supervisor.gate.floor:
        message = "epoch %d is below the floor %d" % (options["epoch"], supervisor.gate.floor)
        return _ready(options["ready"], {"error": "stale", "message": message}, STALE)
    try:
        supervisor.open(options["epoch"])
    except OSError as error:
        if error.errno not in FULL:
            raise
        return _ready(options["ready"], {"error": "full", "message": str(error)}, NO_ROOM)
    _ready(options["ready"], supervisor.identity, 0)
    return supervisor.run(options["idle_s"])


class Supervisor:
    """Takes the locks when it is made; `open` begins a life, `run` lives it."""

    def __init__(self, folder: str, root: str, options: dict[str, Any]) -> None:
        self._folder = folder
        self._folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._lock_fd = state.lock(os.path.join(folder, "lock"), "state folder")
        self._root = os.path.realpath(root)
        self._root_fd = state.lock(self._root, "workspace", folder=True)
        self._options = options
        self.gate = Gate(folder)
        self._lanes: dict[Requests, wire.Lane] = {}
        self._idle_since = time.monotonic()
        self._ending = False

    def open(self, epoch: int) -> None:
        with self.gate.lock:
            self.gate.raise_to(epoch)
        custody = Custody()
        kind = "pidns" if custody.proven else "unproven"
        self.identity = state.next_life(self._folder, self._root_fd, self._root, kind)
        custody.generation = self.identity["generation"]
        step("life begins")
        os.fchdir(self._root_fd)
        sandbox = self._options["sandbox"]
        if sandbox is not None:
            self.identity["self_test"] = selftest.run(sandbox)
        custody.prepare()
        with open(os.path.join(self._folder, state.TOKEN_FILE)) as file:
            self._token = file.read().strip()
        ledger = Ledger(self._folder, self.identity["instance"])
        self.identity["pid"] = os.getpid()
        self.identity["release"] = RELEASE
        self.identity["closed_by"] = ledger.closed_by
        self.identity["mounts_left_out"] = sorted(mounts_below(self._root))
        workspace_folder = os.path.join(self._folder, "workspace")
        os.makedirs(workspace_folder, mode=0o700, exist_ok=True)

        def made(exclude: tuple[str, ...]) -> Workspace:
            own, capture = self._options["own"], self._options["capture"]
            return Workspace(self._root_fd, self._root, workspace_folder, own=own, exclude=exclude, capture=capture)

        self._operations = Operations(self._folder, self.gate, ledger, custody, made, tuple(self._options["exclude"]))
        self.identity["capture"] = self._operations.workspace.engine.told
        self._listen()

    def run(self, idle_s: float) -> int:
        """Until idle for so long without a connection and with nothing running, or until told to end."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._socket, selectors.EVENT_READ)
            selector.register(self._signals(), selectors.EVENT_READ)
            while not self._ending:
                for key, _ in selector.select(TICK_S):
                    if key.fileobj is self._socket:
                        self._accept()
                    else:
                        os.read(key.fd, 4096)
                        self._operations.custody.reap()
                self._tick(idle_s)
        return self._end()

    def _listen(self) -> None:
        for name in os.listdir(self._folder):
            if name.startswith("s-"):
                os.unlink(os.path.join(self._folder, name))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(wire.address(self._folder, "s-%d" % self.identity["instance"], self._folder_fd))
        self._socket.listen(64)
        self._socket.setblocking(False)

    def _signals(self) -> int:
        wake, wake_end = os.pipe()
        os.set_blocking(wake, False)
        os.set_blocking(wake_end, False)
        signal.set_wakeup_fd(wake_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._asked_to_end)
        self._operations.custody.reap()
        return wake

    def _asked_to_end(self, *_: object) -> None:
        self._ending = True

    def _leave(self) -> bool:
        """For another session of this directory: end, if nothing runs and nobody but the asker is here."""
        if len(self._lanes) > 1 or self._operations.ledger.running() or self._operations.custody.living():
            return False
        self._ending = True
        return True

    def _accept(self) -> None:
        try:
            connection, _ = self._socket.accept()
        except OSError:
            return
        connection.setblocking(True)
        lane = wire.Lane(connection)
        requests = Requests(lane, self._operations, self.identity, self._token, self._leave)
        self._lanes[requests] = lane
        threading.Thread(target=self._serve, args=(requests, lane), name="lane", daemon=True).start()

    def _serve(self, requests: Requests, lane: wire.Lane) -> None:
        try:
            requests.serve()
        finally:
            lane.close()
            self._idle_since = time.monotonic()
            del self._lanes[requests]

    def _tick(self, idle_s: float) -> None:
        now = time.monotonic()
        if self._deleted():
            self._ending = True
            return
        for requests, lane in list(self._lanes.items()):
            if requests.busy_since is not None and now - requests.busy_since > wire.BEAT_S:
                lane.beat()
        if self._operations.ledger.running():
            self._operations.ledger.stamp()
            self._idle_since = now
            return
        self._operations.save()
        if self._lanes:
            self._idle_since = now
        elif now - self._idle_since > idle_s:
            self._ending = not self._operations.custody.living()
            self._idle_since = now

    def _end(self) -> int:
        """Everything dies in order, so that the next life knows that nothing of this one is left."""
        step("life ends")
        if self._deleted():
            with self.gate.lock:
                self._operations.kill_all()
            return 0
        self._operations.shut_down()
        os.unlink(os.path.join(self._folder, "s-%d" % self.identity["instance"]))
        return 0

    def _deleted(self) -> bool:
        """Its folder is gone: nobody can reach it there, and its word proves nothing any more."""
        return os.fstat(self._lock_fd).st_nlink == 0


def _scan(root: str, folder: str, base: dict[str, Any] | None, exclude: list[str], *, own: bool) -> int:
    root = os.path.realpath(root)
    root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    workspace = Workspace(root_fd, root, folder, own=own, exclude=tuple(exclude))
    json.dump(workspace.capture(base, hot=set(), cancelled=lambda: False), sys.stdout)
    return 0


def _ready(fd: int | None, answer: dict[str, Any], code: int) -> int:
    """Tell whoever started this, once."""
    if fd is not None:
        with contextlib.suppress(BrokenPipeError):
            os.write(fd, json.dumps(answer).encode() + b"\n")
        os.close(fd)
    return code


def _options(arguments: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {"paths": [], "scan": False, "own": False, "detach": False, "ready": None, "try": False}
    options.update({"epoch": 0, "exclude": [], "idle_s": IDLE_S, "capture": AUTO, "base": None, "sandbox": None})
    rest = iter(arguments)
    for argument in rest:
        if argument in ("--scan", "--own", "--detach", "--try"):
            options[argument[2:]] = True
        elif argument == "--ready-fd":
            options["ready"] = int(next(rest))
        elif argument == "--epoch":
            options["epoch"] = int(next(rest))
        elif argument in ("--exclude", "--base", "--sandbox"):
            options[argument[2:]] = json.loads(next(rest))
        elif argument == "--capture":
            options["capture"] = next(rest)
        elif argument == "--idle-s":
            options["idle_s"] = float(next(rest))
        else:
            options["paths"].append(argument)
    if len(options["paths"]) != 2:
        raise SystemExit(__doc__)
    return options
