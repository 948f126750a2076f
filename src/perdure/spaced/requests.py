"""What a lane can ask: one function a verb, each under the gate.

A request names its verb, token and epoch. Verbs that act on the Space need an epoch that has fenced it; verbs that only look need one that is
not stale. A request whose epoch falls below the floor while it is served ends as stale, whatever it was about to answer.
"""

from __future__ import annotations

import functools
import math
import os
import time
from typing import Any, Callable, Iterable, Optional

from perdure.spaced import plan, restore, wire
from perdure.spaced.custody import Custody
from perdure.spaced.errors import FULL, FencedError, ProtocolError, ReplacedError, StaleError, note_trace
from perdure.spaced.fence import Gate
from perdure.spaced.ledger import Entry, Ledger
from perdure.spaced.operations import Operations
from perdure.spaced.output import READ_BYTES
from perdure.spaced.staging import key_of
from perdure.spaced.steps import step
from perdure.spaced.wire import Lane

OUTPUT_PAUSE_S = 0.05
WAIT_S = 1.0
FETCH_DIGESTS = 256
FETCH_PAUSE_S = 0.25


class Requests:
    """One lane's requests, in its thread."""

    def __init__(
        self, lane: Lane, operations: Operations, identity: dict[str, Any], token: str, leave: Callable[[], bool]
    ) -> None:
        self._lane = lane
        self._operations = operations
        self._ledger: Ledger = operations.ledger
        self._gate: Gate = operations.gate
        self._custody: Custody = operations.custody
        self._identity = identity
        self._token = token
        self._leave = leave
        self._environment = dict(os.environ)
        self.busy_since: float | None = None

    def serve(self) -> None:
        """Until the client leaves or breaks the protocol."""
        while True:
            try:
                frame = self._lane.receive()
                if frame is None or "verb" not in frame[0]:
                    # Without a verb: a chunk for a request that was broken off meanwhile.
                    return
                self.busy_since = time.monotonic()
                answer = self._answer(frame[0])
                self.busy_since = None
                step("reply")
                self._lane.send(answer)
                step("replied")
            except ConnectionError:
                return
            finally:
                self.busy_since = None

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            if request.get("token") != self._token:
                raise ProtocolError("the token is not the one of this Space")
            verb = getattr(self, "_do_" + str(request.get("verb")), None)
            if verb is None:
                raise ProtocolError("unknown verb %r" % request.get("verb"))
            epoch = int(request["epoch"])
            with self._gate.admitted(epoch, self._lane, exactly=verb in self._acting()):
                answer = verb(request, epoch)
                self._gate.check(epoch)
            return {"ok": answer}
        except (StaleError, FencedError) as error:
            return {"error": "stale", "message": str(error), "floor": self._gate.floor}
        except ReplacedError as error:
            return {"error": "replaced", "message": error.strerror}
        except ProtocolError as error:
            return {"error": "protocol", "message": str(error)}
        except ConnectionError:
            raise
        except Exception as error:  # Whatever it was, the client must hear of it; the trace is in the supervisor's own log.
            note_trace()
            if isinstance(error, OSError) and error.errno in FULL:
                return {"error": "full", "message": str(error)}
            return {"error": "failed", "message": "%s: %s" % (type(error).__name__, error)}

    def _acting(self) -> tuple[Callable[..., Any], ...]:
        changing = (self._do_stop, self._do_capture, self._do_settle, self._do_plan, self._do_restore, self._do_sync)
        return (*changing, self._do_leave_out)

    # ---- who is there

    def _do_hello(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        version = wire.version(request["versions"])
        if "env" in request:
            self._environment = request["env"]
        self._identity["capture"] = self._operations.workspace.engine.told
        known = {"floor": self._gate.floor, "position": self._ledger.position, "exclude": self._operations.exclude}
        return {**self._identity, "version": version, **known}

    def _do_leave(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        return {"leaves": self._leave()}

    # ---- operations

    def _do_fence(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        adopted, killed = self._operations.fence(epoch, set(request["adopt"]))
        return {"adopted": adopted, "killed": killed, "survivors": self._operations.survivors()}

    def _do_start(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        expected = request.get("expect")
        if expected is not None and self._ledger.get(request["key"]) is None:
            found = self._other_than(request["base"], expected, epoch)
            if found is not None:
                return {"state": "none", "differs": found}
        until = time.monotonic() + request.get("wait_s", 0.0)
        entry = self._operations.start(request["key"], request["op"], request.get("base"), epoch, self._environment, until)
        return self._ended(entry, epoch, until - time.monotonic())

    def _other_than(self, base: dict[str, Any], expected: dict[str, Any], epoch: int) -> Optional[dict[str, Any]]:
        """The workspace as it is, if it is not what it was expected to be."""
        self._gate.check(epoch, exactly=True)
        if expected["settled"]:
            self._operations.settle(expected["settled"])
        found = self._operations.capture(base, self._cancelled(epoch))
        same = key_of(found["image"]) == key_of(base) and not found.get("opaque_changed")
        return None if same and bool(found.get("reaching")) == expected["reaching"] else found

    def _do_status(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        return {key: self._status(key) for key in request["keys"]}

    def _do_wait(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        return self._ended(self._known(request["key"]), epoch, request.get("wait_s"))

    def _do_stop(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        self._operations.stop(request["key"], float(request["grace_s"]))
        return self._ended(self._known(request["key"]), epoch)

    def _do_output(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        """Frames of output bytes until the operation has ended and all is sent."""
        entry = self._ledger.get(request["key"])
        offset = int(request["offset"])
        while entry is not None:
            open_still = entry.cause is None and entry.instance == self._ledger.instance
            data = _piece(self._operations.output_path(entry), offset)
            if data:
                self._lane.send({"more": 1}, data)
                offset += len(data)
            elif not open_still:
                break
            else:
                self._look(epoch)
                with self._ledger.changed:
                    if entry.cause is None:
                        self._ledger.changed.wait(OUTPUT_PAUSE_S)
        return {"offset": offset}

    def _do_processes(self, request: dict[str, Any], epoch: int) -> list[dict[str, Any]]:
        return self._operations.left()

    # ---- the workspace

    def _do_capture(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        if request.get("settled"):
            self._operations.settle(request["settled"])
        return self._operations.capture(request.get("base"), self._cancelled(epoch), audit=bool(request.get("audit")))

    def _do_chunks(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        """Frames of whole chunks; each frame's header names them with their sizes."""
        for batch in wire.batches((digest, self._staged(digest)) for digest in request["digests"]):
            self._look(epoch)
            self._lane.send({"more": [(digest, len(data)) for digest, data in batch]}, b"".join(data for _, data in batch))
        return {}

    def _staged(self, digest: str) -> bytes:
        with self._operations.workspace_lock:
            return self._operations.workspace.staging.read(digest)

    def _do_leave_out(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        self._operations.leave_out(tuple(request["rules"]))
        return {}

    def _do_settle(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        return self._operations.settle(request["image"])

    def _do_plan(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        known, cancelled = set(request["known"]), self._cancelled(epoch)
        fetch = functools.partial(self._fetch, epoch)
        with self._operations.workspace_lock:
            return plan.make(self._operations.workspace, request["target"], fetch, request.get("window"), known, cancelled)

    def _do_restore(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        fetch = functools.partial(self._fetch, epoch)
        killed = self._operations.kill_all()
        with self._operations.workspace_lock:
            step("restore")
            restored = restore.carry_out(
                self._operations.workspace, request["target"], fetch, request["plan"], request["also"], self._cancelled(epoch)
            )
            step("restored")
        return {**restored, "processes_killed": killed}

    def _do_sync(self, request: dict[str, Any], epoch: int) -> dict[str, Any]:
        self._operations.workspace.sync()
        return {}

    # ---- common

    def _status(self, key: str) -> dict[str, Any]:
        entry = self._ledger.get(key)
        return {"state": "none"} if entry is None else self._ledger.report(entry)

    def _known(self, key: str) -> Entry:
        entry = self._ledger.get(key)
        if entry is None:
            raise ProtocolError("no operation has the key %s" % key)
        return entry

    def _ended(self, entry: Entry, epoch: int, wait_s: float | None = None) -> dict[str, Any]:
        """Its status when it has ended, or after so many seconds. OSError where it is over and that finds no room in the ledger."""
        deadline = math.inf if wait_s is None else time.monotonic() + wait_s
        with self._ledger.changed:
            while entry.cause is None and entry.instance == self._ledger.instance:
                if entry.stuck is not None:
                    raise entry.stuck
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                self._look(epoch)
                self._ledger.changed.wait(min(left_s, WAIT_S))
        return self._ledger.report(entry)

    def _look(self, epoch: int) -> None:
        """A long answer breaks off when nobody may or will hear it."""
        if self._lane.broken:
            raise ConnectionError
        if epoch < self._gate.floor:
            self._gate.check(epoch)

    def _cancelled(self, epoch: int) -> Callable[[], bool]:
        return lambda: epoch < self._gate.floor or self._lane.broken

    def _fetch(self, epoch: int, digests: Iterable[str]) -> dict[str, bytes]:
        """Ask the client for chunks, in the middle of a request."""
        wanted: list[str] = list(digests)
        found: dict[str, bytes] = {}
        for at in range(0, len(wanted), FETCH_DIGESTS):
            self._lane.send({"need": wanted[at : at + FETCH_DIGESTS]})
            more = True
            while more:
                while not self._lane.ready(FETCH_PAUSE_S):
                    self._look(epoch)
                frame = self._lane.receive()
                if frame is None:
                    raise ConnectionError
                header, payload = frame
                found.update(wire.split(header["have"], payload))
                more = header["more"]
        return found


def _piece(path: str, offset: int) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return b""
    try:
        return os.pread(fd, READ_BYTES, offset)
    finally:
        os.close(fd)
