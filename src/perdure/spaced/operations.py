"""Operations: each has a key and an entry in the ledger, and ends with an outcome and, if it mutates, a capture.

The entry stands before anything else is done. A short operation is carried out by the thread of the lane that asked for it; one that takes longer
goes on in a thread of its own. The capture follows as soon as the operation's own effects are over, so what others change afterwards is not booked
to it. An operation whose epoch fell below the floor ends `fenced`: it is not captured, it is undone.
"""

from __future__ import annotations

import _thread
import collections
import contextlib
import json
import os
import sys
import threading
import time
from typing import Any, Callable, Generator, Iterator, Mapping

from perdure.spaced import files, output, processes, survivors
from perdure.spaced.commands import Command, shell
from perdure.spaced.custody import Custody
from perdure.spaced.errors import FencedError, OpError, ProtocolError, note_trace
from perdure.spaced.fence import Gate
from perdure.spaced.ledger import FENCED, Entry, Ledger
from perdure.spaced.processes import Row
from perdure.spaced.steps import step
from perdure.spaced.workspace import Workspace

FULL_PAUSE_S = 0.5
_OVER = object()
_SEARCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "search.py")
_DEFAULTS: dict[str, dict[str, Any]] = {
    "exec": {"timeout_s": 600.0, "env": {}, "background": False, "mutating": True, "max_output_bytes": 1 << 30},
    "search": {"timeout_s": 30.0, "env": {}, "background": False, "mutating": False, "max_output_bytes": 1 << 20},
    "write": {"mutating": True},
    "edit": {"mutating": True},
}


class Operations:
    """Everything that runs, and the one workspace it runs in."""

    def __init__(
        self,
        folder: str,
        gate: Gate,
        ledger: Ledger,
        custody: Custody,
        made: Callable[[tuple[str, ...]], Workspace],
        exclude: tuple[str, ...],
    ) -> None:
        """`made` gives the workspace by the exclude rules that it is given."""
        self._outputs = os.path.join(folder, "outputs")
        os.makedirs(self._outputs, mode=0o700, exist_ok=True)
        self.gate = gate
        self.ledger = ledger
        self.custody = custody
        self._made = made
        self.workspace = made(exclude)
        self.workspace_lock = threading.Lock()
        self._commands: dict[str, Command | None] = {}
        self._asked: dict[str, float] = {}
        self._commands_lock = threading.Lock()
        self._broken_off = "fenced"

    # ---- from lanes

    def start(
        self,
        key: str,
        op: dict[str, Any],
        base: dict[str, Any] | None,
        epoch: int,
        environment: Mapping[str, str],
        until: float,
    ) -> Entry:
        """The key's entry. A new operation has ended when this returns, if it does so by `until` on the monotonic clock."""
        doubt = None if self.custody.proven else op.get("command", "")[: processes.COMMAND_CHARACTERS] or None
        with self.gate.lock:
            self.gate.check(epoch, exactly=True)
            entry, new = self.ledger.begin(key, op, epoch, doubt=doubt)
        if new:
            whole = {**_DEFAULTS.get(op["type"], {}), **op}
            steps = self._run(entry, whole, base, environment, until)
            if time.monotonic() >= until or next(steps, _OVER) is not _OVER:
                _thread.start_new_thread(collections.deque, (steps, 0))
        return entry

    def stop(self, key: str, grace_s: float) -> None:
        """Ask it to end; files are not cut in the middle."""
        with self._commands_lock:
            entry = self.ledger.get(key)
            if entry is None or entry.cause is not None:
                return
            self._asked[key] = grace_s
            command = self._commands.get(key)
            if command is not None:
                command.ask_to_end(grace_s)

    def fence(self, epoch: int, adopt: set[str]) -> tuple[list[str], int]:
        """Raise the floor; (adopted keys, processes killed). All or nothing: one running operation that nobody adopts, and every process dies."""
        with self.gate.lock:
            self.gate.check(epoch)
            running = self.ledger.running()
            whole = all(entry.key in adopt and entry.epoch != FENCED for entry in running)
            self.gate.raise_to(epoch)
            self.ledger.assign(running, epoch if whole else FENCED)
        self.wake()
        self.gate.drain()
        if whole:
            return [entry.key for entry in running], 0
        return [], self.kill_all()

    def kill_all(self) -> int:
        """Every process of the Space dies and every running operation ends `fenced`; returns when all have. OSError where one finds no room for that."""
        self.ledger.assign(self.ledger.running(), FENCED)
        with self.custody.reaping:
            pass
        killed = self.custody.kill_all()
        with self.ledger.changed:
            while left := self._open():
                if left[0].stuck is not None:
                    raise left[0].stuck
                self.ledger.changed.wait()
        return killed

    def shut_down(self) -> None:
        """An orderly end of this life: nothing of it is left, and the ledger says so."""
        self._broken_off = "shutdown"
        with self.gate.lock:
            self.kill_all()
            with self.workspace_lock:
                self.workspace.save()
            self.ledger.close()

    def wake(self) -> None:
        """Whoever waits looks again at whether he may."""
        with self.ledger.changed:
            self.ledger.changed.notify_all()

    def save(self) -> None:
        """While nobody waits: the index cache, where that is due."""
        if self.workspace_lock.acquire(blocking=False):
            try:
                self.workspace.save_when_due()
            finally:
                self.workspace_lock.release()

    def capture(self, base: dict[str, Any] | None, cancelled: Callable[[], bool], *, audit: bool = False) -> dict[str, Any]:
        with self.workspace_lock:
            step("capture")
            living = self.custody.living()
            capture = self.workspace.capture(base, hot=processes.hot(living), cancelled=cancelled, audit=audit)
            left = self._left(living)
            step("captured")
        return {**capture, "left": left} if left else capture

    @property
    def exclude(self) -> tuple[str, ...]:
        """The rules that the workspace goes by."""
        rules: tuple[str, ...] = self.workspace.settings[3]
        return rules

    def leave_out(self, rules: tuple[str, ...]) -> None:
        """The workspace by other exclude rules: as after a new start, it is hashed once."""
        if self.ledger.running():
            raise ProtocolError("exclude rules can't change while something runs")
        with self.workspace_lock:
            self.workspace.engine.close()
            self.workspace = self._made(rules)

    def left(self) -> list[dict[str, Any]]:
        """Living processes that no running command answers for, in the shape of `Process`."""
        return self._left(self.custody.living())

    def _left(self, living: dict[int, tuple[Row, str | None]]) -> list[dict[str, Any]]:
        rows = {pid: key for pid, (_, key) in living.items() if key not in self._commands}
        ports = processes.ports(rows)
        return [_process(pid, key, ports.get(pid, [])) for pid, key in sorted(rows.items())]

    def survivors(self) -> list[dict[str, Any]]:
        """What of earlier lives is not proven dead. A namespace takes its processes with it; of a life without one every lost command is named."""
        older = [entry for entry in self.ledger.older() if entry.doubt is not None]
        if not older:
            return []
        found = survivors.end({entry.key for entry in older}, self.custody.generation, set(self.custody.living()))
        named = {row.pid: _process(row.pid, key, []) for row, key in found}
        for entry in older:
            if entry.cause is None:
                named.setdefault(entry.group, {"pid": entry.group, "command": entry.doubt, "call": call_of(entry.key)})
        return list(named.values())

    def settle(self, image: dict[str, Any]) -> dict[str, Any]:
        """The log holds the image and what was reported before it."""
        step("settle")
        with self.workspace_lock:
            self.workspace.staging.settle(image)
        for entry in self.ledger.settle():
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.output_path(entry))
        return {}

    def output_path(self, entry: Entry) -> str:
        return os.path.join(self._outputs, entry.output)

    # ---- one operation: each `yield` is where another thread may go on with it

    def _run(
        self, entry: Entry, op: dict[str, Any], base: dict[str, Any] | None, environment: Mapping[str, str], until: float
    ) -> Iterator[None]:
        def cancelled() -> bool:
            return entry.epoch < self.gate.floor

        started = time.monotonic()
        capture = None
        try:
            cause, result = yield from self._effect(entry, op, environment, cancelled, until)
            result["duration_s"] = round(time.monotonic() - started, 3)
            if op.get("mutating") and not cancelled():
                if not self.workspace.engine.watching:
                    yield  # a scan takes its time
                capture = self._capture(result, base, cancelled)
            if cancelled():
                raise FencedError(entry.key)
        except FencedError:
            cause, result, capture = self._broken_off, {"ok": False}, None
        except Exception as error:  # An entry that stays open would hold its driver for ever.
            note_trace()
            cause, result = "self", {"ok": False, "text": "the supervisor failed: %s: %s" % (type(error).__name__, error)}
        yield from self._end(entry, cause, result, capture)

    def _end(self, entry: Entry, cause: str, result: dict[str, Any], capture: dict[str, Any] | None) -> Iterator[None]:
        """With a full disk the operation goes on running until its outcome has room; whoever waits for it is told why."""
        while True:
            try:
                self.ledger.end(entry, cause, result, capture)
                return
            except OSError as error:
                note_trace()
                self.ledger.stick(entry, error)
                yield  # it may be whoever asked for it that is here
                time.sleep(FULL_PAUSE_S)

    def _effect(
        self, entry: Entry, op: dict[str, Any], environment: Mapping[str, str], cancelled: Callable[[], bool], until: float
    ) -> Generator[None, None, tuple[str, dict[str, Any]]]:
        try:
            if op["type"] in ("exec", "search"):
                return (yield from self._command(entry, op, environment, cancelled, until))
            if not op.get("mutating"):
                return "self", files.run(self.workspace, op, cancelled)
            with self.workspace_lock:
                if cancelled():
                    raise FencedError(entry.key)
                return "self", files.run(self.workspace, op, cancelled)
        except OpError as error:
            return "self", {"ok": False, "text": str(error)}
        except OSError as error:
            return "self", {"ok": False, "text": "%s failed: %s" % (op["type"], error)}

    def _command(
        self, entry: Entry, op: dict[str, Any], environment: Mapping[str, str], cancelled: Callable[[], bool], until: float
    ) -> Generator[None, None, tuple[str, dict[str, Any]]]:
        if op["type"] == "exec":
            arguments = shell(op["command"])
        else:
            asked = {name: op[name] for name in ("pattern", "path", "glob", "limit") if name in op}
            arguments = [sys.executable, "-I", "-S", _SEARCH, json.dumps(asked)]
        environment = {**environment, "PWD": self.workspace.root_path, "PERDURE_CALL_KEY": entry.key, **op["env"]}
        environment.update(processes.mark(self.custody.generation, entry.key))
        fd = os.open(self.output_path(entry), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._commands[entry.key] = None
        try:
            command = Command(self.custody, entry.key, arguments, environment, fd, cancelled)
            try:
                with self._commands_lock:
                    self._commands[entry.key] = command
                    if entry.key in self._asked:
                        command.ask_to_end(self._asked[entry.key])
                if not self.custody.proven:
                    self.ledger.group(entry, command.pid)
                cause = "self" if op["background"] else command.run(op["timeout_s"], op["max_output_bytes"], until)
                while cause is None:
                    yield
                    cause = command.run(op["timeout_s"], op["max_output_bytes"])
                step("command ended")
            finally:
                with self._commands_lock:
                    del self._commands[entry.key]
                command.close()
            return self._ended(entry, op, command, cause, fd)
        finally:
            self._commands.pop(entry.key, None)
            self._asked.pop(entry.key, None)
            os.close(fd)

    def _ended(self, entry: Entry, op: dict[str, Any], command: Command, cause: str, fd: int) -> tuple[str, dict[str, Any]]:
        text, truncated = output.view(fd, call_of(entry.key))
        notes = {
            "timeout": "[timed out after %g s; every process of it was killed]" % op.get("timeout_s", 0),
            "output": "[printed more than %d bytes; every process of it was killed]" % op.get("max_output_bytes", 0),
            "abort": "[aborted; every process of it was killed]",
        }
        if op["background"]:
            text += "[started in the background, pid %d]\n" % command.pid
        elif cause in notes:
            text = text if not text or text.endswith("\n") else text + "\n"
            text += notes[cause] + "\n"
        elif command.exit_code is None:
            text += "[it killed its keeper, and every process of it was killed]\n"
        if not os.fstatvfs(fd).f_bavail:
            text = text if not text or text.endswith("\n") else text + "\n"
            text += "[the disk that this is kept on is full: what was printed may be cut short]\n"
        succeeded = (0, 1) if op["type"] == "search" else (0,)
        result = {"ok": op["background"] or (cause == "self" and command.exit_code in succeeded), "text": text}
        result["output_bytes"] = os.fstat(fd).st_size
        result["truncated"] = truncated
        if command.exit_code is not None:
            result["exit_code"] = command.exit_code
        return ("self" if cause == "output" else cause), result

    def _capture(
        self, result: dict[str, Any], base: dict[str, Any] | None, cancelled: Callable[[], bool]
    ) -> dict[str, Any] | None:
        """What fails here (a full disk) must not take the outcome with it: the next look finds what the operation changed."""
        try:
            return self.capture(base, cancelled)
        except (OSError, ValueError) as error:
            note_trace()
            result["text"] = result.get("text", "") + "[the workspace could not be captured: %s]\n" % error
            return None

    def _open(self) -> list[Entry]:
        return [entry for entry in self.ledger.open_locked() if entry.epoch < self.gate.floor]


def call_of(key: str) -> str:
    """`<log id>:<call>:<attempt>` names a call."""
    return key.split(":", 1)[-1].rsplit(":", 1)[0]


def _process(pid: int, key: str | None, ports: list[int]) -> dict[str, Any]:
    process: dict[str, Any] = {"pid": pid, "command": processes.command(pid)}
    if ports:
        process["ports"] = ports
    if key is not None:
        process["call"] = call_of(key)
    return process
