"""What a person sees while a session is driven: plain lines in a pipe; on a terminal also the text as it streams, and what runs.

    driver ── events ──→ Plain      a line for each thing that happened
                     └─→ Terminal   the same, streamed text at once, and a last line that comes and goes: the running call, its time, its newest output

A screen is an Emit of the driver. It must never hold the driver up for long, so nothing here waits for anything but the terminal itself.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import NoReturn, Protocol, TextIO

from perdure.cli.telling import Teller
from perdure.drive.events import Event, Notice, OutputShown, Recorded, TextShown
from perdure.history.line import Line, duration, plain, shorten
from perdure.history.paint import Out, Paint
from perdure.history.transcript import described
from perdure.record import records as r
from perdure.record.records import Stored

OUTPUT = "perdure output"
"""The name of threads that write; each ends when nothing waits to be written."""

CATCH_UP_S = 0.3


class Careful:
    """A stream whose reader may be slow, frozen or gone, or whose disk is full: what is driven goes on all the same.

    A thread writes, and the process does not end before it has, unless it was told to go: a pager that nobody scrolls holds up nothing else.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()
        self._waiting: list[str] = []
        self._writer: threading.Thread | None = None

    def isatty(self) -> bool:
        return self._stream.isatty()

    def flush(self) -> None:
        """Let a reader that does read catch up."""
        if writer := self._writer:
            writer.join(CATCH_UP_S)

    def write(self, text: str) -> int:
        with self._lock:
            self._waiting.append(text)
            if self._writer is None:
                self._writer = threading.Thread(target=self._write_all, name=OUTPUT)
                self._writer.start()
        return len(text)

    def _write_all(self) -> None:
        while True:
            with self._lock:
                text, self._waiting = "".join(self._waiting), []
                if not text:
                    self._writer = None
                    return
            self._write(text)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
            self._stream.flush()  # progress is of no use later
        except OSError:
            # What is left in the stream's buffer must go somewhere, or the interpreter fails at its end.
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), self._stream.fileno())


def leave(code: int) -> NoReturn:
    """End without waiting for readers any longer than it takes one that reads."""
    for thread in threading.enumerate():
        if thread.name == OUTPUT:
            thread.join(CATCH_UP_S)
    os._exit(code)


_CLEAR = "\r\x1b[2K"


class Screen(Protocol):
    def __call__(self, event: Event) -> None: ...

    def tick(self) -> None:
        """Some time has passed."""
        ...

    def close(self) -> None:
        """Nothing more comes: leave the cursor at the start of a line."""
        ...


def as_it_is(text: str) -> str:
    return text


def screen(redact: Callable[[str], str] = as_it_is) -> Screen:
    """The one that fits this process's stdout. What goes to no terminal passes `redact`."""
    out = Careful(sys.stdout)
    return Terminal(out) if out.isatty() else Plain(out, redact=redact)


class Quiet:
    """Notices on stderr, and nothing else. `prefix` stands before each line where several sessions share the streams."""

    def __init__(self, prefix: str = "", *, redact: Callable[[str], str] = as_it_is) -> None:
        self._prefix = prefix
        self._redact = redact
        self._errors = Careful(sys.stderr)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Notice):
            self._errors.write(f"{self._prefix}perdure: {self._redact(plain(event.text))}\n")

    def tick(self) -> None:
        pass

    def close(self) -> None:
        self._errors.flush()


class Plain(Quiet):
    """A line for each thing that happened."""

    def __init__(self, out: Out, prefix: str = "", *, redact: Callable[[str], str] = as_it_is) -> None:
        super().__init__(prefix, redact=redact)
        self._out = out
        self._paint = Paint(out)
        self._teller = Teller()

    def __call__(self, event: Event) -> None:
        match event:
            case Recorded(stored):
                for line in self._teller.tell(stored):
                    self._out.write(f"{self._prefix}{self._redact(self._paint.line(line))}\n")
            case _:
                super().__call__(event)

    def close(self) -> None:
        super().close()
        self._out.flush()


class Terminal:
    def __init__(self, out: Out) -> None:
        self._out = out
        self._paint = Paint(out)
        self._teller = Teller()
        self._running: dict[str, float] = {}
        self._newest_output = ""
        self._streamed = False
        self._mid_line = False
        self._status = ""

    def __call__(self, event: Event) -> None:
        match event:
            case TextShown(text=text, channel=channel) if channel != "call":
                self._stream(text, dim=channel == "thinking")
            case OutputShown(data=data):
                self._note_output(data)
            case Recorded(stored):
                self._record(stored)
            case Notice(text):
                self._line(Line("workspace", plain(text)))
            case _:
                pass

    def tick(self) -> None:
        self._draw()

    def close(self) -> None:
        self._running.clear()
        self._break()
        self._out.flush()

    # ---- what happened -----------------------------------------------------------------------------------------------------

    def _record(self, stored: Stored) -> None:
        body = stored.body
        streamed = self._streamed and isinstance(body, r.ModelResponded | r.ModelFailed | r.Recovered)
        for line in self._teller.tell(stored):
            if not (streamed and line.style == "model"):  # it stands there already
                self._line(line)
        match body:
            case r.CallStarted(call=call):
                self._running[call] = stored.at
                self._newest_output = ""
            case r.CallFinished(call=call):
                self._running.pop(call, None)
            case r.ModelResponded() | r.ModelFailed() | r.Recovered(turn=int()):
                self._break()
                self._streamed = False
            case _:
                pass
        self._draw()

    def _stream(self, text: str, *, dim: bool) -> None:
        self._erase()
        shown = plain(text)
        self._out.write(self._paint.text("output", shown) if dim else shown)
        self._streamed = self._streamed or not dim
        self._mid_line = not shown.endswith("\n")

    def _line(self, line: Line) -> None:
        self._break()
        self._out.write(f"{self._paint.line(line)}\n")

    def _note_output(self, data: bytes) -> None:
        lines = data.decode(errors="replace").splitlines()
        self._newest_output = next((line for line in reversed(lines) if line.strip()), self._newest_output)
        self._draw()

    # ---- the line that comes and goes --------------------------------------------------------------------------------------

    def _draw(self) -> None:
        """The oldest running call, how long it has run, and the last thing it said."""
        if self._mid_line:
            return
        self._erase()
        if not self._running:
            return
        call, since = next(iter(self._running.items()))
        more = f" (+{len(self._running) - 1})" if len(self._running) > 1 else ""
        said = f"{described(self._teller.call(call), limit=60)}{more}  {duration(max(0.0, time.time() - since))}  {self._newest_output}"
        self._status = shorten(said, shutil.get_terminal_size().columns - 3)
        self._out.write(self._paint.text("session", f"… {self._status}"))

    def _erase(self) -> None:
        if self._status:
            self._out.write(_CLEAR)
            self._status = ""

    def _break(self) -> None:
        """To the start of an empty line."""
        self._erase()
        if self._mid_line:
            self._out.write("\n")
            self._mid_line = False
