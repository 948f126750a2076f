"""Records one at a time: as lines for a person, and as one JSON object each for a program.

A record of a call names the call only; what that is was said when it was proposed. So both tellers remember the proposals.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec

from perdure.api import Session
from perdure.history.line import Line
from perdure.history.paint import Out
from perdure.history.transcript import transcript
from perdure.record import records as r
from perdure.record.records import Seq, Stored

FOLLOW_S = 3600.0


class Teller:
    """The transcript's lines, as the records come."""

    def __init__(self, *, output_lines: int = 4) -> None:
        self._proposed: dict[str, Stored] = {}
        self._started: dict[str, Stored] = {}
        self._output_lines = output_lines

    def call(self, call: str) -> r.CallProposed | None:
        stored = self._proposed.get(call)
        return stored.body if stored and isinstance(stored.body, r.CallProposed) else None

    def tell(self, stored: Stored) -> Iterator[Line]:
        match stored.body:
            case r.CallProposed(call=call):
                self._proposed[call] = stored
            case r.CallStarted(call=call):
                self._started[call] = stored  # told when it has finished
            case body:
                if isinstance(body, r.CallFinished):
                    self._started.pop(body.call, None)
                proposal = self._proposed.get(getattr(body, "call", None) or "")
                yield from transcript((proposal, stored) if proposal else (stored,), output_lines=self._output_lines)

    def open_calls(self) -> Iterator[Line]:
        """Those that have not finished yet."""
        for call, started in self._started.items():
            yield from transcript((self._proposed[call], started))


class Records:
    """A session's records as JSON lines on `out`, from behind `after` on."""

    def __init__(self, session: Session, out: Out, after: Seq = 0) -> None:
        self._session, self._out, self._after, self._read = session, out, after, 0
        self._teller = JsonTeller()

    async def catch_up(self) -> None:
        """Those that are not written yet. Older ones are read too: they say which tool a call is."""
        async for stored in self._session.records(self._read):
            self._read = stored.seq
            told = self._teller.tell(stored)
            if stored.seq > self._after:
                self._out.write(json_line(told) + "\n")
        self._out.flush()

    async def follow(self) -> None:
        """For ever."""
        mark = await self._session.home.store.wait(-1, 0.0)
        while True:
            await self.catch_up()
            mark = await self._session.home.store.wait(mark, FOLLOW_S)


class JsonTeller:
    """Flat objects: `seq`, `kind`, `at`, `epoch`, `commit`, `thread`, `caused_by` (a seq), then the body's own fields, and of a call its tool."""

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}

    def tell(self, stored: Stored) -> dict[str, Any]:
        body = stored.body
        if isinstance(body, r.CallProposed):
            self._tools[body.call] = body.tool
        fields: dict[str, Any] = msgspec.to_builtins(body)
        told: dict[str, Any] = {
            "seq": stored.seq,
            "kind": fields.pop("kind"),
            "at": stored.at,
            "epoch": stored.epoch,
            "commit": stored.commit,
            "thread": stored.thread,
            "caused_by": stored.cause,
        }
        if fields.get("call") in self._tools:
            told |= {"call": fields["call"], "tool": self._tools[fields["call"]]}
        return told | fields


def json_line(value: object) -> str:
    """One line of JSON; text that is not Unicode (a lone surrogate) becomes an escape that any parser takes."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
