"""The line editor between two turns: readline where Python has it, with the home's own history; plain lines from a pipe."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from perdure.cli.typist import PROMPT
from perdure.record.parts import printable

HISTORY = "history"
KEPT_LINES = 1000
MORE = "… "


class LineEditor:
    """`line` asks for one; a line that ends in a backslash goes on in the next. Lines are as private as a log: the file of them is 0600."""

    def __init__(self, home: Path, interactive: bool) -> None:
        self._file = home / HISTORY
        self._interactive = interactive
        self._readline: Any = None

    def __enter__(self) -> LineEditor:
        if self._interactive:
            with contextlib.suppress(ImportError):
                import readline

                self._readline = readline
                readline.set_history_length(KEPT_LINES)
                with contextlib.suppress(OSError):
                    readline.read_history_file(self._file)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._keep()

    def _keep(self) -> None:
        if self._readline is None:
            return
        with contextlib.suppress(OSError):
            os.close(os.open(self._file, os.O_CREAT | os.O_WRONLY, 0o600))
            self._readline.write_history_file(self._file)

    def line(self, typed: str = "") -> str | None:
        """The next line that says something; None at the end. `typed` stands there already."""
        while True:
            try:
                line = self._asked(PROMPT, typed)
                while line.endswith("\\"):
                    line = line[:-1] + "\n" + self._asked(MORE, "")
            except EOFError:
                if self._interactive:
                    print()
                return None
            except KeyboardInterrupt:
                print("\n· Ctrl-D leaves")
                typed = ""
                continue
            self._keep()
            if line.strip():
                return printable(line)
            typed = ""

    def _asked(self, prompt: str, typed: str) -> str:
        if not self._interactive:
            line = sys.stdin.readline()
            if not line:
                raise EOFError
            return line.rstrip("\n")
        if self._readline is None:
            return input(prompt + typed)
        self._readline.set_startup_hook((lambda: self._readline.insert_text(typed)) if typed else None)
        try:
            return input(prompt)
        finally:
            self._readline.set_startup_hook(None)
