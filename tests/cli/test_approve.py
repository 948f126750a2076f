"""A person who is asked: from another terminal, on the spot, or by a script that says what a question becomes."""

from __future__ import annotations

import json

from tests.cli.desk import Desk, bash, turn
from tests.cli.keyboard import CTRL_C, Terminal

RULES = '[permissions]\nask = ["bash(touch *)"]\ndeny = ["bash(rm *)"]\n'


def configured(desk: Desk) -> None:
    (desk.project / "perdure.toml").write_text(RULES)


def asking(desk: Desk, *options: str) -> str:
    """A session that waits with a question."""
    configured(desk)
    model = desk.script(turn("", bash("touch made\ntouch 'made too'"), bash("touch other")), "All done.")
    ran = desk.perdure("run", "--session", "s", "--model", model, *options, "go", input="")
    assert ran.returncode == 1, ran.stderr
    return ran.stderr


def test_another_process_answers_and_a_third_goes_on(desk: Desk) -> None:
    told = asking(desk)
    assert "waits for approval" in told and "main.1.0" in told and "made too" in told
    assert "perdure approve s CALL" in told and "perdure deny s CALL" in told
    listed = json.loads(desk.perdure("ls", "--json").stdout)
    assert listed["waiting_for"] == "approval" and "touch made" in listed["detail"]
    assert "asks for approval" in desk.perdure("show", "s").stdout

    which = desk.perdure("approve", "s")
    assert which.returncode == 2 and "main.1.0, main.1.1; say which" in which.stderr
    denied = desk.perdure("deny", "s", "main.1.1", "--reason", "not that one")
    assert denied.returncode == 0 and "denied: main.1.1" in denied.stdout and "still asks about main.1.0" in denied.stderr
    again = desk.perdure("approve", "s", "main.1.1")
    assert again.returncode == 2 and "was answered already: deny" in again.stderr
    assert json.loads(desk.perdure("ls", "--json").stdout)["waiting_for"] == "needs_driver"
    assert desk.perdure("approve", "s", "--always").returncode == 0
    went = desk.perdure("resume")
    assert went.returncode == 0, went.stderr
    assert (desk.project / "made").exists() and not (desk.project / "other").exists()
    shown = desk.perdure("show", "s").stdout
    assert "allowed for good by person" in shown and "denied by person: not that one" in shown


def test_an_answer_where_nothing_is_asked_says_so(desk: Desk) -> None:
    configured(desk)
    desk.perdure("run", "--session", "s", "--model", desk.script("Hello."), "go")
    for words in (("approve", "s"), ("deny", "s"), ("approve", "s", "main.1.0")):
        ended = desk.perdure(*words)
        assert ended.returncode == 2 and ("asks nothing" in ended.stderr or "is not open" in ended.stderr)
    assert desk.perdure("approve", "a", "b", "c").returncode == 2


def test_a_run_that_nobody_watches_says_what_a_question_becomes(desk: Desk) -> None:
    configured(desk)
    model = desk.script(turn("", bash("touch made")), turn("I see.", expect="nobody is asked"))
    ran = desk.perdure("run", "--session", "s", "--model", model, "--ask", "deny", "go", input="")
    assert ran.returncode == 0, ran.stderr
    decided = [json.loads(line) for line in desk.perdure("log", "s", "--json").stdout.splitlines()]
    assert [(each["verdict"], each.get("by", "policy")) for each in decided if each["kind"] == "call_decided"] == [
        ("deny", "policy")
    ]


def test_at_a_terminal_the_question_is_put_there(desk: Desk) -> None:
    configured(desk)
    model = desk.script(turn("", bash("touch made")), turn("", bash("touch other")), "All done.")
    keyboard = Terminal(desk, "run", "--session", "s", "--model", model, "go")
    try:
        at = keyboard.until("allow it?")
        keyboard.say("y")
        keyboard.until("allow it?", after=at)
        keyboard.type(CTRL_C)
        keyboard.until("waits for approval", after=at)
        assert keyboard.end() == 1
    finally:
        keyboard.close()
    assert (desk.project / "made").exists() and not (desk.project / "other").exists()
    assert json.loads(desk.perdure("ls", "--json").stdout)["waiting_for"] == "approval"


def test_a_chat_puts_the_question_and_goes_on(desk: Desk) -> None:
    configured(desk)
    model = desk.script(turn("", bash("touch made")), "All done.")
    terminal = Terminal(desk, "chat", "--model", model)
    try:
        terminal.until("session ")
        terminal.quiet()
        terminal.say("go")
        at = terminal.until("allow it?")
        terminal.say("a")
        terminal.until("All done.", after=at)
    finally:
        terminal.close()
    assert (desk.project / "made").exists()


def test_an_answer_from_elsewhere_counts_and_a_no_may_have_a_reason(desk: Desk) -> None:
    configured(desk)
    model = desk.script(turn("", bash("touch made"), bash("touch other")), turn("All done.", expect="not this one"))
    terminal = Terminal(desk, "chat", "--model", model)
    try:
        terminal.until("session ")
        terminal.quiet()
        terminal.say("go")
        at = terminal.until("allow it?")
        [row] = [json.loads(line) for line in desk.perdure("ls", "--json").stdout.splitlines()]
        assert desk.perdure("deny", row["session"], "main.1.0").returncode == 0
        terminal.say("y")
        at = terminal.until("answered already", after=at)
        at = terminal.until("allow it?", after=at)
        terminal.say("no not this one")
        terminal.until("All done.", after=at)
    finally:
        terminal.close()
    assert not (desk.project / "made").exists() and not (desk.project / "other").exists()
