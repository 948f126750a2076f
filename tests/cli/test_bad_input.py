"""Whatever is wrong with a request gets one clear message with the remedy, an exit code, and no traceback; nothing is half done."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import perdure
from perdure.cli import main as cli
from perdure.log import filesystem
from tests.cli.desk import Desk, turn

MODEL = "MODEL"


def nothing(desk: Desk) -> None:
    pass


def a_file(desk: Desk) -> None:
    (desk.project / "file").touch()


def odd_directory(desk: Desk) -> None:
    (desk.project / "odd\udcff").mkdir()


def broken_script(content: str) -> Callable[[Desk], None]:
    return lambda desk: (desk.project / "bad.json").write_text(content)  # type: ignore[func-returns-value]


def home_in_project(desk: Desk) -> None:
    desk.environment["PERDURE_HOME"] = str(desk.project / "home")


def project_in_home(desk: Desk) -> None:
    desk.environment["PERDURE_HOME"] = str(desk.folder)


def home_is_a_file(desk: Desk) -> None:
    desk.home.touch()


def made(desk: Desk, *names: str) -> None:
    async def make() -> None:
        async with perdure.open(desk.home) as home:
            for name in names:
                await home.session(name, directory=desk.project, model=desk.script("Hi."))

    asyncio.run(make())


def a_session(desk: Desk) -> None:
    made(desk, "first")


def two_sessions(desk: Desk) -> None:
    made(desk, "twin-1", "twin-2")


BAD = {
    "no prompt": (nothing, ["run", "--model", MODEL], 2, "say what is to be done"),
    "empty prompt": (nothing, ["run", "  ", "--model", MODEL], 2, "the prompt is empty"),
    "no model": (nothing, ["run", "x"], 2, "openai:MODEL"),
    "unknown model": (nothing, ["run", "x", "--model", "gpt"], 2, "there is no model 'gpt'"),
    "unknown provider": (nothing, ["run", "x", "--model", "nobody:gpt"], 2, "there is no model 'nobody:gpt'"),
    "missing key": (nothing, ["run", "x", "--model", "openai:gpt-5.2"], 2, "OPENAI_API_KEY is not set"),
    "a base URL for a script": (nothing, ["run", "x", "--model", MODEL, "--base-url", "http://localhost:1"], 2, "a base URL goes with"),
    "missing script": (nothing, ["run", "x", "--model", "scripted:no.json"], 2, "no.json can't be read: No such file"),
    "script that is no JSON": (broken_script("turns"), ["run", "x", "--model", "scripted:bad.json"], 2, "is not of the form"),
    "script with a wrong field": (
        broken_script('{"turns": [{"txt": "hello"}]}'),
        ["run", "x", "--model", "scripted:bad.json"],
        2,
        "turn 1",
    ),
    "missing directory": (nothing, ["run", "x", "--model", MODEL, "-C", "nowhere"], 2, "does not exist"),
    "a file instead of a directory": (a_file, ["run", "x", "--model", MODEL, "-C", "file"], 2, "is not a directory"),
    "/": (nothing, ["run", "x", "--model", MODEL, "-C", "/"], 2, "/ can't be a workspace"),
    "the home inside the root": (home_in_project, ["run", "x", "--model", MODEL], 2, "lies inside of"),
    "the root inside the home": (project_in_home, ["run", "x", "--model", MODEL], 2, "lies inside of Perdure's home"),
    "a home that is a file": (home_is_a_file, ["ls"], 2, "can't be Perdure's home"),
    "a home in nowhere": (
        lambda desk: desk.environment.update(PERDURE_HOME="/dev/null/home"),
        ["ls"],
        2,
        "choose another folder (PERDURE_HOME)",
    ),
    "a directory whose name is no text": (odd_directory, ["run", "x", "--model", MODEL, "-C", "odd\udcff"], 2, "is not UTF-8 text"),
    "a request id that is no text": (a_session, ["submit", "first", "x", "--request-id", "\udcff"], 2, "is not UTF-8 text"),
    "no standard input": (nothing, ["run", "-", "--model", MODEL], 2, "the prompt is empty"),
    "an unknown Space": (nothing, ["run", "x", "--model", MODEL, "--space", "moon"], 2, "there is no Space of kind 'moon'"),
    "an unknown custody": (nothing, ["run", "x", "--model", MODEL, "--custody", "none"], 2, "'none' is not one of"),
    "a budget of nothing": (nothing, ["run", "x", "--model", MODEL, "--max-turns", "0"], 2, "--max-turns"),
    "an impossible session's name": (nothing, ["run", "x", "--model", MODEL, "--session", "../up"], 2, "can't name a session"),
    "an unknown command": (nothing, ["frobnicate"], 2, "No such command"),
    "an unknown option": (nothing, ["ls", "--frobnicate"], 2, "No such option"),
    "an unknown session": (a_session, ["show", "second"], 2, "there is no session 'second'"),
    "no session here": (nothing, ["show"], 2, "there is no session on"),
    "a beginning of two": (two_sessions, ["log", "twin"], 2, "twin-1"),
    "two ways to name a session": (a_session, ["log", "first", "-C", "."], 2, "not by both"),
    "another directory for a session": (a_session, ["run", "x", "--session", "first", "-C", ".."], 2, "session first works in"),
    "another model for a session": (a_session, ["run", "x", "--session", "first", "--model", MODEL], 2, "--model can only be chosen"),
    "the beginning of a name as a new one": (a_session, ["run", "x", "--session", "fir", "--model", MODEL], 2, "the beginning of session first"),
    "an answer to no question": (a_session, ["resume", "first", "--keep"], 2, "does not wait for changed_after_crash"),
    "an answer to nobody": (nothing, ["resume", "--accept"], 2, "say which session"),
    "to watch one session": (a_session, ["resume", "first", "--watch"], 2, "--watch is for all sessions"),
    "a range outside of the log": (a_session, ["diff", "first", "2..999"], 2, "has records 1 to"),
    "an unknown salvage": (a_session, ["salvage", "apply", "abc", "first"], 2, "'abc' is none of them"),
    "too many words": (nothing, ["submit", "a", "b", "c"], 2, "give the session and the prompt"),
    "an empty submission": (a_session, ["submit", "first", ""], 2, "the prompt is empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_request_says_what_to_do(desk: Desk, name: str) -> None:
    prepare, arguments, code, message = BAD[name]
    model = desk.script("Hello.", turn("More."))
    prepare(desk)
    done = desk.perdure(*(model if argument == MODEL else argument for argument in arguments))
    assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
    assert message in done.stderr
    assert done.stderr.count("perdure: ") == 1
    assert done.stdout == ""
    assert not list(desk.home.glob("crash-*")) if desk.home.is_dir() else True


def test_a_refused_request_leaves_no_session(desk: Desk) -> None:
    for arguments in (["-C", "nowhere"], ["--space", "moon"], ["-C", "/"]):
        desk.perdure("run", "x", "--model", desk.script("Hi."), *arguments)
    assert desk.json("ls", "--json") == []


def test_a_home_on_a_network_file_system_is_refused(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(filesystem, "kind_of", lambda path: "nfs4")
    monkeypatch.setenv("PERDURE_HOME", str(desk.home))
    monkeypatch.setattr(sys, "argv", ["perdure", "ls"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "nfs4 file system" in capsys.readouterr().err


def test_a_newer_home_can_not_be_opened_by_trying_again(desk: Desk) -> None:
    a_session(desk)
    connection = apsw.Connection(str(desk.home / "log.db"))
    connection.pragma("user_version", 99)
    connection.close()
    done = desk.perdure("show", "first")
    assert done.returncode == 78
    assert "use the newer perdure that wrote it" in done.stderr


def test_a_damaged_record_is_named_and_those_before_it_stay_readable(desk: Desk) -> None:
    a_session(desk)
    before = desk.log("first")
    connection = apsw.Connection(str(desk.home / "log.db"))
    connection.execute("UPDATE record SET body = zeroblob(20) WHERE key & 0xffffffff = ?", (before[-1]["seq"],))
    connection.close()
    done = desk.perdure("log", "first", "--json")
    assert done.returncode == 78
    assert f"record {before[-1]['seq']}" in done.stderr
    assert done.stdout.count("\n") == len(before) - 1


def test_what_should_not_have_happened_leaves_its_details_in_the_home(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(path: Path) -> str:
        raise RuntimeError("nobody thought of this")

    desk.home.mkdir()
    monkeypatch.setattr(filesystem, "kind_of", broken)
    monkeypatch.setenv("PERDURE_HOME", str(desk.home))
    monkeypatch.setattr(sys, "argv", ["perdure", "ls"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    (crash,) = desk.home.glob("crash-*.txt")
    assert ended.value.code == 1
    assert f"RuntimeError: nobody thought of this\nthe details are in {crash}" in capsys.readouterr().err
    assert "in broken" in crash.read_text()
    assert crash.stat().st_mode & 0o077 == 0
