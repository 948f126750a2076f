"""The text of an answer that is being streamed, for those who watch a session: as records come, and the pieces between them."""

from __future__ import annotations

from collections.abc import AsyncIterator

from perdure.drive.events import TextShown
from perdure.engine.home import Home
from perdure.record import records as r
from perdure.record.records import Stored


class LiveCursor:
    """Follows the text of the turn that is being answered."""

    def __init__(self, home: Home, session: str) -> None:
        self._home = home
        self._session = session
        self._turn: tuple[str, int, int] | None = None
        self._n = 0

    @property
    def streaming(self) -> bool:
        return self._turn is not None

    def seen(self, stored: Stored) -> None:
        thread = stored.thread or "main"
        match stored.body:
            case r.TurnStarted(turn=turn):
                self._turn, self._n = (thread, turn, 1), 0
            case r.ModelFailed(turn=turn, attempt=attempt):
                self._turn, self._n = (thread, turn, attempt + 1), 0
            case r.Recovered(turn=int() as turn, attempt=attempt):
                self._turn, self._n = (thread, turn, attempt), 0
            case r.ModelResponded() | r.Compacted() | r.SubmissionSettled():
                self._turn = None
            case _:
                pass

    async def pieces(self) -> AsyncIterator[TextShown]:
        if self._turn is None:
            return
        thread, turn, attempt = self._turn
        for piece in await self._home.live.read(self._session, thread, turn, attempt, self._n):
            self._n = piece.n
            yield TextShown(thread, turn, piece.text, piece.channel)
