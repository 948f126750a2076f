"""`perdure compact`: the conversation gets shorter, and nothing of it is lost."""

from __future__ import annotations

import re

from tests.cli.desk import Desk, bash, turn


def test_compact_sums_up_and_says_how_much_that_was(desk: Desk) -> None:
    model = desk.script(turn("", bash("head -c 9000 /dev/zero | tr '\\0' x")), "Done.", "More.")
    assert desk.perdure("run", "go", "--session", "s", "--model", model).returncode == 0
    done = desk.perdure("compact", "s")
    assert done.returncode == 0, done.stderr
    told = re.fullmatch(r"session s: about ([\d,]+) tokens before, ([\d,]+) now", done.stdout.strip().splitlines()[-1])
    assert told is not None, done.stdout
    before, now = (int(number.replace(",", "")) for number in told.groups())
    assert now < before / 2
    again = desk.perdure("run", "and more", "--session", "s")
    assert again.returncode == 0 and "More." in again.stdout


def test_compact_of_what_has_nothing_yet_says_so(desk: Desk) -> None:
    model = desk.script(turn("", error={"status": 400}))
    desk.perdure("run", "go", "--session", "s", "--model", model)
    done = desk.perdure("compact", "s")
    assert (done.returncode, "there is nothing to compact yet" in done.stdout) == (0, True), done.stderr
    assert desk.perdure("compact", "none").returncode == 2
