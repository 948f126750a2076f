"""The transcript: a session's records as a person reads them.

A call is one line, told when it has finished, since only then is there something to tell; those still open come last. What recovery did stands where
it happened, in words, with its reasons: a reader must never have to guess whether a command ran once or twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import msgspec

from perdure.history.line import Line, Style, duration, listed, plain, shorten
from perdure.record import records as r
from perdure.record.parts import Blob, Part, text_of
from perdure.record.records import Stored

Said = Iterator[tuple[Style, str]]


def transcript(records: Iterable[Stored], *, output_lines: int = 4) -> Iterator[Line]:
    """The lines, as the records come. `output_lines` bounds what is shown of each command's output (its end); 0 shows none."""
    calls: dict[str, r.CallProposed] = {}
    running: dict[str, Stored] = {}
    for record in records:
        body = record.body
        if isinstance(body, r.CallProposed):
            calls[body.call] = body
        elif isinstance(body, r.CallStarted):
            running[body.call] = record
        elif isinstance(body, r.CallFinished):
            running.pop(body.call, None)
        for style, text in _said(body, calls, output_lines):
            yield _line(record, style, text)
    for call, record in running.items():
        yield _line(record, "call", f"{described(calls.get(call))}  … not finished")


def described(call: r.CallProposed | None, *, limit: int = 100) -> str:
    """A call in one line: its tool, and what of its arguments tells most."""
    return f"{shorten(call.tool, 40):<6} {_arguments(call.tool, call.args, limit)}" if call else "a call"


def ended(body: r.CallFinished) -> str:
    """How a call ended: `ok`, `exit 1`, `timeout`, `interrupted` …, and what it took, where somebody saw that."""
    words: list[str] = [body.outcome] if body.exit_code in (None, 0) or body.outcome != "ok" else []
    if body.cause == "lost" and words:
        return words[0]
    if body.outcome == "aborted":
        return f"aborted · {duration(body.duration_s)}"
    if body.exit_code:
        words.append(f"exit {body.exit_code}")
    if body.cause != "self":
        words.append(body.cause)
    return " · ".join([*words, duration(body.duration_s)])


def recovered(body: r.Recovered) -> str:
    """What recovery decided about one call or turn."""
    said = _DECISIONS[body.decision]
    if body.taken_back or body.taken_back_count:
        said += f"; taken back: {listed(body.taken_back, body.taken_back_count)}"
    if body.kept:
        said += f"; kept, since somebody else changed it: {listed(body.kept)}"
    if body.salvage:
        said += f"; salvage {body.salvage[:12]}"
    why = "; ".join(filter(None, ("" if body.evidence in _EVIDENT else body.evidence, body.detail)))
    return f"{said} ({shorten(why, 200)})" if why else said


_EVIDENT = {"ended", "running", "never_began", "lost"}
"""Evidence that the decision's words already tell."""


_DECISIONS: Mapping[str, str] = {
    "adopt": "had ended; its recorded outcome was taken over",
    "attach": "still runs, and is followed on",
    "start": "had not begun; it starts now",
    "undo_start": "was cut off and undone; it starts again",
    "undo_interrupt": "was cut off and undone; it is not run again, and the model is told",
    "unknown": "was cut off and is not undone; its outcome is unknown, and the model is told",
    "abort": "had been aborted; it is stopped",
    "retry": "was cut off; the model is asked again",
    "continue": "was cut off; the model goes on from the text that was kept",
}


# ---- one noun at a time ----------------------------------------------------------------------------------------------------


def _said(body: r.Body, calls: Mapping[str, r.CallProposed], output_lines: int) -> Said:
    match body:
        case r.CallFinished():
            yield from _finished(body, calls.get(body.call), output_lines)
        case r.CallDecided(verdict="deny"):
            yield "failure", f"{described(calls.get(body.call))}  denied by {body.by}: {shorten(body.reason, 200)}"
        case r.ApprovalRequested():
            yield from _asking(body, calls.get(body.call), output_lines)
        case r.ApprovalAnswered(verdict=verdict, always=always, by=by, reason=reason):
            word = "allowed" if verdict == "allow" else "denied"
            why = f": {shorten(reason, 200)}" if reason else ""
            yield "person", f"{described(calls.get(body.call))}  {word}{' for good' if always else ''} by {shorten(by, 60)}{why}"
        case r.Recovered(evidence=r.CHANGED_BEFORE):
            pass  # what was changed is told by itself
        case r.Recovered():
            for line in _lines(body.partial):
                yield "model", line
            subject = described(calls.get(body.call)) if body.call else f"turn {body.turn}"
            yield "recovery", f"{subject}  {recovered(body)}"
        case _ if (teller := _TELLERS.get(type(body))) is not None:
            yield from teller(body)


def _asking(body: r.ApprovalRequested, call: r.CallProposed | None, output_lines: int) -> Said:
    """Nobody can decide about a change of a file without seeing it."""
    if call and body.args is not None:
        call = msgspec.structs.replace(call, args=body.args)
    yield "session", f"{described(call)}  asks for approval (rule {shorten(body.rule, 80)})"
    lines = [] if call is None or not output_lines else list(_proposed(call))
    shown = max(output_lines, _PROPOSED_LINES)
    yield from lines[:shown]
    if len(lines) > shown:
        yield "output", f"… {len(lines) - shown:,} lines more; `perdure show --full` has them"


_PROPOSED_LINES = 20


def _proposed(call: r.CallProposed) -> Said:
    """What a file tool would take away and put there."""
    changes: list[tuple[Any, Any]] = []
    if call.tool == "write":
        changes = [("", call.args.get("content", ""))]
    elif call.tool == "edit" and isinstance(edits := call.args.get("edits"), list):
        changes = [(edit.get("old_text", ""), edit.get("new_text", "")) for edit in edits if isinstance(edit, dict)]
    for old, new in changes:
        for line in str(old).splitlines():
            yield "minus", f"    - {_cut(line)}"
        for line in str(new).splitlines():
            yield "plus", f"    + {_cut(line)}"


def _finished(body: r.CallFinished, call: r.CallProposed | None, output_lines: int) -> Said:
    well = body.outcome == "ok" and not body.exit_code
    yield "call" if well else "failure", f"{described(call)}  {ended(body)}"
    if output_lines and (not well or (call and call.tool not in _SILENT)):
        lines = body.result.text.rstrip().splitlines()
        if len(lines) > output_lines:
            yield "output", f"… {len(lines) - output_lines:,} lines before"
        for line in lines[-output_lines:]:
            yield "output", _cut(line)
    if body.changed or body.changed_count:
        yield "output", f"changed {listed(body.changed, body.changed_count)}"
    for process in body.left:
        ports = f", listening on {', '.join(map(str, process.ports))}" if process.ports else ""
        yield "output", f"left running: {shorten(process.command, 80)} (process {process.pid}{ports})"
    if body.opaque_changed:
        yield "failure", f"changed beyond undoing: {listed(body.opaque_changed)}"


_SILENT = {"read", "write", "edit", "list", "search"}
"""Tools whose arguments say what a person wants to know."""


def _created(body: r.SessionCreated) -> Said:
    then = "".join(f", then {shorten(name, 80)}" for name in body.fallbacks)
    yield (
        "session",
        f"a session of {body.agent} with {shorten(body.model, 80)}{then}, space {body.space}{', in a copy' if body.copy else ''}",
    )


def _forked(body: r.SessionForked) -> Said:
    yield "session", f"forked from {body.parent} at record {body.at_seq}"


def _thread(body: r.ThreadOpened) -> Said:
    if body.name != "main":
        yield "session", f"thread {shorten(body.name, 60)} opened"


def _epoch(body: r.EpochRaised) -> Said:
    yield "session", f"driven by process {body.owner.pid} of {shorten(body.owner.host, 60)}"


def _released(body: r.EpochReleased) -> Said:
    if body.reason:
        yield "session", f"waits: {shorten(body.reason, 200)}"


def _settings(body: r.SettingsChanged) -> Said:
    """What a person allowed for good was told with the answer, and instructions and skills are the model's to read."""
    if body.model:
        yield (
            "session",
            f"the model is {shorten(body.model, 80)}{''.join(f', then {shorten(name, 80)}' for name in body.fallbacks)}",
        )
    if body.thinking:
        yield "session", f"thinking is {body.thinking}"
    if body.rules is not None:
        yield "session", f"permissions: {listed(body.rules) if body.rules else 'none'}"
    if body.exclude is not None:
        yield "session", f"left out of the images: {listed(body.exclude) if body.exclude else 'nothing'}"
    if body.doubted:
        yield "session", f"said to read only, and changed files: {listed(body.doubted)}"
    for budget, whose in ((body.turn_budget, "a prompt"), (body.session_budget, "the session")):
        if budget is not None:
            yield "session", f"the budget of {whose} is {_json(budget)}"


def _note(body: r.NoteAdded) -> Said:
    yield "session", f"note by {body.by}: {shorten(body.text, 400)}"


def _instructed(body: r.Instructed) -> Said:
    yield "session", f"the model is told what {shorten(body.path, 200)} says"


def _redacted(body: r.Redacted) -> Said:
    yield "session", f"{len(body.seqs)} records redacted by {body.by}"


def _admitted(body: r.SubmissionAdmitted) -> Said:
    for line in _block(body.parts):
        yield "person", line


def _settled(body: r.SubmissionSettled) -> Said:
    style: Style = "session" if body.outcome in ("answered", "noted") else "failure"
    reason = f": {shorten(body.reason, 300)}" if body.reason else ""
    yield style, f"{body.outcome}{reason}"


def _abort(body: r.AbortRequested) -> Said:
    yield (
        "person",
        f"abort{' of ' + body.submission if body.submission else ''}{': ' + shorten(body.reason, 200) if body.reason else ''}",
    )


def _exhausted(body: r.BudgetExhausted) -> Said:
    yield "failure", f"the {body.scope}'s budget of {body.limit} is used up at {body.value:g}"


def _answer(body: r.RecoveryAnswered) -> Said:
    yield "person", f"{body.answer} ({body.wait})"


def _responded(body: r.ModelResponded) -> Said:
    for line in _block(body.parts):
        yield "model", line
    if body.stop not in ("stop", "tool_calls"):
        yield "failure", f"the answer ended early: {body.stop}"


def _failed(body: r.ModelFailed) -> Said:
    for line in _lines(body.partial):
        yield "model", line
    status = f" {body.status}" if body.status else ""
    yield "failure", f"the model's request failed ({body.failure}{status}, attempt {body.attempt}): {shorten(body.message, 300)}"
    if body.next_model:
        yield "recovery", f"from here on {shorten(body.next_model, 80)} is asked instead of {shorten(body.model, 80)}"


def _compacted(body: r.Compacted) -> Said:
    yield "session", f"what came before record {body.cut} is summed up from here on: {shorten(body.summary, 300)}"


def changed_by(body: r.WorkspaceChanged) -> str:
    """In words."""
    return f"by {', '.join(body.perhaps_by[:10])} or by others" if body.perhaps_by else "by others"


def _changed(body: r.WorkspaceChanged) -> Said:
    if body.found_by != "open":
        yield "workspace", f"changed {changed_by(body)}: {listed(body.paths, body.path_count)}"


def _opened(body: r.SpaceOpened) -> Said:
    traits = f"{body.custody}{', hermetic' if body.hermetic else ''}"
    yield "session", f"supervisor {body.instance} started (process {body.init.pid}, custody {traits})"


def _lost(body: r.SpaceLost) -> Said:
    yield "recovery", f"supervisor {body.instance} is gone: {shorten(body.reason, 200)}"


def _restored(body: r.SpaceRestored) -> Said:
    killed = f", {body.processes_killed} processes ended" if body.processes_killed else ""
    yield "recovery", f"files put back: {listed(body.taken_back) if body.taken_back else 'nothing to do'}{killed}"


def _applied(body: r.Applied) -> Said:
    left = f"; left as they are, in conflict: {listed(body.conflicts)}" if body.conflicts else ""
    yield "workspace", f"brought home: {listed(body.paths, body.path_count) if body.path_count else 'nothing'}{left}"


_TELLERS: Mapping[type, Callable[[Any], Said]] = {
    r.SessionCreated: _created,
    r.SessionForked: _forked,
    r.ThreadOpened: _thread,
    r.EpochRaised: _epoch,
    r.EpochReleased: _released,
    r.SettingsChanged: _settings,
    r.NoteAdded: _note,
    r.Instructed: _instructed,
    r.Redacted: _redacted,
    r.SubmissionAdmitted: _admitted,
    r.SubmissionSettled: _settled,
    r.AbortRequested: _abort,
    r.BudgetExhausted: _exhausted,
    r.RecoveryAnswered: _answer,
    r.ModelResponded: _responded,
    r.ModelFailed: _failed,
    r.Compacted: _compacted,
    r.WorkspaceChanged: _changed,
    r.SpaceOpened: _opened,
    r.SpaceLost: _lost,
    r.SpaceRestored: _restored,
    r.Applied: _applied,
}
"""The rest says nothing here: placement, proposals and starts show in what follows them, `synced` is nobody's business."""


# ---- words -----------------------------------------------------------------------------------------------------------------


def _line(record: Stored, style: Style, text: str) -> Line:
    where = f"[{shorten(record.thread, 40)}] " if record.thread not in (None, "main") else ""
    return Line(style, where + text, record.at, record.seq)


def _block(parts: tuple[Part, ...]) -> Iterator[str]:
    """Text parts line by line; a blob by its name."""
    yield from _lines(text_of(parts))
    for part in parts:
        if isinstance(part, Blob):
            yield f"[{shorten(part.name or part.media_type, 80)}, {part.size_bytes:,} bytes]"


def _lines(text: str) -> list[str]:
    return plain(text).strip("\n").splitlines()


def _arguments(tool: str, args: Mapping[str, Any], limit: int) -> str:
    path = str(args.get("path", "."))
    match tool:
        case "bash":
            said = " ⏎ ".join(str(args.get("command", "")).strip().splitlines())
        case "read":
            said = f"{path} from line {args['offset']}" if args.get("offset", 1) != 1 else path
        case "write":
            said = f"{path} ({len(str(args.get('content', ''))):,} characters)"
        case "edit":
            edits = args.get("edits") or ()
            said = f"{path} ({len(edits)} {'place' if len(edits) == 1 else 'places'})"
        case "list":
            said = path
        case "search":
            said = f"/{args.get('pattern', '')}/ in {args.get('glob') or path}"
        case _:
            said = _json(args)
    return shorten(said, limit)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode("utf-8", "replace")


def _cut(line: str, limit: int = 300) -> str:
    line = plain(line)
    return line if len(line) <= limit else line[: limit - 1] + "…"
