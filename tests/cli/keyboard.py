"""A person's terminal: a real pty, its keys and what is on it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import select
import subprocess
import termios
import time

from tests.cli.desk import PATIENCE_S, PERDURE, Desk

CTRL_C, CTRL_D, ENTER = "\x03", "\x04", "\r"


class Terminal:
    """`perdure` with these arguments, controlled by a terminal of its own."""

    def __init__(self, desk: Desk, *arguments: str) -> None:
        self._keys, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, b"\x1e\x00\x64\x00\x00\x00\x00\x00")
        self.process = subprocess.Popen(
            [*PERDURE, *arguments],
            cwd=desk.project,
            env=desk.environment | {"TERM": "xterm", "NO_COLOR": "1"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.tty = theirs
        self.shown = ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def type(self, keys: str) -> None:
        os.write(self._keys, keys.encode())

    def say(self, line: str) -> None:
        self.type(line + ENTER)

    def until(self, text: str, after: int = 0) -> int:
        """Waits until it stands there, behind `after` characters; where it ends."""
        deadline = time.monotonic() + PATIENCE_S
        while (at := self.shown.find(text, after)) < 0:
            assert time.monotonic() < deadline, f"{text!r} was not shown:\n{self.shown}"
            self._read(0.1)
        return at + len(text)

    def quiet(self, seconds: float = 0.3) -> None:
        """Reads on until nothing has come for so long."""
        while self._read(seconds):
            pass

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._keys], [], [], timeout_s)[0]:
            return False
        data = os.read(self._keys, 65536)
        self.shown += self._decoder.decode(data)
        return bool(data)

    def echoes(self) -> bool:
        """Whether the terminal is as a shell wants it."""
        return bool(termios.tcgetattr(self.tty)[3] & termios.ECHO)

    def end(self) -> int:
        """The exit code."""
        deadline = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still there:\n{self.shown}"
            self._read(0.05)
        self.quiet(0.1)
        return self.process.returncode

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._keys)
        os.close(self.tty)
