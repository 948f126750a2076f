"""Whether a run is consistent: what was promised was kept, whatever was done to it. Pure over the evidence; each finding is a sentence.

The files are judged by the plan: each call's outcome says how much of its effects has to be there (`ok`: all; `interrupted` or never started: nothing; cut
off with its files left as they were: a beginning), each person's deed is in place, or, where it fell into the window of a call that was undone, in a salvage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from perdure.chaos import people
from perdure.chaos.account import SLACK_NS, Account
from perdure.chaos.effects import after, fits
from perdure.chaos.evidence import Evidence, own
from perdure.chaos.files import Files, below, differences
from perdure.chaos.people import BESIDE, Done
from perdure.chaos.plan import CHAIN, LOOSE, NOTES, SHARED, Call, given
from perdure.record import records as r
from perdure.record.parts import ToolCall

STAMP_NS = 2_000_000_000


def judge(evidence: Evidence) -> list[str]:
    """What is inconsistent; empty if nothing is."""
    if evidence.problems:
        return list(evidence.problems)
    run = Account(evidence)
    checks = (
        _log,
        _submissions,
        _calls,
        _order,
        _counters,
        _workspace,
        _files,
        _tokens,
        _changes,
        _people,
        _windows_end,
        _salvages,
    )
    return [finding for check in checks for finding in check(run)]


# ---- the log -----------------------------------------------------------------------------------------------------------------


def _log(run: Account) -> Iterator[str]:
    records = run.evidence.records
    if [stored.seq for stored in records] != list(range(1, len(records) + 1)):
        yield "the log has gaps or repeats a sequence number"
    epoch = 0
    for stored in records:
        if 0 < stored.epoch < epoch:
            yield f"record {stored.seq} ({type(stored.body).__name__}) is of epoch {stored.epoch}, after one of epoch {epoch}"
        epoch = max(epoch, stored.epoch)


def _submissions(run: Account) -> Iterator[str]:
    admitted = [body.submission for body in run.evidence.bodies(r.SubmissionAdmitted)]
    settled = [body.submission for body in run.evidence.bodies(r.SubmissionSettled)]
    for id in run.evidence.happened.acknowledged:
        if id not in admitted:
            yield f"submission {id} was acknowledged and is lost"
    for id in dict.fromkeys((*admitted, *settled)):
        if (admitted.count(id), settled.count(id)) != (1, 1):
            yield f"submission {id} was admitted {admitted.count(id)} times and settled {settled.count(id)} times"
    for body in run.evidence.bodies(r.SubmissionSettled):
        if body.outcome == "failed" and not _allowed_to_fail(body.reason):
            yield f"submission {body.submission} failed: {body.reason}"
        if body.outcome == "aborted" and not run.evidence.bodies(r.AbortRequested):
            yield f"submission {body.submission} was aborted, and nobody had asked for it: {body.reason}"


def _allowed_to_fail(reason: str) -> bool:
    return "took its Space down twice" in reason or "crashed without progress" in reason


def _calls(run: Account) -> Iterator[str]:
    finished = [body.call for body in run.evidence.bodies(r.CallFinished)]
    proposed = [body.call for body in run.evidence.bodies(r.CallProposed)]
    for call in dict.fromkeys((*proposed, *finished)):
        if (proposed.count(call), finished.count(call)) != (1, 1):
            yield f"call {call} was proposed {proposed.count(call)} times and finished {finished.count(call)} times"
    seen: set[str] = set()
    for body in run.evidence.bodies(r.CallStarted, r.CallFinished):
        if isinstance(body, r.CallFinished):
            seen.add(body.call)
        elif body.call in seen:
            yield f"call {body.call} was started after it had finished"
    keys = [body.key for body in run.evidence.bodies(r.CallStarted)]
    if len(keys) != len(set(keys)):
        yield "a key was used for two attempts"
    for call in run.plan.calls:
        outcome = run.outcome(call)
        if outcome == "error" and not _may_fail(run, call):
            id = run.ids[call.index]
            yield f"call {id} ({call.tool}) failed: {run.finished[id].result.text[-200:]!r}"


def _may_fail(run: Account, call: Call) -> bool:
    """A command that was killed, a git that met another's lock, an edit of a file that an uncertain call left in another state."""
    if call.tool in ("bash", "search"):
        return run.evidence.happened.calls_killed > 0 or call.git
    earlier = [other for other in run.plan.calls if other.index < call.index and other.tool == call.tool]
    return any(run.extent(other) == "part" or run.outcome(other) == "error" for other in earlier)


def _order(run: Account) -> Iterator[str]:
    """What the model asked for is what its script says, in that order, and each answer's calls have a result before the next is asked for."""
    calls: dict[str, Call] = {id: run.plan.calls[index] for index, id in run.ids.items()}
    open_calls: set[str] = set()
    for stored in run.evidence.records:
        match stored.body:
            case r.ModelResponded(turn=turn, parts=parts):
                asked = [part for part in parts if isinstance(part, ToolCall)]
                for n, part in enumerate(asked):
                    id = f"main.{turn}.{n}"
                    open_calls.add(id)
                    if id not in calls or (part.tool, part.args) != (calls[id].tool, calls[id].args):
                        yield f"call {id} is not the one of the script"
            case r.CallFinished(call=call):
                open_calls.discard(call)
            case r.TurnStarted(turn=turn) if open_calls:
                yield f"turn {turn} was started while {', '.join(sorted(open_calls))} had no result"
            case _:
                pass
    if open_calls:
        yield f"{', '.join(sorted(open_calls))} never got a result"


def _counters(run: Account) -> Iterator[str]:
    for call in run.plan.calls:
        if not call.counted:
            continue
        keys = _counted(run, call)
        known = {body.key for body in run.started.get(run.ids.get(call.index, ""), [])}
        if len(keys) > 1:
            yield f"call {call.index} took effect {len(keys)} times: {', '.join(keys)}"
        if strange := set(keys) - known:
            yield f"call {call.index} took effect under {', '.join(sorted(strange))}, which was never started"
        if run.outcome(call) == "ok" and not keys and not call.args.get("background"):
            yield f"call {call.index} ended ok and took no effect"
    extra = run.evidence.effects.keys() - {str(call.index) for call in run.plan.calls if call.counted}
    if extra:
        yield f"there are counters of no call: {', '.join(sorted(extra))}"


def _counted(run: Account, call: Call) -> list[str]:
    inside = run.evidence.files.get(f"{call.folder}/count")
    return [*run.evidence.effects.get(str(call.index), ()), *(inside.data.decode().split() if inside else ())]


def _workspace(run: Account) -> Iterator[str]:
    verified = run.evidence.verified
    if verified.get("equal") is not True:
        yield f"`perdure verify` does not find it equal: {verified.get('differing') or verified}"
    if found := differences(run.evidence.files, run.evidence.image_files):
        yield f"the newest image in the log is not the workspace: {_some(found)}"
    if row := run.evidence.state().calls:
        yield f"calls are open at the end: {', '.join(row)}"


# ---- files -------------------------------------------------------------------------------------------------------------------


def _files(run: Account) -> Iterator[str]:
    """Each call's own folder, and nothing that is nobody's."""
    files = run.evidence.files
    for call in run.plan.calls:
        found = {path: node for path, node in own(below(files, call.folder), given(call)).items() if path not in run.emptied}
        effects = [effect for effect in call.effects if effect.path.startswith(call.folder)]
        extent = run.extent(call)
        if extent == "none" and _beside(run, call):
            # What people touched in there after a call that was undone is kept as it is, and whatever of the call's can't be told from it.
            steps = [given(call), *(after(given(call), effects[:n]) for n in range(1, len(effects) + 1))]
            found = {path: node for path, node in found.items() if all(node != step.get(path) for step in steps[1:])}
            kept = {path: node for path, node in given(call).items() if path in found}
            if stray := differences(found, kept):
                yield f"call {call.index} ended {run.outcome(call)}, and somebody's work beside it: {_some(stray)}"
        elif not fits(given(call), effects, found, extent):
            wanted = after(given(call), effects) if extent == "all" else given(call)
            yield f"call {call.index} ended {run.outcome(call)}, and of its files {extent} has to be there: {_some(differences(found, wanted))}"
        if "bg" in {path.rpartition("/")[2] for path in below(files, call.folder)} and extent == "none":
            yield f"call {call.index} ended {run.outcome(call)}, and what it left running has written on"
    owned = {"shared", SHARED, CHAIN, NOTES, *((people.HOME,) if run.plan.deeds else ())}
    tops = {call.folder for call in run.plan.calls}
    stray = [path for path in files if path not in owned and path.partition("/")[0] not in {*tops, people.HOME}]
    if stray:
        yield f"there are files of nobody: {', '.join(sorted(stray)[:5])}"


def _beside(run: Account, call: Call) -> bool:
    """Whether people worked in this call's own folder, where it was cut off."""
    folders = {done.deed.call for done in run.evidence.happened.done if done.deed.kind in ("beside", "inside")}
    return call.index in folders and run.outcome(call) == "interrupted"


def _tokens(run: Account) -> Iterator[str]:
    """What calls add to files that they share: there once, in their order, as far as they came."""
    shared = run.evidence.files.get(SHARED)
    lines = shared.data.decode().splitlines() if shared else []
    if len(lines) != len(set(lines)):
        yield f"{SHARED} has a line twice: {lines}"
    yield from _marks(run, SHARED, lines, [call for call in run.plan.calls if call.token], contested="shared" in run.contested)
    chain = run.evidence.files.get(CHAIN)
    told = chain.data.decode() if chain else ""
    edits = [call for call in run.plan.calls if call.tool == "edit" and call.args["path"] == CHAIN]
    yield from _marks(run, CHAIN, [call.mark for call in edits if call.mark in told], edits, contested=False)
    yield from _notes(run)


def _marks(run: Account, where: str, lines: Sequence[str], calls: Sequence[Call], *, contested: bool) -> Iterator[str]:
    """`contested`: people wrote there too, so what an undone call wrote may have been kept with theirs."""
    for call in calls:
        extent, there = run.extent(call), lines.count(call.mark)
        least, most = int(extent == "all"), int(extent != "none" or (contested and run.outcome(call) == "interrupted"))
        if not least <= there <= most:
            yield f"{where} holds what call {call.index} adds {there} times; it ended {run.outcome(call)}"
    marks = [call.mark for call in calls]
    found = [line for line in lines if line in marks]
    if found != sorted(found, key=marks.index):
        yield f"{where} is not in the calls' order: {found}"


def _notes(run: Account) -> Iterator[str]:
    node = run.evidence.files.get(NOTES)
    possible = {"notes\n"}
    for call in run.plan.calls:
        if call.tool == "write" and call.args["path"] == NOTES:
            extent, new = run.extent(call), str(call.args["content"])
            possible = {new} if extent == "all" else possible | ({new} if extent == "part" else set())
    if node is None or node.data.decode() not in possible:
        yield f"{NOTES} holds {node.data if node else None!r} and has to hold one of {sorted(possible)}"


def _changes(run: Account) -> Iterator[str]:
    """A finished call's own changes are booked to it, and nothing of it to somebody else."""
    by_id = {id: run.plan.calls[index] for index, id in run.ids.items()}
    for id, call in by_id.items():
        body = run.finished.get(id)
        if body is None or body.outcome != "ok" or call.reads or body.image is None:
            continue
        wanted = set(after(given(call), call.effects).items()) ^ set(given(call).items())
        paths = {path for path, _ in wanted} | ({SHARED} if call.token else set())
        if missing := [path for path in paths if not _covered(path, body.changed)]:
            yield f"call {id} changed {', '.join(sorted(missing)[:5])}, and its record does not say so: {body.changed[:10]}"
    for changed in run.evidence.bodies(r.WorkspaceChanged):
        if changed.found_by == "open":
            continue
        if strange := [path for path in changed.paths if not _somebodys(run, path)]:
            yield f"{', '.join(strange[:5])} changed ({changed.found_by}), and neither people nor anything left running did it"


def _covered(path: str, changed: Sequence[str]) -> bool:
    return any(path == known or path.startswith(known + "/") for known in changed)


def _somebodys(run: Account, path: str) -> bool:
    """Whether people, a background process, or a call whose end nobody saw may have changed it."""
    top, _, rest = path.partition("/")
    if path.startswith(".git") or top == people.HOME or rest.rpartition("/")[2].startswith(BESIDE) or rest in LOOSE:
        return True
    touched = {done.deed.kind for done in run.evidence.happened.done}
    if path in run.emptied:
        return True
    if touched & set(people.THEIRS):
        return True
    uncertain = [call for call in run.plan.calls if run.extent(call) == "part" or run.outcome(call) == "error"]
    return bool(uncertain) and (top in {call.folder for call in uncertain} or path in (SHARED, CHAIN, NOTES))


# ---- people ------------------------------------------------------------------------------------------------------------------


def _people(run: Account) -> Iterator[str]:
    done = {item.deed.number: item for item in run.evidence.happened.done if not item.failed}
    for deed in run.plan.deeds:
        found = below(run.evidence.files, deed.folder)
        item = done.get(deed.number)
        wanted = people.done(deed) if item else people.given(deed)
        if item is not None and _in_a_window(run, item):
            yield from _kept_or_salvaged(run, item, found)
        elif differing := differences(found, wanted):
            yield f"what {'people did' if item else 'nobody touched'} ({deed.kind}, {deed.number}) is not in place: {_some(differing)}"
        elif item is not None and deed.kind in people.THEIRS and not _holds(run.evidence.files, deed.token):
            yield f"what people wrote ({deed.kind}, {deed.number}) is gone from the workspace"


def _in_a_window(run: Account, item: Done) -> bool:
    return any(item.to_ns >= from_ns and item.from_ns <= to_ns for from_ns, to_ns in run.windows)


def _kept_or_salvaged(run: Account, item: Done, found: Files) -> Iterator[str]:
    """It may have been taken for a lost call's work: each path is as before or as after it, and every byte is somewhere."""
    deed = item.deed
    before, now = people.given(deed), people.done(deed)
    odd = [path for path in found.keys() | before.keys() | now.keys() if found.get(path) not in (before.get(path), now.get(path))]
    if odd:
        yield f"what people did in a window ({deed.kind}, {deed.number}) left {', '.join(sorted(odd))} in a state of nobody's"
    if deed.writes and not any(_holds(files, deed.token) for files in (run.evidence.files, *run.evidence.salvaged)):
        yield f"what people wrote ({deed.kind}, {deed.number}) is neither in the workspace nor in a salvage"
    if deed.kind == "move" and not any(_holds(files, f"deep {deed.number}\n") for files in (found, *run.evidence.salvaged)):
        yield f"what people moved ({deed.number}) is neither in the workspace nor in a salvage"


def _holds(files: Files, token: str) -> bool:
    return any(token.encode() in node.data for node in files.values())


def _windows_end(run: Account) -> Iterator[str]:
    """A lost call may have acted until its supervisor died, which is known to two seconds where nobody saw it."""
    begun = {
        (body.call, body.attempt): int(stored.at * 1e9)
        for stored in run.evidence.records
        if isinstance(body := stored.body, r.CallStarted)
    }
    for body in run.evidence.bodies(r.Recovered):
        if body.window is None or body.window.proven:
            continue
        died = [ns for ns in run.evidence.happened.deaths_ns if ns >= begun[body.call, body.attempt]]
        if died and body.window.end_ns > min(died) + STAMP_NS + SLACK_NS:
            late_s = (body.window.end_ns - min(died)) / 1e9
            yield f"the window of {body.call} ends {late_s:.1f} s after the death of its supervisor"


def _salvages(run: Account) -> Iterator[str]:
    if run.evidence.unlisted:
        yield f"`perdure salvage ls` does not list {', '.join(run.evidence.unlisted)}"


def _some(told: Sequence[Any]) -> str:
    return "; ".join(map(str, told[:4])) + (f"; and {len(told) - 4} more" if len(told) > 4 else "")
