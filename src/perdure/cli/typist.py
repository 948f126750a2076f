"""Typing while a session works: what a person types stands on the last line, below what happens, and Enter sends it.

    keys ─→ Typist ──(a whole line)──→ whoever listens
              └────(what is typed)───→ TypingScreen, which keeps the line in sight

The terminal neither echoes nor gathers lines meanwhile (cbreak); Ctrl-C and Ctrl-Z stay signals. Between two turns the line editor of the
readline library is in charge, so a line that was not finished goes on there.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable
from types import TracebackType
from typing import Any

from perdure.cli.screen import Terminal
from perdure.drive.events import Event, TextShown
from perdure.history.line import Line, plain
from perdure.history.paint import Out

PROMPT = "› "
READ_BYTES = 4096

_ERASE, _ERASE_WORD, _ERASE_LINE = ("\x7f", "\b"), "\x17", "\x15"
_ESCAPE = "\x1b"


class TypingScreen(Terminal):
    """A terminal on which somebody may be typing: then its last line is theirs, and text that streams is shown by whole lines."""

    def __init__(self, out: Out) -> None:
        super().__init__(out)
        self._typed = ""
        self._held = ""

    def say(self, text: str) -> None:
        """A line that is no event of the session."""
        self._let_go()
        self._line(Line("session", plain(text)))
        self._draw()

    def type(self, typed: str) -> None:
        """What stands on the line that is being typed."""
        if typed and not self._typed:
            self._break()
        self._typed = typed
        if not typed:
            self._let_go()
        self._draw()

    def _let_go(self) -> None:
        held, self._held = self._held, ""
        if held:
            super()._stream(held, dim=False)

    def _stream(self, text: str, *, dim: bool) -> None:
        if not self._typed:
            super()._stream(text, dim=dim)
            return
        whole, newline, self._held = (self._held + text).rpartition("\n")
        if newline:
            super()._stream(whole + newline, dim=dim)
        self._streamed = self._streamed or not dim
        self._draw()

    def __call__(self, event: Event) -> None:
        if self._held and not isinstance(event, TextShown):
            self._let_go()
        super().__call__(event)

    def _draw(self) -> None:
        if not self._typed:
            super()._draw()
            return
        self._break()
        room = max(10, shutil.get_terminal_size().columns - len(PROMPT) - 1)
        self._status = f"{PROMPT}{plain(self._typed)[-room:]}"
        self._out.write(self._status)

    def close(self) -> None:
        self._typed = ""
        self._let_go()
        super().close()


class Typist:
    """Reads the keys of the terminal on `fd` as long as it is entered. `line` gets each line that Enter ends, `typing` what stands there now."""

    def __init__(self, line: Callable[[str], object], typing: Callable[[str], object], fd: int | None = None) -> None:
        self.typed = ""
        self._line = line
        self._typing = typing
        self._fd = sys.stdin.fileno() if fd is None else fd
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._escape = ""
        self._before: list[Any] = []

    def __enter__(self) -> Typist:
        self._before = termios.tcgetattr(self._fd)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._fd, self._read)
        loop.add_signal_handler(signal.SIGCONT, self._listen)
        self._listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_signal_handler(signal.SIGCONT)
        loop.remove_reader(self._fd)
        self.restore()

    def restore(self) -> None:
        """The terminal as it was."""
        termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)

    def _listen(self) -> None:
        tty.setcbreak(self._fd, termios.TCSADRAIN)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, READ_BYTES)
        except OSError:
            data = b""
        if not data:  # the terminal is gone; a hangup says so to whom it concerns
            asyncio.get_running_loop().remove_reader(self._fd)
        self.keys(self._decoder.decode(data))

    def keys(self, text: str) -> None:
        """Takes keys as they come; those that move a cursor have no meaning here."""
        for key in text:
            self._key(key)
        self._typing(self.typed)

    def _key(self, key: str) -> None:
        if self._escape:
            self._escape += key
            begun = self._escape == _ESCAPE + "[" or self._escape == _ESCAPE + "O"
            if not begun and not key.isdigit() and key not in ";?":
                self._escape = ""
        elif key == _ESCAPE:
            self._escape = key
        elif key in "\r\n":
            line, self.typed = self.typed, ""
            if line.strip():
                self._line(line)
        elif key in _ERASE:
            self.typed = self.typed[:-1]
        elif key == _ERASE_WORD:
            self.typed = self.typed.rstrip().rpartition(" ")[0]
        elif key == _ERASE_LINE:
            self.typed = ""
        elif key.isprintable() or key == "\t":
            self.typed += key
