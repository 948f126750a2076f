"""Deciding about calls, in one place: the rules, then the hooks, then a person.

A rule that denies is the last word. A hook may deny, change the arguments, to which the rules are put again, or allow without a person. What is left to
ask becomes a question in the log; the session lets go and waits, as long as it takes. The first answer to the question as it stands is the decision.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from perdure.drive.hooks import Hooking
from perdure.drive.journal import Journal
from perdure.program import permissions
from perdure.program.hooks import Ruling
from perdure.program.permissions import Decision, Rules
from perdure.program.tools import Tool, ToolSet
from perdure.record import records as r
from perdure.record.parts import printable
from perdure.record.records import Draft
from perdure.state.calls import Call
from perdure.state.state import State

Ask = Literal["wait", "deny"]
"""What becomes of a call that a person would have to be asked about."""

SHOWN_CHARS = 4000


class Deciding:
    """`rules` None: those that the log remembers. `directory` is where the session's workspace lies."""

    def __init__(self, hooking: Hooking, tools: ToolSet, rules: Rules | None, directory: str, *, ask: Ask) -> None:
        self._hooking = hooking
        self._tools = tools
        self._given = rules
        self._directory = directory
        self._ask = ask

    async def review(self, journal: Journal) -> None:
        """Note by which rules this driver goes, and look at open questions by them, and by the tools as they are now."""
        if self._given is not None and self._given.told() != journal.view.session.rules:
            journal.decide(Draft(r.SettingsChanged(rules=self._given.told())))
        for call in [call for call in journal.view.calls.values() if call.question and not call.started]:
            await self._decide(journal, call)

    async def calls(self, journal: Journal, ids: Iterable[str]) -> bool:
        """Decide about those that are not decided yet. False where a person is asked: then of the whole turn, so that it is asked once."""
        for id in ids:
            await self._decide(journal, journal.view.calls[id])
        asked = [call for id in ids if (call := journal.view.calls[id]).awaits_approval]
        for call in [c for c in journal.view.calls.values() if asked and (c.thread, c.turn) == (asked[0].thread, asked[0].turn)]:
            await self._decide(journal, call)
        return not asked

    async def _decide(self, journal: Journal, call: Call) -> None:
        tool = self._tools.get(call.tool)
        if call.started or call.verdict or call.problem or (tool is None and call.question is None):
            return
        if tool is None:
            self._decided(journal, call, "deny", "policy", "There is no such tool any more.")
            return
        held = self._rules(journal.view)
        decision = permissions.decide(held, call.tool, call.args, self._directory)
        ruled = Ruling()
        if decision.verdict != "deny" and call.question is None:
            ruled = await self._hooking.before_call(journal, call)
        args = call.args if ruled.args is None else ruled.args
        if ruled.args is not None:
            decision = permissions.decide(held, call.tool, args, self._directory)
        if decision.verdict == "deny":
            self._decided(journal, call, "deny", "policy", _denied(decision), ruled.args)
        elif ruled.decision == "deny":
            self._decided(journal, call, "deny", "hook", ruled.reason, ruled.args)
        elif decision.verdict == "allow" or ruled.decision == "allow":
            by: Literal["hook", "policy"] = "hook" if ruled.decision or ruled.args is not None else "policy"
            self._decided(journal, call, "allow", by, ruled.reason if by == "hook" else decision.rule, ruled.args)
        else:
            self._asked(journal, call, tool, args, decision, changed=ruled.args)

    def _asked(
        self,
        journal: Journal,
        call: Call,
        tool: Tool,
        args: dict[str, Any],
        decision: Decision,
        *,
        changed: dict[str, Any] | None,
    ) -> None:
        digest = permissions.digest(tool, args)
        answer = call.answer
        always = r.Approved(call.tool, permissions.subject(call.tool, args))
        if answer is not None and answer.digest == digest:
            if answer.always and answer.verdict == "allow" and always not in journal.view.session.approved:
                journal.decide(Draft(r.SettingsChanged(approved=(*journal.view.session.approved, always))))
            reason = answer.reason or ("" if answer.verdict == "allow" else "A person was asked about this call and said no.")
            self._decided(journal, call, answer.verdict, "person", reason)
        elif always in journal.view.session.approved:
            self._decided(journal, call, "allow", "person", "allowed for good before", changed)
        elif self._ask == "deny":
            reason = f"Not run: it needs a person's approval ({decision.rule or 'the default'}), and nobody is asked here."
            self._decided(journal, call, "deny", "policy", reason, changed)
        elif call.question is None or call.question.digest != digest:
            body = r.ApprovalRequested(call.id, digest, decision.rule or "default", changed)
            journal.decide(Draft(body, call.thread, call.seq))

    def _rules(self, state: State) -> Rules:
        return permissions.recalled(state.session.rules) if self._given is None else self._given

    @staticmethod
    def _decided(
        journal: Journal,
        call: Call,
        verdict: Literal["allow", "deny"],
        by: Literal["policy", "hook", "person"],
        reason: str,
        args: dict[str, Any] | None = None,
    ) -> None:
        journal.decide(Draft(r.CallDecided(call.id, verdict, by, args, reason), call.thread, call.seq))


def _denied(decision: Decision) -> str:
    if not decision.rule:
        return "Not run: what no rule allows is denied here."
    return f"Not run: the rule `{decision.rule}` denies it."


def pending(state: State) -> list[Call]:
    """The calls that a person was asked about and has not answered."""
    return [call for call in state.calls.values() if call.awaits_approval]


def asked_of(call: Call) -> str:
    """What a call would do, in words for the one who decides: the whole command."""
    if call.tool == "write":
        text = f"{call.args.get('path', '')} ({len(str(call.args.get('content', ''))):,} characters)"
    else:
        text = permissions.subject(call.tool, call.args)
    text = printable(text)
    return f"{call.tool}: {text if len(text) <= SHOWN_CHARS else text[:SHOWN_CHARS] + ' … (cut; `perdure log` has the whole)'}"


def waiting(state: State) -> str:
    """The questions, in words."""
    return "; ".join(f"call {call.id} wants {asked_of(call)}" for call in pending(state))
