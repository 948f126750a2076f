"""A person can read what happened, and nothing that a model or a file wrote can reach the terminal."""

from __future__ import annotations

from perdure.history.line import Line, duration, listed, plain, shorten
from perdure.history.timeline import Kill, tally, timeline
from perdure.history.transcript import transcript
from perdure.record import records as r
from perdure.record.parts import Blob, Text, Thinking, ToolCall
from perdure.record.records import Body, Stored

IMAGE = r.Image("a" * 64, "b" * 64, 1)
OWNER = r.Owner("desk", "boot", 41, 1, 1)
WHERE = r.Incarnation("g", "boot", "l")


def log(*bodies: Body | tuple[float, Body]) -> list[Stored]:
    """Records a tenth of a second apart, or at the times given; the epoch grows with each `epoch_raised`."""
    stored, epoch = [], 0
    for n, entry in enumerate(bodies, 1):
        at, body = entry if isinstance(entry, tuple) else (n / 10, entry)
        epoch += isinstance(body, r.EpochRaised)
        stored.append(Stored(n, 1000.0 + at, epoch, f"c{n}", body, "main"))
    return stored


def texts(lines: list[Line] | object) -> list[str]:
    return [line.text for line in lines]  # type: ignore[attr-defined]


def bash(call: str, command: str) -> r.CallProposed:
    return r.CallProposed(call, "bash", {"command": command})


def started(call: str, attempt: int = 1) -> r.CallStarted:
    return r.CallStarted(call, attempt, f"l:{call}:{attempt}", "external", base=IMAGE)


A_RUN = log(
    r.SessionCreated("l", "coder", "conversation", 1, "scripted:x"),
    r.EpochRaised(OWNER),
    r.SubmissionAdmitted("s1", (Text("fix the test\nplease"),)),
    r.ModelResponded(1, 1, (Thinking("hmm"), Text("Running it."), ToolCall("p", "bash", {"command": "make test"}))),
    bash("main.1.0", "make test"),
    started("main.1.0"),
    r.EpochRaised(OWNER),
    r.SpaceLost(WHERE, 1, "killed"),
    r.Recovered(
        "undo_interrupt", "lost with supervisor 1", call="main.1.0", taken_back=("b", "a"), taken_back_count=2, salvage="d" * 64
    ),
    r.CallFinished("main.1.0", "interrupted", r.Result("cut off"), 1, duration_s=1.234),
    bash("main.2.0", "make test"),
    started("main.2.0"),
    r.CallFinished(
        "main.2.0",
        "ok",
        r.Result("1\n2\n3\n4\n5\n"),
        1,
        3,
        duration_s=0.02,
        changed=("out",),
        left=(r.Process(9, "serve", (80,)),),
    ),
    r.WorkspaceChanged(IMAGE, ("notes.txt",)),
    r.SubmissionSettled("s1", "answered"),
)


def test_what_people_asked_and_the_model_said_stand_line_by_line() -> None:
    lines = list(transcript(A_RUN))
    assert [line.text for line in lines if line.style == "person"] == ["fix the test", "please"]
    assert [line.text for line in lines if line.style == "model"] == ["Running it."]
    assert lines[-1] == Line("session", "answered", 1001.5, 15)


def test_a_call_shows_how_it_ended_what_it_printed_last_and_what_it_changed() -> None:
    shown = texts(transcript(A_RUN, output_lines=2))
    at = shown.index("bash   make test  exit 3 · 20 ms")
    assert shown[at + 1 : at + 6] == [
        "… 3 lines before",
        "4",
        "5",
        "changed out",
        "left running: serve (process 9, listening on 80)",
    ]
    assert "4" not in texts(transcript(A_RUN, output_lines=0))


def test_recovery_says_what_it_did_to_which_call_and_why() -> None:
    [said] = [line.text for line in transcript(A_RUN) if line.style == "recovery" and "make test" in line.text]
    assert "was cut off and undone; it is not run again" in said
    assert "taken back: b, a" in said and "salvage dddddddddddd" in said and "lost with supervisor 1" in said
    assert "bash   make test  interrupted · 1.2 s" in texts(transcript(A_RUN))


def test_what_others_changed_is_named() -> None:
    assert "changed by others: notes.txt" in texts(transcript(A_RUN))
    first_look = log(r.WorkspaceChanged(IMAGE, ("everything",), found_by="open"))
    assert texts(transcript(first_look)) == []


def test_a_call_without_an_end_is_told_last() -> None:
    assert texts(transcript(A_RUN[:6]))[-1] == "bash   make test  … not finished"


def test_of_a_call_whose_end_nobody_saw_no_duration_is_told() -> None:
    told = log(
        bash("c", "x"),
        r.Recovered("undo_interrupt", "lost", call="c", taken_back=("a",), taken_back_count=1, salvage="d" * 64),
        r.CallFinished("c", "interrupted", r.Result(""), cause="lost"),
        bash("d", "y"),
        r.CallFinished("d", "aborted", r.Result(""), exit_code=-15, cause="abort", duration_s=2.0),
    )
    assert texts(transcript(told)) == [
        "bash   x  was cut off and undone; it is not run again, and the model is told; taken back: a; salvage dddddddddddd",
        "bash   x  interrupted",
        "bash   y  aborted · 2.0 s",
    ]


def test_a_kept_partial_answer_is_shown_before_its_continuation() -> None:
    records = log(r.Recovered("continue", "cut", turn=1, partial="It was "), r.ModelResponded(1, 2, (Text("a typo."),)))
    assert [line.text for line in transcript(records) if line.style == "model"] == ["It was ", "a typo."]


def test_every_kind_of_record_can_be_told() -> None:
    every = log(
        r.SessionForked("p", 3, "l"),
        r.ThreadOpened("helper", "main"),
        r.EpochReleased("root_replaced"),
        r.SettingsChanged(model="m"),
        r.SettingsChanged(instructions="x"),
        r.NoteAdded("a note"),
        r.Redacted((1, 2)),
        r.SubmissionAdmitted("s", (Blob("d", 5, name="a.png"),)),
        r.SubmissionPlaced("s"),
        r.SubmissionSettled("s", "failed", "no", ("main.1.0",)),
        r.AbortRequested("s", reason="wrong"),
        r.BudgetExhausted("s", "turn", "turns", 3),
        r.RecoveryAnswered("changed_after_crash", "keep"),
        r.TurnStarted(1, "s", "m"),
        r.ModelResponded(1, 1, (Text("cut"),), stop="length"),
        r.ModelFailed(1, 1, "retryable", "busy", 429, partial="so "),
        r.Compacted(4, "sum"),
        bash("c", "x"),
        r.CallDecided("c", "deny", "person", reason="no"),
        r.CallFinished("c", "denied", r.Result("no"), opaque=("big", "same"), opaque_changed=("big",)),
        r.SpaceOpened(WHERE, 2, r.Init(5, 1, 1), "pidns", hermetic=True),
        r.SpaceRestored("c", IMAGE, IMAGE, taken_back=("a",), processes_killed=2),
        r.Synced(IMAGE),
    )
    shown = "\n".join(texts(transcript(every)))
    for words in (
        "record 3",
        "helper",
        "root_replaced",
        "model",
        "a note",
        "2 records",
        "[a.png, 5 bytes]",
        "abort of s: wrong",
    ):
        assert words in shown
    for words in (
        "turns",
        "keep",
        "length",
        "429",
        "sum",
        "denied by person: no",
        "beyond undoing: big",
        "pidns, hermetic",
        "2 processes",
    ):
        assert words in shown


def test_arguments_show_what_tells_most() -> None:
    calls = (
        r.CallProposed("1", "read", {"path": "a.py", "offset": 10}),
        r.CallProposed("2", "write", {"path": "b.py", "content": "xyz"}),
        r.CallProposed("3", "edit", {"path": "c.py", "edits": [{}, {}]}),
        r.CallProposed("4", "search", {"pattern": "x+", "glob": "*.py"}),
        r.CallProposed("5", "fetch", {"url": "u"}),
        bash("6", "echo " + "x" * 500),
        bash("7", "echo one  # and\nfor i in 1 2\ndo echo $i; done\n"),
    )
    ends = [r.CallFinished(call.call, "ok", r.Result()) for call in calls]
    shown = [text.partition("  ok")[0] for text in texts(transcript(log(*calls, *ends)))]
    assert shown[:5] == [
        "read   a.py from line 10",
        "write  b.py (3 characters)",
        "edit   c.py (2 places)",
        "search /x+/ in *.py",
        'fetch  {"url":"u"}',
    ]
    assert len(shown[5]) < 120 and shown[5].endswith("…")
    assert shown[-1] == "bash   echo one # and ⏎ for i in 1 2 ⏎ do echo $i; done"


def test_nothing_that_was_written_reaches_the_terminal() -> None:
    evil = "a\x1b[2J\x9b\x07\u202egpj.exe"
    assert plain(evil) == "a\\x1b[2J\\x9b\\x07\\u202egpj.exe"
    assert plain(b"caf\xe9".decode("utf-8", "surrogateescape")) == "caf\\xe9"
    assert plain("naïve – 日本\n\tx") == "naïve – 日本\n\tx"
    records = log(
        r.SubmissionAdmitted("s", (Text(evil),)),
        r.ModelResponded(1, 1, (Text(evil),)),
        bash("c", evil),
        r.CallFinished("c", "ok", r.Result(evil), changed=(evil,), left=(r.Process(1, evil),)),
        r.WorkspaceChanged(IMAGE, (evil,)),
        r.NoteAdded(evil),
    )
    assert not any("\x1b" in text or "\x9b" in text or "\u202e" in text for text in texts(transcript(records)))


def test_words_for_sizes() -> None:
    assert [duration(s) for s in (0.0004, 0.5, 1.25, 75, 3725)] == ["0 ms", "500 ms", "1.2 s", "75.0 s", "62 min 05 s"]
    assert listed(("a", "b", "c"), 1500, limit=2) == "a, b and 1,498 more"
    assert listed((), 7) == "7 paths"
    assert shorten("one\n two", 20) == "one two" and shorten("x" * 30, 5) == "xxxx…"


# ---- the timeline ----------------------------------------------------------------------------------------------------------


def test_a_kill_stands_between_what_it_cut_off_and_what_became_of_it() -> None:
    lines = timeline(A_RUN, [Kill(1000.65, "the driver")])
    shown = [text.partition(" s  ")[2] for text in texts(lines)]
    at = shown.index("SIGKILL  the driver")
    assert shown[at - 1] == "bash   make test  begins"
    assert shown[at + 1 : at + 3] == ["driver 2 (process 41)", "supervisor 1 is gone: killed"]
    assert "is not run again" in shown[at + 3]
    assert shown.count("bash   make test  begins") == 1, "the second call was not cut off"
    assert lines[at].text.startswith("   0.55 s  ")
    assert shown[-1] == "settled: answered"


def test_an_empty_log_has_no_timeline() -> None:
    assert timeline([]) == []


def test_the_tally_counts_what_ran_twice() -> None:
    total = tally(A_RUN)
    assert (total.drivers, total.calls, total.undone, total.twice, total.settled) == (2, 2, 1, 0, True)
    again = log(started("c", 1), r.Recovered("undo_start", "x", call="c"), started("c", 2), r.Recovered("adopt", "y", call="d"))
    assert (tally(again).twice, tally(again).adopted, tally(again).settled) == (1, 1, False)


def test_a_question_about_a_file_shows_what_would_be_written() -> None:
    edits = [{"old_text": "one", "new_text": "1\n2"}, "no edit"]
    write, edit = (
        r.CallProposed("c", "write", {"path": "a", "content": "\x1b[2Jx\n" * 30}),
        r.CallProposed("d", "edit", {"path": "b", "edits": edits}),
    )
    records = log(write, edit, r.ApprovalRequested("c", "f" * 64, "default"), r.ApprovalRequested("d", "f" * 64, "ask edit"))
    lines = texts(transcript(records))
    assert lines[:2] == ["write  a (180 characters)  asks for approval (rule default)", "    + \\x1b[2Jx"]
    assert lines[21:] == [
        "… 10 lines more; `perdure show --full` has them",
        "edit   b (2 places)  asks for approval (rule ask edit)",
        *("    - one", "    + 1", "    + 2"),
    ]
    assert len(texts(transcript(records, output_lines=99))) == 35
    assert len(texts(transcript(records, output_lines=0))) == 2


def test_settings_are_told_in_words() -> None:
    changed = r.SettingsChanged(model="a:x", fallbacks=("b:y",), thinking="low", rules=("deny write", "default ask"), exclude=())
    assert texts(transcript(log(changed, r.SettingsChanged(instructions="x", approved=())))) == [
        "the model is a:x, then b:y",
        "thinking is low",
        "permissions: deny write, default ask",
        "left out of the images: nothing",
    ]
