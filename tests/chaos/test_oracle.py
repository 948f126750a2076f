"""The oracle finds what it has to find: the evidence of a consistent run, with one thing wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from perdure.chaos.account import Account
from perdure.chaos.effects import Folder
from perdure.chaos.evidence import Evidence
from perdure.chaos.files import Node, folder, text
from perdure.chaos.oracle import judge
from perdure.chaos.plan import SHARED, Call, given
from perdure.record import records as r
from perdure.record.records import Stored
from tests.chaos.conftest import calm_run


def test_a_consistent_run_has_no_finding(undisturbed: Evidence) -> None:
    assert judge(undisturbed) == []
    assert {body.outcome for body in undisturbed.bodies(r.CallFinished)} == {"ok"}


def found(evidence: Evidence, *words: str) -> None:
    findings = judge(evidence)
    assert any(all(word in finding for word in words) for finding in findings), findings


def changed(evidence: Evidence, change: Callable[[Stored], Stored | None]) -> Evidence:
    """Its records, each as `change` makes it, numbered anew."""
    kept = [new for stored in evidence.records if (new := change(stored)) is not None]
    return replace(evidence, records=tuple(replace(stored, seq=n) for n, stored in enumerate(kept, 1)))


def with_outcome(evidence: Evidence, call: str, outcome: r.Outcome) -> Evidence:
    def change(stored: Stored) -> Stored:
        body = stored.body
        match = isinstance(body, r.CallFinished) and body.call == call
        return replace(stored, body=replace(body, outcome=outcome)) if match else stored

    return changed(evidence, change)


def counting(evidence: Evidence) -> Call:
    """The first command, of which files, token and counter tell."""
    return next(call for call in evidence.plan.calls if call.counted and call.token and call.effects)


def id_of(evidence: Evidence, call: Call) -> str:
    turn = next(n for n, calls in enumerate(evidence.plan.turns, 1) if call in calls)
    return f"main.{turn}.{evidence.plan.turns[turn - 1].index(call)}"


# ---- the log -----------------------------------------------------------------------------------------------------------------


def test_a_lost_acknowledged_submission(undisturbed: Evidence) -> None:
    happened = copy.copy(undisturbed.happened)
    happened.acknowledged = [*happened.acknowledged, "steer-1"]
    found(replace(undisturbed, happened=happened), "steer-1", "is lost")


def test_a_submission_that_never_settled(undisturbed: Evidence) -> None:
    def change(stored: Stored) -> Stored | None:
        settles = isinstance(stored.body, r.SubmissionSettled) and stored.body.submission == "go"
        return None if settles else stored

    found(changed(undisturbed, change), "submission go", "settled 0 times")


def test_a_call_that_finished_twice(undisturbed: Evidence) -> None:
    last = next(stored for stored in undisturbed.records if isinstance(stored.body, r.CallFinished))
    again = replace(last, seq=undisturbed.records[-1].seq + 1)
    found(replace(undisturbed, records=(*undisturbed.records, again)), "finished 2 times")


def test_an_epoch_that_goes_down(undisturbed: Evidence) -> None:
    last = undisturbed.records[-1]
    raised = replace(last, seq=last.seq + 1, epoch=7)
    stale = replace(last, seq=last.seq + 2, epoch=6, body=r.NoteAdded("late"))
    found(replace(undisturbed, records=(*undisturbed.records, raised, stale)), "epoch 6", "after one of epoch 7")


def test_a_gap_in_the_log(undisturbed: Evidence) -> None:
    records = (*undisturbed.records[:-1], replace(undisturbed.records[-1], seq=undisturbed.records[-1].seq + 1))
    assert any("gaps" in finding for finding in judge_log(replace(undisturbed, records=records)))


def judge_log(evidence: Evidence) -> list[str]:
    from perdure.chaos import oracle

    return list(oracle._log(Account(evidence)))


def test_a_hanging_run(undisturbed: Evidence) -> None:
    assert judge(replace(undisturbed, problems=("hangs: nobody came",))) == ["hangs: nobody came"]


def test_a_process_that_stays_behind_is_named(tmp_path: Path) -> None:
    found(calm_run(tmp_path, "stray"), "hangs: the end of all processes", "sleep 600")


# ---- effects -----------------------------------------------------------------------------------------------------------------


def test_a_repeated_external_effect(undisturbed: Evidence) -> None:
    call = counting(undisturbed)
    keys = undisturbed.effects[str(call.index)]
    found(replace(undisturbed, effects={**undisturbed.effects, str(call.index): (*keys, *keys)}), "took effect 2 times")


def test_an_effect_of_an_attempt_that_was_never_started(undisturbed: Evidence) -> None:
    call = counting(undisturbed)
    found(replace(undisturbed, effects={**undisturbed.effects, str(call.index): ("log:main.9.0:1",)}), "never started")


def test_an_ok_call_without_its_effect(undisturbed: Evidence) -> None:
    call = counting(undisturbed)
    effects = {name: keys for name, keys in undisturbed.effects.items() if name != str(call.index)}
    found(replace(undisturbed, effects=effects), "took no effect")


def test_an_interrupted_call_whose_files_are_still_there(undisturbed: Evidence) -> None:
    call = counting(undisturbed)
    evidence = with_outcome(undisturbed, id_of(undisturbed, call), "interrupted")
    found(evidence, f"call {call.index} ended interrupted", "none has to be there")
    found(evidence, SHARED, f"call {call.index} adds 1 times")


def test_a_folder_that_a_forgotten_undo_had_emptied(undisturbed: Evidence) -> None:
    """It is let pass only where the state folder was deleted, and only if there is nothing in it."""
    call = next(call for call in undisturbed.plan.calls if any(isinstance(effect, Folder) for effect in call.effects))
    made = next(effect.path for effect in call.effects if isinstance(effect, Folder))
    files = {path: node for path, node in undisturbed.files.items() if not path.startswith(f"{call.folder}/")}
    files |= {path: node for path, node in given(call).items() if path != call.folder}
    evidence = with_outcome(undisturbed, id_of(undisturbed, call), "interrupted")
    dropped = copy.copy(evidence.happened)
    dropped.dropped = True

    def of_folder(evidence: Evidence) -> list[str]:
        return [finding for finding in judge(evidence) if f"call {call.index} ended interrupted, and of its files" in finding]

    left = replace(evidence, files={**files, made: folder()})
    assert of_folder(left) and not of_folder(replace(left, happened=dropped))
    assert of_folder(replace(left, files={**left.files, f"{made}/1": text("1")}, happened=dropped))


def test_an_ok_call_whose_files_are_not_there(undisturbed: Evidence) -> None:
    call = counting(undisturbed)
    made = next(effect.path for effect in call.effects if effect.path in undisturbed.files)
    files = {path: node for path, node in undisturbed.files.items() if path != made}
    found(replace(undisturbed, files=files, image_files=files), f"call {call.index} ended ok")


def test_a_token_that_is_there_twice(undisturbed: Evidence) -> None:
    log = undisturbed.files[SHARED]
    files = {**undisturbed.files, SHARED: replace(log, data=log.data + counting(undisturbed).mark.encode() + b"\n")}
    found(replace(undisturbed, files=files, image_files=files), "has a line twice")


def test_a_file_of_nobody(undisturbed: Evidence) -> None:
    files = {**undisturbed.files, ".perdure-half": text("half")}
    found(replace(undisturbed, files=files, image_files=files), "files of nobody", ".perdure-half")


# ---- the workspace -----------------------------------------------------------------------------------------------------------


def test_an_image_that_is_not_the_workspace(undisturbed: Evidence) -> None:
    image_files = {**undisturbed.image_files, SHARED: Node("file", b"other\n", 0o644)}
    found(replace(undisturbed, image_files=image_files), "the newest image in the log is not the workspace", SHARED)


def test_what_verify_does_not_find_equal(undisturbed: Evidence) -> None:
    found(replace(undisturbed, verified={"equal": False, "differing": ["x"]}), "does not find it equal", "x")


def test_a_change_that_nobody_made(undisturbed: Evidence) -> None:
    newest = undisturbed.state().workspace.image
    assert newest is not None
    path = counting(undisturbed).effects[0].path
    body = r.WorkspaceChanged(newest, (path,), 1, "before_call")
    last = undisturbed.records[-1]
    found(
        replace(undisturbed, records=(*undisturbed.records, replace(last, seq=last.seq + 1, body=body))), path, "neither people"
    )


# ---- people ------------------------------------------------------------------------------------------------------------------


def test_a_persons_bytes_that_are_gone(undisturbed: Evidence) -> None:
    path = "people/0/list.txt"
    files = {**undisturbed.files, path: text("bread\n")}
    found(replace(undisturbed, files=files, image_files=files), "what people did", "edit, 0", "not in place")


def test_a_persons_deletion_that_was_taken_back(undisturbed: Evidence) -> None:
    files = {**undisturbed.files, "people/1/list.txt": text("bread\n")}
    found(replace(undisturbed, files=files, image_files=files), "delete, 1", "not in place")


def undone(evidence: Evidence) -> Evidence:
    """A call was undone just when people were at work, and their edit was taken back with it."""
    call = id_of(evidence, counting(evidence))
    started = next(s for s in evidence.records if isinstance(s.body, r.CallStarted) and s.body.call == call)
    edit = evidence.happened.done[0]
    body = r.Recovered("undo_interrupt", "lost", call=call, attempt=1, window=r.Window(edit.from_ns, edit.to_ns + 10**9))
    records = list(evidence.records)
    records[started.seq - 1] = replace(started, at=edit.from_ns / 1e9)
    last = records[-1]
    files = {**evidence.files, "people/0/list.txt": text("bread\n")}
    return replace(evidence, records=(*records, replace(last, seq=last.seq + 1, body=body)), files=files, image_files=files)


def test_a_persons_bytes_in_a_window_have_to_be_salvaged(undisturbed: Evidence) -> None:
    evidence = undone(undisturbed)
    found(evidence, "edit, 0", "neither in the workspace nor in a salvage")
    salvaged = replace(evidence, salvaged=({"people/0/list.txt": text("bread\n<person 0>\n")},))
    assert not any("edit, 0" in finding for finding in judge(salvaged))


def test_a_window_that_ends_long_after_the_death(undisturbed: Evidence) -> None:
    evidence = undone(undisturbed)
    last = evidence.records[-1]
    assert isinstance(last.body, r.Recovered) and last.body.window is not None
    window = replace(last.body.window, proven=False, end_ns=last.body.window.end_ns + 3_000_000_000)
    evidence = replace(evidence, records=(*evidence.records[:-1], replace(last, body=replace(last.body, window=window))))
    evidence.happened.deaths_ns[:] = [window.end_ns - 1_900_000_000]
    assert not any("the window of" in finding for finding in judge(evidence))
    evidence.happened.deaths_ns[:] = [window.end_ns - 2_500_000_000]
    found(evidence, "the window of", "ends 2.5 s after")
    evidence.happened.deaths_ns.clear()


def test_a_salvage_that_is_not_listed(undisturbed: Evidence) -> None:
    found(replace(undisturbed, unlisted=("ab12",)), "salvage ls", "ab12")
