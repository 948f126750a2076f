"""A conversation in a terminal: prompts, steering while it works, Ctrl-C, and coming back after a kill."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator

import pytest

from tests.cli.desk import PERDURE, Desk, bash, call, turn, until
from tests.cli.keyboard import CTRL_C, CTRL_D, Terminal


@pytest.fixture
def terminal(desk: Desk) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(*arguments: str) -> Terminal:
        opened.append(Terminal(desk, *arguments))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def admitted(desk: Desk, session: str) -> list[tuple[str, str]]:
    records = [record for record in desk.log(session) if record["kind"] == "submission_admitted"]
    return [(record.get("mode", "follow_up"), record["parts"][0]["text"]) for record in records]


def the_session(desk: Desk) -> str:
    return str(desk.json("ls", "--json")[0]["session"])


def test_two_prompts_one_session(desk: Desk, terminal: Callable[..., Terminal]) -> None:
    model = desk.script(turn("Writing.", call("write", path="a.txt", content="hello\n")), "It is there.", "You are welcome.")
    chat = terminal("chat", "--model", model)
    chat.until("› ")
    chat.say("make a.txt")
    at = chat.until("It is there.")
    chat.until("› ", at)
    chat.say("/diff")
    at = chat.until("+hello", at)
    chat.until("› ", at)
    chat.say("thank you")
    at = chat.until("You are welcome.", at)
    chat.until("› ", at)
    chat.type(CTRL_D)
    assert chat.end() == 0
    assert admitted(desk, the_session(desk)) == [("follow_up", "make a.txt"), ("follow_up", "thank you")]
    assert stat.S_IMODE((desk.home / "history").stat().st_mode) == 0o600
    assert (desk.home / "history").read_text().splitlines()[-3:] == ["make a.txt", "/diff", "thank you"]


def test_a_line_typed_while_it_works_steers_and_an_unfinished_one_stays(desk: Desk, terminal: Callable[..., Terminal]) -> None:
    chat = terminal(
        "chat", "--model", desk.script(turn("Going.", bash("until test -e go; do sleep 0.05; done")), "Briefly: done.")
    )
    chat.until("› ")
    chat.say("work")
    at = chat.until("… bash")
    chat.type("be brieX\x7ff")
    at = chat.until("› be brief", at)
    chat.say("")
    at = chat.until("sent, for after the running call: be brief", at)
    chat.type("and the")
    chat.until("› and the", at)
    (desk.project / "go").touch()
    at = chat.until("> be brief", at)
    at = chat.until("Briefly: done.", at)
    at = chat.until("· answered", at)
    chat.until("› and the", at)
    chat.quiet()  # the line editor has it now
    chat.type("n?\x15" + CTRL_D)
    assert chat.end() == 0
    assert admitted(desk, the_session(desk)) == [("follow_up", "work"), ("steer", "be brief")]


def test_a_line_that_steers_too_late_is_the_next_prompt(desk: Desk, terminal: Callable[..., Terminal]) -> None:
    """It is typed when the turn's driver has let go already, and the line editor has not begun."""
    trace = desk.folder / "steps"
    desk.environment["PERDURE_STEPS"] = f"driver:release.after@1:stop:{trace}"
    chat = terminal("chat", "--model", desk.script("Done.", "That too."))
    chat.until("› ")
    chat.say("work")
    assert until(lambda: trace.with_name("steps.fired").exists())
    chat.say("and that")
    os.kill(chat.process.pid, signal.SIGCONT)
    at = chat.until("That too.")
    chat.until("› ", at)
    chat.type(CTRL_D)
    assert chat.end() == 0


def test_ctrl_c_stops_the_turn_and_the_conversation_goes_on(desk: Desk, terminal: Callable[..., Terminal]) -> None:
    chat = terminal("chat", "--model", desk.script(turn("", bash("sleep 1000")), "I was stopped."))
    chat.until("› ")
    chat.say("sleep")
    at = chat.until("… bash")
    chat.type(CTRL_C)
    at = chat.until("aborted: Ctrl-C", at)
    at = chat.until("› ", at)
    chat.say("and now?")
    at = chat.until("I was stopped.", at)
    at = chat.until("› ", at)
    chat.quiet()  # the line editor waits
    chat.type(CTRL_C)
    chat.until("Ctrl-D leaves", at)
    chat.say("/quit")
    assert chat.end() == 0


def test_a_second_ctrl_c_leaves_at_once_with_the_terminal_in_order(desk: Desk, terminal: Callable[..., Terminal]) -> None:
    chat = terminal("chat", "--model", desk.script(turn("", bash("trap '' TERM; sleep 1000"))))
    chat.until("› ")
    chat.say("sleep")
    chat.until("… bash")
    assert not chat.echoes()
    chat.type(CTRL_C)
    chat.until("stopping")
    chat.type(CTRL_C)
    assert chat.end() in (0, 130)
    assert chat.echoes()


def test_killed_in_the_middle_it_shows_where_it_was_and_goes_on(desk: Desk, terminal: Callable[..., Terminal]) -> None:
    model = desk.script(turn("Going.", bash("until test -e go; do sleep 0.05; done; echo made")), "Done, once.")
    chat = terminal("chat", "--model", model)
    chat.until("› ")
    chat.say("make it")
    chat.until("… bash")
    os.kill(chat.process.pid, signal.SIGKILL)
    chat.end()
    again = terminal("chat")
    at = again.until("> make it")
    (desk.project / "go").touch()
    at = again.until("Done, once.", at)
    again.until("› ", at)
    again.type(CTRL_D)
    assert again.end() == 0
    finished = [record for record in desk.log(the_session(desk)) if record["kind"] == "call_finished"]
    assert [(record["outcome"], record["result"]["text"].strip()) for record in finished] == [("ok", "made")]


def test_lines_of_a_pipe_are_prompts(desk: Desk) -> None:
    model = desk.script("One.", "Two.")
    ran = desk.perdure("chat", "--model", model, input="first\n\nsecond \\\nand more\n/nope\n")
    assert (ran.returncode, "One." in ran.stdout, "Two." in ran.stdout) == (1, True, True)
    assert "there is no command /nope" in ran.stdout
    assert admitted(desk, the_session(desk)) == [("follow_up", "first"), ("follow_up", "second \nand more")]


def test_the_model_can_be_changed(desk: Desk) -> None:
    first, second = desk.script("I am the first."), desk.script("unused", "I am the second.", name="second.json")
    ran = desk.perdure("chat", "--model", first, input=f"hello\n/model {second}\nhello again\n/model openai:x\n")
    assert "I am the first." in ran.stdout and "I am the second." in ran.stdout
    assert "OPENAI_API_KEY is not set" in ran.stdout


def test_the_last_prompt_can_be_taken_back_and_what_others_changed_stays(desk: Desk) -> None:
    (desk.project / "gone.txt").write_text("gone\n")
    (desk.project / "mine.txt").write_text("mine\n")
    first = turn("", call("write", path="kept.txt", content="kept\n"))
    second = turn("", call("write", path="new.txt", content="new\n"), bash("rm gone.txt; echo theirs > mine.txt"))
    told = "took back in the files what your last turn changed"
    model = desk.script(first, "One.", second, "Two.", {"text": "I see.", "expect": told})
    assert desk.perdure("chat", "--model", model, input="first\nsecond\n").returncode == 0
    (desk.project / "mine.txt").write_text("mine again\n")
    (desk.project / "other.txt").write_text("other\n")
    ran = desk.perdure("chat", input="/undo\n/undo\nwhat now?\n")
    assert "as before  gone.txt" in ran.stdout and "gone again  new.txt" in ran.stdout and "left alone  mine.txt" in ran.stdout
    files = {path.name: path.read_text() for path in desk.project.iterdir()}
    assert files == {"gone.txt": "gone\n", "mine.txt": "mine again\n", "other.txt": "other\n", "kept.txt": "kept\n"}
    assert "I see." in ran.stdout


def test_an_undo_of_nothing_says_so(desk: Desk) -> None:
    ran = desk.perdure("chat", "--model", desk.script("One."), input="/undo\nfirst\n/undo\n")
    assert "has changed nothing yet" in ran.stdout or "changed nothing that is still there" in ran.stdout


def test_a_conversation_is_summed_up_on_request(desk: Desk) -> None:
    turns = [turn(f"Step {n}.", bash(f"seq {n} 200")) for n in range(8)]
    ran = desk.perdure("chat", "--model", desk.script(*turns, "Done.", "And on."), input="work\n/compact\nand on?\n")
    assert "And on." in ran.stdout and "compacted" in desk.kinds(the_session(desk))


def test_without_a_model_it_says_how_to_name_one(desk: Desk) -> None:
    ran = desk.perdure("chat", input="x\n")
    assert (ran.returncode, "name a model with --model" in ran.stderr) == (2, True)
    assert desk.perdure("chat", "nobody", input="x\n").returncode == 2


# ---- beside another driver -------------------------------------------------------------------------------------------------


def test_detached_work_is_attached_to_and_steered(desk: Desk, terminal: Callable[..., Terminal]) -> None:
    model = desk.script(turn("Going.", bash("until test -e go; do sleep 0.05; done")), "Done.")
    ran = desk.perdure("run", "work", "--session", "s", "--model", model, "--detach")
    assert (ran.returncode, ran.stdout) == (0, "s\n")
    assert "drives it" in ran.stderr
    seen = terminal("attach", "s")
    at = seen.until("… bash")
    seen.say("also this")
    at = seen.until("> also this", at)
    left = terminal("attach", "s")
    left.until("… bash")
    left.type(CTRL_C)
    assert left.end() == 130
    (desk.project / "go").touch()
    seen.until("Done.", at)
    assert seen.end() == 0
    assert admitted(desk, "s") == [("follow_up", "work"), ("steer", "also this")]
    assert desk.perdure("wait", "s").stdout == "Done.\n"
    log = desk.home / "sessions" / "s" / "driver.log"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600 and "Done." in log.read_text()


def test_a_line_that_steers_after_the_driver_has_gone_is_told_to_wait(desk: Desk, terminal: Callable[..., Terminal]) -> None:
    model = desk.script(turn("Going.", bash("until test -e go; do sleep 0.05; done")), "Done.", "That too.")
    assert desk.perdure("run", "work", "--session", "s", "--model", model, "--detach").returncode == 0
    seen = terminal("attach", "s")
    at = seen.until("… bash")
    os.kill(seen.process.pid, signal.SIGSTOP)
    seen.say("and that")
    (desk.project / "go").touch()
    assert desk.perdure("wait", "s").stdout == "Done.\n"
    assert until(lambda: desk.json("ls", "--json")[0]["status"] == "settled")
    os.kill(seen.process.pid, signal.SIGCONT)
    seen.until("waits for needs_driver", at)
    assert seen.end() == 1
    assert desk.perdure("resume", "s").returncode == 0
    assert "That too." in desk.perdure("show", "s").stdout


def test_a_chat_joins_what_another_process_drives(desk: Desk, terminal: Callable[..., Terminal]) -> None:
    model = desk.script(turn("Going.", bash("until test -e go; do sleep 0.05; done")), "Done.", "And you.")
    assert desk.perdure("run", "work", "--session", "s", "--model", model, "--detach").returncode == 0
    chat = terminal("chat", "s")
    chat.until("another process drives it")
    chat.until("› ")
    chat.say("after that, greet me")
    (desk.project / "go").touch()
    at = chat.until("And you.")
    chat.until("› ", at)
    chat.type(CTRL_D)
    assert chat.end() == 0


def test_a_driver_that_cannot_begin_says_why(desk: Desk) -> None:
    model = desk.script("Hello.")
    assert desk.perdure("run", "hello", "--session", "s", "--model", model).returncode == 0
    (desk.folder / "script.json").unlink()
    ran = desk.perdure("run", "again", "--session", "s", "--detach")
    assert until(lambda: "script" in desk.perdure("log", "s").stdout or ran.stderr)


def test_a_stopped_chat_can_be_continued(desk: Desk, terminal: Callable[..., Terminal]) -> None:
    """The shell that it was stopped in changes the terminal; back in front, keys are read one at a time again."""
    chat = terminal("chat", "--model", desk.script(turn("", bash("until test -e go; do sleep 0.05; done")), "Done."))
    chat.until("› ")
    chat.say("work")
    chat.until("… bash")
    subprocess.run(["stty", "sane"], stdin=chat.tty, check=True)
    assert chat.echoes()
    os.kill(chat.process.pid, signal.SIGCONT)
    until(lambda: not chat.echoes())
    (desk.project / "go").touch()
    chat.until("Done.")


def test_every_command_of_the_table_answers(desk: Desk) -> None:
    ran = subprocess.run(
        [*PERDURE, "chat", "--model", desk.script("Hi.")],
        input="/help\n/keep\n/accept\n/status\n/diff\n'\n/'\n/quit\nnever\n",
        cwd=desk.project, env=desk.environment, capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    for said in (
        "/diff [stat|all]",
        "does not wait for changed_after_crash",
        "settled",
        "nothing was changed",
        "No closing quotation",
    ):
        assert said in ran.stdout
    assert "never" not in ran.stdout and ran.returncode in (0, 1)


def test_a_conversation_can_work_in_a_copy(desk: Desk) -> None:
    model = desk.script(turn("", call("write", path="new.txt", content="new\n")), "Made.")
    assert desk.perdure("chat", "--copy", "--model", model, input="make it\n").returncode == 0
    assert not (desk.project / "new.txt").exists()
    assert desk.perdure("apply", the_session(desk)).returncode == 0
    assert (desk.project / "new.txt").read_text() == "new\n"
