"""Where a session was: the end of its transcript, for somebody who comes back."""

from __future__ import annotations

from perdure.api import Session
from perdure.cli.telling import Teller
from perdure.history.line import Line
from perdure.history.prompts import Prompts

SHOWN_LINES = 24


async def recap(session: Session, *, lines: int = SHOWN_LINES) -> list[Line]:
    """What was said and done since the last prompt, its newest `lines`, and what is still open."""
    teller, prompts = Teller(), Prompts()
    told: list[Line] = []
    async for stored in session.records():
        if prompts.asks(stored):
            told = []
        told.extend(teller.tell(stored))
    told.extend(teller.open_calls())
    left_out = len(told) - lines
    if left_out <= 0:
        return told
    return [
        told[0],
        Line("session", f"… {left_out - 1:,} lines before; `perdure show {session.id}` has all"),
        *told[left_out + 1 :],
    ]
