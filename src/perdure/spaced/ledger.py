"""The Space's own record of every operation by key: lines of JSON, only ever appended to.

An entry stands before the first effect and its outcome after the last, so after a death of the supervisor the file says what may have begun, what
ended, and since when nothing was heard. There is no fsync: the log's durable `call_started` names the ledger's identity, boot included, and a
ledger of another boot proves nothing. The same reasoning makes a torn last line harmless: what it announced had not begun.

`position` numbers the lines. It only grows, also over the rewriting that drops what is settled; a driver that sees it fall knows that the
machine was rolled back.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
from typing import Any, Iterable, Iterator

from perdure.spaced.errors import ProtocolError
from perdure.spaced.steps import step

FENCED = -1
REWRITE_BYTES = 8 << 20
_FILE = "ledger"
_STAMP = "stamp"
_CLOCK_REALTIME_COARSE = 5
_KEPT_WHEN_SETTLED = {"ok", "exit_code", "output_bytes", "duration_s"}


def coarse_ns() -> int:
    """The wall clock as file systems stamp with it: on Linux it stands still between two ticks."""
    return time.clock_gettime_ns(_CLOCK_REALTIME_COARSE) if sys.platform == "linux" else time.time_ns()


class Entry:
    """One operation. `cause` is None while it is open; `instance` is the life of the supervisor that began it.

    `doubt` is the command of one whose processes might outlive its supervisor; `group` is their process group, 0 before it is known. `stuck` is
    why an operation that is over has no outcome yet.
    """

    def __init__(self, begun: dict[str, Any]) -> None:
        self.key: str = begun["begin"]
        self.op: str = begun["op"]
        self.epoch: int = begun["epoch"]
        self.instance: int = begun["instance"]
        self.started_ns: int = begun["started_ns"]
        self.output: str = begun["output"]
        self.doubt: str | None = begun.get("doubt")
        self.position: int = begun["n"]
        self.group = 0
        self.cause: str | None = None
        self.seen_ns = self.started_ns
        self.ended_ns = 0
        self.result: dict[str, Any] | None = None
        self.capture: dict[str, Any] | None = None
        self.reported = 0
        self.settled = False
        self.stuck: OSError | None = None

    def begun(self) -> dict[str, Any]:
        """The line that makes this entry again."""
        begun = {"begin": self.key, "op": self.op, "epoch": self.epoch, "instance": self.instance}
        return {**begun, "started_ns": self.started_ns, "output": self.output, "doubt": self.doubt}

    def ended(self) -> dict[str, Any]:
        ended = {"end": self.key, "cause": self.cause, "ended_ns": self.ended_ns}
        return {**ended, "result": self.result, "capture": self.capture}

    def thin(self) -> None:
        self.settled = True
        self.result = {name: value for name, value in (self.result or {}).items() if name in _KEPT_WHEN_SETTLED} or None
        self.capture = None

    def status(self, instance: int) -> dict[str, Any]:
        """In the shape of `Status`, as the supervisor of `instance` sees it."""
        state = "ended" if self.cause else "running" if self.instance == instance else "lost"
        status = {"state": state, "instance": self.instance, "started_ns": self.started_ns, "position": self.position}
        seen = {
            "cause": self.cause,
            "seen_ns": self.seen_ns,
            "ended_ns": self.ended_ns,
            "result": self.result,
            "capture": self.capture,
        }
        status.update((name, value) for name, value in seen.items() if value)
        return status


class Ledger:
    """The entries of one generation. Safe to use from many threads; `changed` is notified whenever an operation ends."""

    def __init__(self, folder: str, instance: int) -> None:
        self._folder = folder
        self._path = os.path.join(folder, _FILE)
        self._lock = threading.Lock()
        self.changed = threading.Condition(self._lock)
        self.instance = instance
        self.position = 0
        self.closed_by = 0
        self._settled_at = 0
        self._entries: dict[str, Entry] = {}
        self._unsettled: dict[str, Entry] = {}
        self._load()
        self._stamp_fd = os.open(os.path.join(folder, _STAMP), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lose()
        self.stamp()

    # ---- what operations do

    def begin(self, key: str, op: dict[str, Any], epoch: int, *, doubt: str | None = None) -> tuple[Entry, bool]:
        """The entry of the key, and whether it is new. ProtocolError for another operation under a known key."""
        name = hashlib.sha256(json.dumps(op, sort_keys=True).encode()).hexdigest()
        with self._lock:
            known = self._entries.get(key)
            if known is not None:
                if known.op != name:
                    raise ProtocolError("the key %s belongs to another operation" % key)
                return known, False
            at = self.position + 1
            begun = {"n": at, "begin": key, "op": name, "epoch": epoch, "instance": self.instance}
            entry = Entry({**begun, "started_ns": coarse_ns(), "output": "%d" % at, "doubt": doubt})
            step("entry begin")
            self._append(entry.begun())
            step("entry begun")
            self._entries[key] = self._unsettled[key] = entry
            return entry, True

    def group(self, entry: Entry, pid: int) -> None:
        with self._lock:
            entry.group = pid
            self._append({"group": entry.key, "pid": pid})

    def end(self, entry: Entry, cause: str, result: dict[str, Any] | None, capture: dict[str, Any] | None) -> None:
        with self._lock:
            entry.result, entry.capture = result, capture
            entry.ended_ns = entry.seen_ns = time.time_ns()
            step("entry end")
            entry.position = self._append({**entry.ended(), "cause": cause})
            entry.cause = cause
            step("entry ended")
            self.changed.notify_all()

    def stick(self, entry: Entry, error: OSError) -> None:
        """It is over, and its outcome finds no room."""
        with self._lock:
            entry.stuck = error
            self.changed.notify_all()

    def assign(self, entries: Iterable[Entry], epoch: int) -> None:
        """The operations belong to this epoch from now on; to `FENCED` to be broken off whatever the floor is."""
        with self._lock:
            for entry in entries:
                entry.epoch = epoch

    def stamp(self) -> None:
        """Once a second: this life was there, and so were its running operations."""
        now = time.time_ns()
        with self._lock:
            os.pwrite(self._stamp_fd, b"%-12d %-20d\n" % (self.instance, now), 0)
            for entry in self.open_locked():
                entry.seen_ns = now

    # ---- what clients ask

    def get(self, key: str) -> Entry | None:
        with self._lock:
            return self._entries.get(key)

    def running(self) -> list[Entry]:
        with self._lock:
            return self.open_locked()

    def open_locked(self) -> list[Entry]:
        """Like `running`, for a holder of `changed`."""
        return [e for e in self._unsettled.values() if e.cause is None and e.instance == self.instance]

    def older(self) -> list[Entry]:
        """What lives before this one began, and did not end in order."""
        with self._lock:
            return [e for e in self._unsettled.values() if self.closed_by < e.instance < self.instance]

    def _is_lost(self, entry: Entry) -> bool:
        return entry.cause is None and entry.instance != self.instance

    def report(self, entry: Entry) -> dict[str, Any]:
        """The entry's status on its way to a driver; an ended one may go once the driver has settled twice since."""
        with self._lock:
            if entry.cause is not None and not entry.reported:
                entry.reported = self.position
            return entry.status(self.instance)

    def settle(self) -> list[Entry]:
        """Forget the bulk of what was reported before the last settlement but one, and of what was lost; the entries whose output may go.

        Key, cause and times stay: a key that was once known is never taken for one that never began.
        """
        with self._lock:
            before, self._settled_at = self._settled_at, self.position
            gone = [e for e in self._unsettled.values() if 0 < e.reported <= before or self._is_lost(e)]
            for entry in gone:
                self._thin(entry)
            if gone:
                self._append({"settled": [e.key for e in gone]})
            return gone

    def _thin(self, entry: Entry) -> None:
        entry.thin()
        self._unsettled.pop(entry.key, None)

    def close(self) -> None:
        """An orderly end: nothing of this life runs any more."""
        with self._lock:
            self._append({"closed": self.instance})

    # ---- the file

    def _append(self, line: dict[str, Any]) -> int:
        data = json.dumps({"n": self.position + 1, **line}, separators=(",", ":")).encode() + b"\n"
        size = os.fstat(self._fd).st_size
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            os.ftruncate(self._fd, size)
            raise OSError(error.errno, error.strerror, self._path) from error
        self.position += 1
        return self.position

    def _load(self) -> None:
        for line in self._lines():
            self.position = line["n"]
            self._apply(line)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._fd = os.open(self._path, flags, 0o600)
        if os.fstat(self._fd).st_size > REWRITE_BYTES:
            self._rewrite(flags)
        size = os.fstat(self._fd).st_size
        if size and os.pread(self._fd, 1, size - 1) != b"\n":
            os.write(self._fd, b"\n")

    def _lines(self) -> Iterator[dict[str, Any]]:
        try:
            with open(self._path, "rb") as file:
                for line in file:
                    try:
                        yield json.loads(line)
                    except ValueError:
                        continue
        except FileNotFoundError:
            return

    def _apply(self, line: dict[str, Any]) -> None:
        if "begin" in line:
            entry = Entry(line)
            self._entries[entry.key] = self._unsettled[entry.key] = entry
        elif "group" in line:
            self._entries[line["group"]].group = line["pid"]
        elif "end" in line:
            entry = self._entries[line["end"]]
            entry.cause, entry.position = line["cause"], line["n"]
            entry.ended_ns = entry.seen_ns = line["ended_ns"]
            entry.result, entry.capture = line["result"], line["capture"]
        elif "lost" in line:
            self._entries[line["lost"]].seen_ns = line["seen_ns"]
        elif "settled" in line:
            for key in line["settled"]:
                self._thin(self._entries[key])
        elif "closed" in line:
            self.closed_by = line["closed"]

    def _lose(self) -> None:
        """What an older life left open is lost; when it was last seen is taken from that life's stamp."""
        fields = [field for field in os.pread(self._stamp_fd, 64, 0).split() if field.isdigit()]
        for entry in self._entries.values():
            stamped = len(fields) == 2 and int(fields[0]) == entry.instance
            if entry.cause is None and stamped and entry.seen_ns < int(fields[1]):
                entry.seen_ns = int(fields[1])
                self._append({"lost": entry.key, "seen_ns": entry.seen_ns})

    def _rewrite(self, flags: int) -> None:
        """The same entries in one line or two each, beside the old file, then in its place. Without room for that the old file says it as well."""
        old, position = self._fd, self.position
        beside = self._path + ".new"
        self._fd = os.open(beside, flags | os.O_TRUNC, 0o600)
        try:
            self._write_all()
            os.rename(beside, self._path)
        except OSError:
            os.unlink(beside)
            old, self._fd, self.position = self._fd, old, position
        os.close(old)

    def _write_all(self) -> None:
        for entry in self._entries.values():
            self._append(entry.begun())
            if entry.group:
                self._append({"group": entry.key, "pid": entry.group})
            if entry.cause is not None:
                self._append(entry.ended())
            elif entry.seen_ns > entry.started_ns:
                self._append({"lost": entry.key, "seen_ns": entry.seen_ns})
        self._append({"settled": [e.key for e in self._entries.values() if e.settled]})
        self._append({"closed": self.closed_by})
