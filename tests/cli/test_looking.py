"""What can be seen of a session: by people and by programs, at any time, without disturbing it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import apsw

from perdure.space import sandbox
from perdure.space.launch import bubblewrap
from tests.cli.desk import Desk, bash, call, finish, turn, until

EDITS = turn(
    "Three files.",
    call("write", path="a.txt", content="one\ntwo\n"),
    call("write", path="sub/b.txt", content="b\n"),
    bash("printf 'one\\nTWO\\n' > a.txt; seq 30"),
)


def settled(desk: Desk, *turns: dict[str, object] | str) -> None:
    done = desk.perdure("run", "edit", "--session", "s", "--model", desk.script(*(turns or (EDITS, "Edited."))))
    assert done.returncode == 0, done.stderr


def test_ls_says_what_each_session_is_and_waits_for(desk: Desk) -> None:
    assert desk.perdure("ls").stderr == "no sessions yet; `perdure run` starts one\n"
    settled(desk, "Hello.")
    failed = desk.folder / "other"
    failed.mkdir()
    desk.perdure("run", "x", "--session", "f", "-C", str(failed), "--model", desk.script(turn("", expect="other")))
    desk.perdure("submit", "s", "one more thing")
    waiting, broken = sorted(desk.json("ls", "--json"), key=lambda row: str(row["status"]), reverse=True)
    assert (waiting["session"], waiting["dir"], waiting["status"], waiting["waiting_for"]) == (
        "s",
        str(desk.project),
        "waiting",
        "needs_driver",
    )
    assert (broken["session"], broken["status"], broken["waiting_for"]) == ("f", "failed", None)
    assert "waiting for needs_driver" in desk.perdure("ls").stdout


def test_a_session_is_named_by_its_beginning_or_its_directory(desk: Desk) -> None:
    settled(desk, "Hello.")
    assert desk.perdure("show", "s").stdout == desk.perdure("show").stdout == desk.perdure("show", "-C", str(desk.project)).stdout
    id = desk.perdure("run", "x", "--model", desk.script("Hi.")).stdout.split()[0]
    assert desk.perdure("log", id[:6], "--json").stdout == desk.perdure("log", id, "--json").stdout != ""


def test_show_is_the_transcript_and_full_has_every_line_of_output(desk: Desk) -> None:
    settled(desk)
    short, whole = desk.perdure("show", "s").stdout, desk.perdure("show", "s", "--full").stdout
    assert "> edit\n" in short and "Three files.\n" in short and "Edited.\n" in short
    assert "… 26 lines before" in short and "\n    27\n" in short and "\n    3\n" not in short
    assert "\n    3\n" in whole and "lines before" not in whole


def test_log_json_tells_of_every_call_what_it_was_and_how_it_ended(desk: Desk) -> None:
    settled(desk)
    records = desk.log("s")
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    finished = [(r["call"], r["tool"], r["outcome"]) for r in records if r["kind"] == "call_finished"]
    assert finished == [("main.1.0", "write", "ok"), ("main.1.1", "write", "ok"), ("main.1.2", "bash", "ok")]
    assert all(isinstance(r["at"], float) and isinstance(r["epoch"], int) for r in records)
    assert desk.json("log", "s", "--json", "--after", "5") == records[5:]


def test_a_followed_log_brings_records_as_they_come(desk: Desk) -> None:
    settled(desk, "Hello.", "Again.")
    follower = desk.start("log", "s", "--json", "--follow", "--after", str(len(desk.log("s"))))
    desk.perdure("run", "more", "--session", "s")
    assert follower.stdout is not None
    kinds = []
    while "submission_settled" not in kinds:
        kinds.append(json.loads(follower.stdout.readline())["kind"])
    assert kinds[0] == "submission_admitted"
    follower.terminate()
    finish(follower)


def test_diff_shows_what_changed_between_any_two_records(desk: Desk) -> None:
    (desk.project / "a.txt").write_text("one\n")
    settled(desk)
    first, _, last = [record["seq"] for record in desk.log("s") if record["kind"] == "call_finished"]
    whole = desk.perdure("diff", "s").stdout
    assert "modified a.txt\n" in whole and "+TWO\n" in whole and "added sub/b.txt\n" in whole
    part = desk.perdure("diff", "s", f"{first}..{last}").stdout
    assert "-two\n" in part and "+TWO\n" in part and "+b\n" in part
    assert desk.perdure("diff", "s", f"{last}..").stdout == ""
    assert desk.perdure("diff", "--stat").stdout == "a.txt      +1 -0\nsub/b.txt  added +1 -0\n2 paths changed\n"


def test_verify_finds_what_somebody_changed(desk: Desk) -> None:
    settled(desk)
    (equal,) = desk.json("verify", "s", "--json")
    assert equal["equal"] is True and equal["image"] == equal["log_image"]
    (desk.project / "a.txt").write_text("mine\n")
    os.mkfifo(desk.project / "fifo")
    done = desk.perdure("verify", "s")
    assert done.returncode == 1
    assert done.stdout.splitlines()[0] == "differs: a.txt"
    (unequal,) = desk.json("verify", "s", "--json")
    assert (unequal["equal"], unequal["differing"]) == (False, ["a.txt"])
    assert unequal["image"] != unequal["log_image"] == equal["image"]
    assert (desk.project / "a.txt").read_text() == "mine\n"
    assert sorted(p.name for p in desk.home.glob("verify-*")) == []


def test_what_is_submitted_is_durable_and_waits_for_a_driver(desk: Desk) -> None:
    settled(desk, "Hello.", turn("Noted.", expect="^the answer is 42$"))
    sent = desk.perdure("submit", "s", "-", input="the answer is 42")
    assert sent.returncode == 0
    assert "nobody drives session s now; perdure resume s does" in sent.stderr
    assert desk.perdure("submit", "s", "the answer is 43", "--reject").returncode == 1
    assert desk.perdure("resume", "s").returncode == 0
    assert desk.perdure("wait", "s").stdout == "Noted.\n"


def test_a_note_wakes_nobody_and_is_heard_with_the_next_prompt(desk: Desk) -> None:
    model = desk.script("Hello.", {"text": "I know.", "expect": "by the way.*and now"})
    assert desk.perdure("run", "hi", "--session", "s", "--model", model).returncode == 0
    sent = desk.perdure("submit", "--note", "s", "by the way")
    assert (sent.returncode, sent.stderr) == (0, "")
    assert desk.json("ls", "--json")[0]["status"] == "settled"
    assert desk.perdure("wait", "s", "--timeout", "10").stdout == "Hello.\n"
    assert "I know." in desk.perdure("run", "and now", "--session", "s").stdout


def test_a_session_alone_is_nothing_to_be_told(desk: Desk) -> None:
    for name in ("one", "two"):
        assert desk.perdure("run", "hi", "--session", name, "--model", desk.script("Hello.")).returncode == 0
    sent = desk.perdure("submit", "one")
    assert (sent.returncode, "say what session one is to be told" in sent.stderr) == (2, True)
    assert len([kind for kind in desk.kinds("two") if kind == "submission_admitted"]) == 1


def test_abort_stops_what_another_process_drives(desk: Desk) -> None:
    driver = desk.start("run", "x", "--session", "s", "--model", desk.script(turn("", bash("touch up; sleep 60")), "Never."))
    until((desk.project / "up").exists)
    waiter = desk.start("wait", "s")
    assert desk.perdure("abort", "s", "--reason", "wrong branch").returncode == 0
    code, out, _ = finish(driver)
    assert (code, "✗ aborted: wrong branch" in out) == (1, True)
    assert finish(waiter) == (1, "", "perdure: aborted: wrong branch\n")
    assert desk.perdure("abort", "s").stderr == "perdure: session s has nothing to stop\n"


def test_wait_gives_up_after_its_time(desk: Desk) -> None:
    settled(desk, "Hello.")
    desk.perdure("submit", "s", "more")
    done = desk.perdure("wait", "s", "--timeout", "0.3")
    assert done.returncode == 1
    assert "has not settled within 0.3 s" in done.stderr
    assert "    perdure resume s" in done.stderr


def test_doctor_names_what_it_stands_on(desk: Desk) -> None:
    done = desk.perdure("doctor", "--json")
    assert done.returncode == 0, done.stdout
    (found,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert found["sqlite"]["value"].startswith(apsw.sqlite_lib_version())
    assert "journal_mode wal, synchronous 2" in found["sqlite"]["value"]
    assert found["sandbox"]["value"].startswith("none here" if sandbox.problem(bubblewrap()) else "hermetic")
    assert {"custody", "engine", "home", "directory", "bubblewrap", "ripgrep"} <= found.keys()
    without = desk.perdure("doctor", PATH=str(Path(os.devnull)))
    assert "· ripgrep" in without.stdout and "· bash" in without.stdout
