"""A log that ends after any of its commits is a conversation that every provider takes, and one that comes to an end.

The driver, the Space and the model are left out: whatever was open is ended as a recovery would, and the program decides as it always does.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from msgspec.structs import replace

from perdure.model.validity import problem
from perdure.program.builtin import BUILTIN
from perdure.program.context import Transcript
from perdure.program.conversation import Conversation
from perdure.program.program import Append, Ask, Calls, Settle, View, Wait
from perdure.program.tools import ToolSet
from perdure.record import codec
from perdure.record import records as r
from perdure.record.parts import Text
from perdure.record.records import Draft, Stored
from perdure.state.state import State, fold, fold_all
from tests.stage import bash, call, stage, turn

TURNS = (
    turn("Looking.", call("read", path="a"), call("list"), call("search", pattern="x")),
    turn("Changing.", call("write", path="a", content="x\n"), bash("exit 3"), call("nonsense")),
    turn("", call("task", prompt="look at it"), call("read", path="a")),
    "First is done.",
    turn("Again.", bash("echo more >> a")),
    "Second is done.",
)
TASKS = {"^look": [turn("", bash("cat a")), "It holds x."]}
NOW = 4e9


async def whole_log(tmp_path: Path) -> list[Stored]:
    async with stage(tmp_path, *TURNS, tasks=TASKS) as s:
        await s.run("do the first")
        await s.session.submit("a note", mode="note")
        await s.run("do the second")
        return await s.records()


def carried_on(state: State) -> tuple[State, list[str]]:
    """Until nothing is to be done; what was wrong with the requests on the way."""
    program, tools = Conversation(ToolSet(BUILTIN).effect), ToolSet(BUILTIN)
    wrong: list[str] = []
    for _ in range(200):
        match program.next(View(state, None), NOW):
            case Append(drafts) | Settle(drafts):
                state = with_drafts(state, *drafts)
            case Calls(calls=ids):
                state = with_drafts(state, *(cut_off(state, id) for id in ids))
            case Ask(thread=name):
                wrong += asked(state, name, tools)
                turn = state.threads[name].turn
                assert turn is not None
                state = with_drafts(state, Draft(r.ModelResponded(turn.n, turn.attempts, (Text("Going on."),)), name))
            case Wait(reason=""):
                return state, wrong
            case Wait() as wait:
                raise AssertionError(f"waits for {wait.reason}")
    raise AssertionError("it does not come to an end")


def with_drafts(state: State, *drafts: Draft) -> State:
    for draft in drafts:
        state = fold(state, codec.stored(draft, seq=state.seq + 1, at=NOW, epoch=9, commit="c"))
    return state


def cut_off(state: State, id: str) -> Draft:
    call = state.calls[id]
    return Draft(r.CallFinished(id, "interrupted", r.Result("This call was cut off.")), call.thread, call.seq)


def asked(state: State, name: str, tools: ToolSet) -> list[str]:
    transcript = Transcript()
    transcript.read(state.threads[name])
    context = transcript.context(state.threads[name], system="", tools=tools.specs, blobs={}, options={})
    return [wrong] if (wrong := problem(context)) else []


def ends(records: list[Stored]) -> list[int]:
    """How many records there are at the end of each commit, once the session has begun."""
    last = len(records)
    found = [n for n in range(2, last) if records[n - 1].commit != records[n].commit]
    assert len(found) > 20
    return [*found, last]


def test_a_log_cut_after_any_commit_goes_on_with_a_request_that_every_provider_takes(tmp_path: Path) -> None:
    records = asyncio.run(whole_log(tmp_path))
    assert len(records) > 50
    for n in ends(records):
        state, wrong = carried_on(fold_all(records[:n]))
        assert not wrong, f"after record {n} ({records[n - 1].body}): {wrong}"
        assert not state.calls and not state.submissions, f"after record {n} something stays open"
        assert list(state.threads) == ["main"]
        prompt = Draft(r.SubmissionAdmitted(f"late-{n}", (Text("and now?"),)), "main")
        after, wrong = carried_on(with_drafts(state, prompt))
        assert not wrong and after.threads["main"].answer == "Going on."


def test_call_ids_that_a_provider_uses_again_do_not_confuse_anything(tmp_path: Path) -> None:
    records = asyncio.run(whole_log(tmp_path))
    same = [
        replace(stored, body=replace(stored.body, provider_id=f"call_{stored.body.index}"))
        if isinstance(stored.body, r.CallProposed)
        else replace(stored, body=replace(stored.body, parts=tuple(map(_renamed, enumerate_calls(stored.body.parts)))))
        if isinstance(stored.body, r.ModelResponded)
        else stored
        for stored in records
    ]
    for n in ends(same):
        _, wrong = carried_on(fold_all(same[:n]))
        assert not wrong, f"after record {n}: {wrong}"


def enumerate_calls(parts: tuple[object, ...]) -> list[tuple[int, object]]:
    number, found = 0, []
    for part in parts:
        found.append((number, part))
        number += type(part).__name__ == "ToolCall"
    return found


def _renamed(numbered: tuple[int, object]) -> object:
    number, part = numbered
    return replace(part, id=f"call_{number}") if type(part).__name__ == "ToolCall" else part  # type: ignore[type-var]
