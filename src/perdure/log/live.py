"""Text that is still being streamed: stored before it is shown, in a file of its own, `live.db`.

It is not a record, since the response that ends the attempt replaces it; but whoever has read half an answer when everything dies must find
that half again. The file's commits are not synced (`synchronous=NORMAL`): they survive any kill, and a power cut may take the last second.

    deltas → LiveWriter.add → buffer ──(none in the first 100 ms, then one commit each 100 ms)──→ live.db → what may be shown now

Most short answers are over before the first commit is due, and cost nothing here.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import apsw
from msgspec import Struct

from perdure.log import schema
from perdure.log.connection import Pragmas
from perdure.log.database import Database
from perdure.log.sqlite import prepare_home
from perdure.log.store import Mark
from perdure.record.errors import PerdureError

COMMIT_EVERY_S = 0.1


class Piece(Struct, frozen=True):
    """Stored text of one attempt; `n` counts from 1. With the sequence number of the turn's start it is a cursor."""

    n: int
    channel: str
    text: str


class LiveText:
    """All sessions' text of one home. `clock` is monotonic, in seconds."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self._database, self._clock = database, clock

    @classmethod
    async def open(cls, home: Path, *, clock: Callable[[], float] = time.monotonic, vfs: str | None = None) -> LiveText:
        prepare_home(home)
        database = Database(home / "live.db", schema.LIVE, Pragmas(synchronous=1), vfs=vfs)
        try:
            await database.open()
        except BaseException:
            await database.close()
            raise
        return cls(database, clock)

    def writer(self, session: str, thread: str, turn: int, attempt: int) -> LiveWriter:
        """For one attempt at a turn, whose first delta comes soon. There is one at a time: the session's driver has it."""
        return LiveWriter(self._database, self._clock, (session, thread, turn, attempt))

    async def read(self, session: str, thread: str, turn: int, attempt: int, after: int = 0) -> list[Piece]:
        """The attempt's pieces with a greater `n`, in order."""
        return await self._database.read(lambda connection: _read(connection, (session, thread, turn, attempt), after))

    async def wait(self, since: Mark, timeout_s: float) -> Mark:
        """As LogStore.wait, for this file: a mark of its own."""
        return await self._database.wait(since, timeout_s)

    async def forget(self, session: str, thread: str | None = None, *, before_turn: int | None = None) -> None:
        """Drop the text of the session, of one thread of it, or only of turns below a number."""
        await self._database.write(
            lambda connection: connection.execute(
                "DELETE FROM delta WHERE session = :session AND (:thread IS NULL OR thread = :thread)"
                " AND (:turn IS NULL OR turn < :turn)",
                {"session": session, "thread": thread, "turn": before_turn},
            )
        )

    async def close(self) -> None:
        await self._database.close()

    async def __aenter__(self) -> LiveText:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


_Key = tuple[str, str, int, int]


class LiveWriter:
    """The text of one attempt, on its way to people."""

    def __init__(self, database: Database, clock: Callable[[], float], key: _Key) -> None:
        self._database, self._clock, self._key = database, clock, key
        self._buffer: list[tuple[str, list[str]]] = []
        self._due_at = clock() + COMMIT_EVERY_S
        self._n: int | None = None

    @property
    def due_in_s(self) -> float | None:
        """After how long `flush` should be called if no delta comes; None while nothing waits."""
        return max(0.0, self._due_at - self._clock()) if self._buffer else None

    @property
    def begun(self) -> bool:
        """Whether anything of the attempt was stored, and so shown."""
        return self._n is not None

    async def add(self, text: str, channel: str = "text") -> list[Piece]:
        """What became stored by now, and may be shown: often nothing, sometimes what earlier calls brought."""
        if not self._buffer or self._buffer[-1][0] != channel:
            self._buffer.append((channel, []))
        self._buffer[-1][1].append(text)
        return await self.flush() if self._clock() >= self._due_at else []

    async def flush(self) -> list[Piece]:
        """Store what is held back, at once."""
        buffer, self._buffer = self._buffer, []
        if not buffer:
            return []
        texts = [(channel, "".join(parts)) for channel, parts in buffer]
        try:
            pieces = await self._database.write(lambda connection: self._store(connection, texts))
        except PerdureError:
            self._buffer = buffer + self._buffer
            raise
        self._due_at = self._clock() + COMMIT_EVERY_S
        return pieces

    def _store(self, connection: apsw.Connection, texts: list[tuple[str, str]]) -> list[Piece]:
        if self._n is None:
            self._n = connection.execute(f"SELECT coalesce(max(n), 0) FROM delta WHERE {_ATTEMPT}", self._key).get
        first = self._n + 1
        pieces = [Piece(first + i, channel, text) for i, (channel, text) in enumerate(texts)]
        connection.executemany(
            "INSERT INTO delta (session, thread, turn, attempt, n, channel, text) VALUES (?,?,?,?,?,?,?)",
            [(*self._key, piece.n, piece.channel, piece.text) for piece in pieces],
        )
        self._n = pieces[-1].n
        return pieces


_ATTEMPT = "session = ? AND thread = ? AND turn = ? AND attempt = ?"


def _read(connection: apsw.Connection, key: _Key, after: int) -> list[Piece]:
    rows = connection.execute(f"SELECT n, channel, text FROM delta WHERE {_ATTEMPT} AND n > ? ORDER BY n", (*key, after))
    return [Piece(*row) for row in rows]
