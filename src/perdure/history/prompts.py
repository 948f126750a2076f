"""Which records begin a person's prompt. A note, a steer, a summary asked for and the task of a subagent are submissions too, and no prompts."""

from __future__ import annotations

from perdure.record import records as r
from perdure.record.records import Stored


class Prompts:
    """Looks at a session's records in their order."""

    def __init__(self) -> None:
        self._tasks: set[str] = set()

    def asks(self, stored: Stored) -> bool:
        """Whether somebody asks for something here."""
        if not isinstance(stored.body, r.SubmissionAdmitted):
            return False
        if stored.cause is not None:  # a call's, for its subagent
            self._tasks.add(stored.body.submission)
        return stored.cause is None and stored.body.mode in ("follow_up", "reject")

    def begins(self, stored: Stored) -> bool:
        """Whether the work on a prompt begins here; what came before it waited in the queue."""
        self.asks(stored)
        body = stored.body
        return isinstance(body, r.SubmissionPlaced) and body.as_mode == "follow_up" and body.submission not in self._tasks
