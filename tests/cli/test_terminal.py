"""On a terminal text streams, colours say who speaks, and a last line shows what runs; in a pipe there are lines and nothing else."""

from __future__ import annotations

import io
import os
import pty
import subprocess

import pytest

from perdure.cli.screen import Terminal
from perdure.drive.events import Event, Notice, OutputShown, Recorded, TextShown
from perdure.history.line import Line
from perdure.history.paint import Paint
from perdure.record import records as r
from perdure.record.parts import Text
from perdure.record.records import Body, Stored
from tests.cli.desk import PERDURE, Desk, bash, turn


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def colourless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "60")


def seen(*events: Event) -> str:
    """What is left on the screen, ephemeral lines erased."""
    out = Tty()
    terminal = Terminal(out)
    for event in events:
        terminal(event)
    terminal.close()
    return "\n".join(line.split("\r\x1b[2K")[-1] for line in out.getvalue().split("\n"))


def recorded(body: Body, seq: int = 1) -> Recorded:
    return Recorded(Stored(seq, 0.0, 1, "", body, "main"))


ANSWER = recorded(r.ModelResponded(1, 1, (Text("Hello you."),)))
PROPOSED = recorded(r.CallProposed("main.1.0", "bash", {"command": "make"}))
STARTED = recorded(r.CallStarted("main.1.0", 1, "k", "external"))
FINISHED = recorded(r.CallFinished("main.1.0", "ok", r.Result(), exit_code=0))


def test_streamed_text_is_not_said_twice() -> None:
    assert seen(TextShown("main", 1, "Hello "), TextShown("main", 1, "you."), ANSWER) == "Hello you.\n"
    assert seen(ANSWER) == "Hello you.\n"


def test_a_line_never_starts_in_the_middle_of_the_text() -> None:
    assert seen(TextShown("main", 1, "Hel"), Notice("the disk is full")) == "Hel\n± the disk is full\n"


def test_the_running_call_is_shown_with_its_newest_output_and_leaves_no_trace() -> None:
    out = Tty()
    terminal = Terminal(out)
    for event in (PROPOSED, STARTED, OutputShown("main.1.0", b"cc a.c\ncc b.c\n")):
        terminal(event)
    status = out.getvalue().split("\r\x1b[2K")[-1]
    assert status.startswith("… bash make ") and status.endswith("cc b.c")
    assert seen(PROPOSED, STARTED, OutputShown("main.1.0", b"cc b.c\n"), FINISHED) == "• bash   make  ok · 0 ms\n"


def test_text_and_output_can_not_move_the_cursor() -> None:
    shown = seen(PROPOSED, STARTED, OutputShown("main.1.0", b"\x1b[2J\x1b[H"), TextShown("main", 1, "\x1b]0;title\x07"))
    assert "\x1b" not in shown and "\x07" not in shown
    assert "\\x1b]0;title" in shown


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    line = Line("failure", "no")
    assert Paint(Tty()).line(line) == "✗ no"
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert Paint(Tty()).line(line) == "✗ no"
    monkeypatch.setenv("TERM", "xterm")
    assert Paint(Tty()).line(line) == "\x1b[31m✗ no\x1b[0m"
    assert Paint(io.StringIO()).line(line) == "✗ no"


def test_on_a_real_terminal(desk: Desk) -> None:
    model = desk.script(turn("Going.", bash("echo working; sleep 0.7")), turn("All done.", chunks=3, delay_s=0.4))
    ours, theirs = pty.openpty()
    driver = subprocess.Popen(
        [*PERDURE, "run", "x", "--session", "s", "--model", model],
        cwd=desk.project,
        env=desk.environment | {"TERM": "xterm", "NO_COLOR": ""},
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    shown = b""
    while piece := _read(ours):
        shown += piece
    os.close(ours)
    assert (driver.wait(30), driver.stderr and driver.stderr.read()) == (0, b"")
    text = shown.decode()
    assert text.splitlines()[0] == "s"
    assert "… bash echo working" in text and "\r\x1b[2K" in text and "\x1b[36m• bash" in text
    assert text.count("All done.") == 1


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError:  # EIO: the other end is closed
        return b""
