"""A command under its keeper: started, waited for, ended by its limits or by request."""

from __future__ import annotations

import math
import os
import select
import signal
import time
from typing import Callable, Mapping, Sequence

from perdure.spaced import processes
from perdure.spaced.custody import Custody
from perdure.spaced.errors import FencedError
from perdure.spaced.steps import step

TICK_S = 0.25
GRACE_S = 2.0
ESCALATE_S = 5.0
KILL_PAUSE_S = 0.005


def shell(command: str) -> list[str]:
    for path in ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"):
        if os.path.exists(path):
            return [path, "-c", command]
    return ["/bin/sh", "-c", command]


class Command:
    """One run of a program. `exit_code` is None until the program itself has ended; `gone` says that its whole tree is dead."""

    def __init__(
        self,
        custody: Custody,
        key: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        output_fd: int,
        cancelled: Callable[[], bool],
    ) -> None:
        self._custody = custody
        self._key = key
        self._output_fd = output_fd
        self._asked: float | None = None
        self._deadline: float | None = None
        self._wake, self._wake_end = os.pipe()
        self._unread = b""
        self.pid = 0
        self.exit_code: int | None = None
        self.gone = False
        self._again = False
        step("spawn")
        with custody.reaping:
            # Whoever kills everything passes through this lock after he has cancelled: nothing is started behind his back.
            if cancelled():
                raise FencedError(key)
            self._keeper = custody.keep(key, arguments, environment, output_fd)
        while not self.pid and not self.gone:
            self._poll(TICK_S)
        if self.pid:
            custody.groups[self.pid] = key
        step("spawned")

    def run(self, timeout_s: float, max_output_bytes: int, until: float = math.inf) -> str | None:
        """The cause of its end. Its whole tree is dead unless the cause is `self`. None: it runs on at `until`, on the monotonic clock; ask again."""
        deadline = self._deadline = self._deadline or time.monotonic() + timeout_s
        while self.exit_code is None and not self.gone:
            now = time.monotonic()
            if now >= until:
                return None
            self._poll(min(TICK_S, max(deadline - now, 0), until - now))
            if self._asked is not None:
                self.end(self._asked)
                return "abort"
            if self.exit_code is not None or self.gone:
                break
            if os.fstat(self._output_fd).st_size > max_output_bytes:
                self.end(0)
                return "output"
            if time.monotonic() >= deadline:
                self.end(GRACE_S)
                return "timeout"
        if self.exit_code is None:
            self.end(0)
        return "self"

    def ask_to_end(self, grace_s: float) -> None:
        """From another thread: `run` ends the tree and returns `abort`."""
        self._asked = grace_s
        os.write(self._wake_end, b"!")

    def end(self, grace_s: float) -> None:
        """SIGTERM for every process of the tree, SIGKILL for what is left after the grace. Returns when all are dead."""
        deadline = time.monotonic() + grace_s
        if grace_s > 0:
            step("terminate")
            for row in self._custody.of(self._key):
                processes.send(row, signal.SIGTERM)
        while not self.gone and time.monotonic() < deadline:
            self._poll(deadline - time.monotonic())
        step("kill")
        deadline = time.monotonic() + ESCALATE_S
        while not self.gone:
            processes.kill(self._custody.of(self._key))
            self._poll(KILL_PAUSE_S)
            if self._custody.proven and time.monotonic() > deadline:
                # It forks and leaves its group faster than it can be named. The namespace as a whole has no such way out.
                self._custody.kill_all()
        while rows := self._custody.of(self._key):
            # The end of its keeper proves the tree dead, unless the command killed its keeper.
            processes.kill(rows)
            time.sleep(KILL_PAUSE_S)
        step("killed")

    def close(self) -> None:
        self._custody.release(self._keeper, again=self._again)
        for fd in (self._wake, self._wake_end):
            os.close(fd)

    def _poll(self, timeout_s: float) -> None:
        poll = select.poll()
        poll.register(self._keeper.channel, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        ready = [fd for fd, _ in poll.poll(max(timeout_s, 0) * 1000)]
        if not ready:
            self._custody.wake(self._keeper)
        if self._wake in ready:
            os.read(self._wake, 64)
        if self._keeper.channel.fileno() in ready:
            self._read()

    def _read(self) -> None:
        data = self._keeper.receive()
        self.gone = not data
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            if word == b"pid":
                self.pid = int(number)
            elif word == b"exit":
                self.exit_code = int(number)
            else:
                self.gone = self._again = True
