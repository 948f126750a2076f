"""A person's word on calls that a session waits with: from any process, at any time, to the question as it stands."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from perdure.drive.deciding import asked_of, pending
from perdure.engine.home import Home
from perdure.log.store import Admission, Receipt
from perdure.record import records as r
from perdure.record.errors import UsageError
from perdure.record.parts import Digest
from perdure.record.records import Draft
from perdure.state.state import State


class Question(Struct, frozen=True):
    """A call that waits for a person: `rule` wants it asked about, `digest` names the tool and the arguments, `text` is what it would do, in words."""

    call: str
    tool: str
    args: dict[str, Any]
    digest: Digest
    rule: str
    text: str
    seq: r.Seq


def questions(state: State) -> list[Question]:
    """Those that nobody has answered, in the order of the calls."""
    found = []
    for call in pending(state):
        assert call.question is not None
        asked = call.question
        found.append(Question(call.id, call.tool, call.args, asked.digest, asked.rule, asked_of(call), call.asked))
    return found


async def answer(
    home: Home,
    session: str,
    call: str | None,
    verdict: Literal["allow", "deny"],
    *,
    always: bool = False,
    by: str = "person",
    reason: str = "",
    digest: Digest | None = None,
) -> tuple[Question, Receipt]:
    """Answer the question about `call` (its id, a unique beginning of it, or None for the only one). The same answer again changes nothing.

    With `digest` only if the question is still that one. UsageError where there is no such question, or another answer was faster.
    """
    state = await home.state(session)
    asked = _meant(state, session, call)
    if digest is not None and digest != asked.digest:
        raise UsageError(
            f"call {asked.call} is not what it was when you were asked: it would now be {asked.text}; look at it and answer again"
        )
    body = r.ApprovalAnswered(asked.call, asked.digest, verdict, always, by, reason)
    thread = state.calls[asked.call].thread
    admission = Admission(f"approval:{asked.call}:{asked.seq}", Draft(body, thread), busy=False)
    try:
        return asked, await home.store.admit(session, admission)
    except UsageError as error:
        raise UsageError(f"call {asked.call} of session {session} was answered by somebody else meanwhile") from error


def _meant(state: State, session: str, name: str | None) -> Question:
    open_ones = questions(state)
    ids = ", ".join(each.call for each in open_ones)
    if name is None:
        if len(open_ones) == 1:
            return open_ones[0]
        said = (
            f"waits with {len(open_ones)} calls: {ids}; say which"
            if open_ones
            else "asks nothing; `perdure ls` shows what sessions wait for"
        )
        raise UsageError(f"session {session} {said}")
    found = [each for each in open_ones if each.call == name] or [each for each in open_ones if each.call.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"'{name}' is the beginning of {len(found)} calls: {', '.join(each.call for each in found)}")
    raise UsageError(f"call {name} of session {session} {_instead(state, name)}{f'; it asks about {ids}' if ids else ''}")


def _instead(state: State, name: str) -> str:
    call = state.calls.get(name)
    if call is None:
        return "is not open: it has ended, or there never was one"
    if call.answer is not None:
        return f"was answered already: {call.answer.verdict}"
    if call.verdict is not None:
        return f"is decided already: {call.verdict.verdict}, by {call.verdict.by}"
    return "was not asked about"
