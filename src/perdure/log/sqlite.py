"""The log in two SQLite files of one folder, the *home*: `log.db` for records and small chunks, `chunks.db` for larger ones.

    SqliteStore ── Database(log.db)    ── its thread ── sessions, records, small chunks
        └ blobs ── Database(chunks.db) ── its thread ── larger chunks

Any number of processes may have a home open at once. The store belongs to the event loop that opened it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from pathlib import Path
from types import TracebackType

import apsw

from perdure.log import checks, chunks, naming, records, removal, schema, sessions
from perdure.log.chunks import SqliteBlobs
from perdure.log.connection import Pragmas
from perdure.log.database import BUSY_S, Database
from perdure.log.filesystem import refuse_shared
from perdure.log.quarantine import Quarantine
from perdure.log.store import Admission, Binding, CommitId, Committed, Cut, Due, Grant, Header, Mark, Receipt, Rest, SessionRow
from perdure.record.errors import UsageError
from perdure.record.parts import Digest
from perdure.record.records import Draft, Owner, Seq, Stored
from perdure.spaced.durable import sync

RECORDS = Pragmas(incremental_vacuum=True)
BULK = Pragmas(page_bytes=16 * 1024, checkpoint_pages=1024, incremental_vacuum=True, group_writes=1)


class SqliteStore:
    """A LogStore. `await SqliteStore.open(home)`, then `close`; or `async with await SqliteStore.open(home) as store`."""

    def __init__(self, log: Database, bulk: Database, clock: Callable[[], float]) -> None:
        self._log, self._bulk, self._clock = log, bulk, clock
        self.blobs = SqliteBlobs(log, bulk, clock)

    @classmethod
    async def open(
        cls, home: Path, *, clock: Callable[[], float] = time.time, vfs: str | None = None, busy_s: float = BUSY_S
    ) -> SqliteStore:
        """The home's store, made if there is none.

        `vfs` names an SQLite VFS registered in this process; after `busy_s` of waiting for a lock its holder is looked for.
        Raises UsageError (a network or FUSE file system, an SQLite that is too old), NewerLogError, CorruptLogError, StoreLockedError,
        StoreFullError.
        """
        prepare_home(home)
        log = Database(home / "log.db", schema.LOG, RECORDS, gate=Quarantine(home / "log.db", vfs), vfs=vfs, busy_s=busy_s)
        bulk = Database(home / "chunks.db", schema.CHUNKS, BULK, vfs=vfs, busy_s=busy_s)
        store = cls(log, bulk, clock)
        try:
            await log.open()
            await bulk.open()
        except BaseException:
            await store.close()
            raise
        return store

    async def create(
        self, header: Header, *, parent: Cut | None = None, rest: Rest = Rest(), binding: Binding | None = None
    ) -> str:
        drafts = records.encode(header.drafts)

        def create(connection: apsw.Connection) -> None:
            sessions.create(connection, header, drafts, parent, rest, self._clock())
            if binding is not None:
                sessions.bind(connection, binding)

        await self._log.write(create)
        return header.session

    async def acquire(
        self, session: str, owner: Owner, *, expected: int, at_least: int = 0, engine_token: int | None = None
    ) -> tuple[Grant, Stored]:
        return await self._log.write(
            lambda connection: sessions.acquire(
                connection, session, owner, expected=expected, at_least=at_least, engine_token=engine_token, at=self._clock()
            )
        )

    async def renew(self, grant: Grant) -> Grant:
        return await self._log.read(lambda connection: sessions.renew(connection, grant))

    async def release(self, grant: Grant, *, inbox_seen: Seq, rest: Rest) -> None:
        await self._log.write(
            lambda connection: sessions.release(connection, grant, inbox_seen=inbox_seen, rest=rest, at=self._clock())
        )

    async def commit(
        self,
        grant: Grant,
        id: CommitId,
        drafts: Sequence[Draft],
        *,
        blobs: Mapping[Digest, bytes] = {},
        names: Set[Digest] = frozenset(),
        inbox_seen: Seq | None = None,
        rest: Rest | None = None,
    ) -> Committed:
        for digest, data in blobs.items():
            checks.small_chunk(digest, data)
        encoded, packed = records.encode(drafts), await self.blobs.pack(blobs)
        affirmed = await self.blobs.affirm(names - blobs.keys())

        def work(connection: apsw.Connection) -> tuple[Committed, bool]:
            at = self._clock()
            committed, new = sessions.commit(connection, grant, id, encoded, inbox_seen=inbox_seen, at=at)
            if not new:
                return committed, False
            chunks.ride(connection, packed, at)
            known = affirmed is not None and affirmed == naming.sweep(connection).n
            naming.touch(connection, blobs if known else names | blobs.keys())
            if rest is not None:
                sessions.set_rest(connection, grant.session, rest)
            return committed, naming.unpin(connection, id)

        committed, pinned = await self._log.write(work)
        if pinned:
            await self.blobs.unpin(id)
        return committed

    async def find(self, session: str, id: CommitId) -> Committed | None:
        return await self._log.read(lambda connection: sessions.find(connection, session, id))

    async def admit(self, session: str, admission: Admission) -> Receipt:
        drafts = records.encode([admission.draft])
        return await self._log.write(lambda connection: sessions.admit(connection, session, admission, drafts, self._clock()))

    async def read(self, session: str, after: Seq = 0) -> AsyncIterator[Stored]:
        def plan(connection: apsw.Connection) -> list[records.Segment]:
            now = sessions.position(connection, session)
            return records.segments(connection, now.row, after, now.last_seq)

        for segment in await self._log.read(plan):
            seq = segment.after
            while seq < segment.last:
                page = await self._page(segment, seq)
                for row in page.rows:
                    seq += 1
                    yield records.decode(row, expected=seq)
                if page.error is not None or not page.rows:
                    raise records.missing(seq + 1, page.error or "it is not there")

    async def _page(self, segment: records.Segment, after: Seq) -> records.Page:
        return await self._log.read(lambda connection: records.page(connection, segment, after))

    async def remove(self, grant: Grant, *, inbox_seen: Seq) -> None:
        await self._log.write(lambda connection: removal.remove(connection, grant, inbox_seen=inbox_seen))

    async def purge(self) -> int:
        gone = 0
        while (went := await self._log.write(removal.purge)) is not None:
            gone += went
        return gone

    async def records_bytes(self, session: str) -> int:
        return await self._log.read(lambda connection: records.own_bytes(connection, sessions.position(connection, session).row))

    async def row(self, session: str) -> SessionRow:
        return await self._log.read(lambda connection: sessions.row(connection, session))

    async def rows(self) -> list[SessionRow]:
        return await self._log.read(sessions.rows)

    async def due(self, now: float) -> list[Due]:
        return await self._log.read(lambda connection: sessions.due(connection, now))

    async def wait(self, since: Mark, timeout_s: float) -> Mark:
        return await self._log.wait(since, timeout_s)

    async def bind(self, binding: Binding) -> None:
        await self._log.write(lambda connection: sessions.bind(connection, binding))

    async def binding(self, session: str) -> Binding | None:
        return await self._log.read(lambda connection: sessions.binding(connection, session))

    async def pragmas(self) -> dict[str, object]:
        """How `log.db` is open, as SQLite itself says: for whoever wants to see it."""
        names = (
            "journal_mode",
            "synchronous",
            "page_size",
            *(("fullfsync", "checkpoint_fullfsync") if sys.platform == "darwin" else ()),
        )
        return await self._log.read(lambda connection: {name: connection.pragma(name) for name in names})

    async def close(self) -> None:
        try:
            await self._bulk.close()
        finally:
            await self._log.close()

    async def __aenter__(self) -> SqliteStore:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()


def prepare_home(home: Path) -> None:
    """The folder, for its user alone, with the lock file whose mode all others take. Raises UsageError."""
    refuse_shared(home)
    try:
        if not home.exists():
            home.mkdir(mode=0o700, parents=True, exist_ok=True)
            sync(home.parent)
        home.chmod(0o700)
        os.close(os.open(home / "home.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise UsageError(f"{home} can't be Perdure's home: {error.strerror}; choose another folder (PERDURE_HOME)") from error
