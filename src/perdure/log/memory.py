"""The log in memory: for tests, and as the shortest statement of what a store does. Gone with its process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Set

import msgspec

from perdure.log import checks
from perdure.log.store import (
    Admission,
    Binding,
    CommitId,
    Committed,
    Cut,
    Due,
    Grant,
    Header,
    Live,
    Mark,
    Receipt,
    Rest,
    SessionRow,
    SweepNumber,
    Swept,
)
from perdure.record import codec
from perdure.record.errors import BlobGoneError, StoreLockedError
from perdure.record.parts import Digest
from perdure.record.records import Draft, EpochRaised, Owner, Seq, Stored


class _Session:
    """A session's row, and its own records as bytes: what can't be encoded fails here as it does on a disk."""

    def __init__(self, row: SessionRow, parent: _Session | None) -> None:
        self.row = row
        self.parent = parent
        self.cut = row.parent.seq if row.parent else 0
        self.records: list[tuple[Stored, bytes]] = []
        self.commits: dict[CommitId, Committed] = {}
        self.requests: dict[str, tuple[bytes, Receipt]] = {}
        self.binding: Binding | None = None

    def append(self, drafts: Sequence[Draft], *, at: float, epoch: int, commit: str) -> list[Stored]:
        first = self.row.last_seq + 1
        made = [codec.stored(draft, seq=first + i, at=at, epoch=epoch, commit=commit) for i, draft in enumerate(drafts)]
        self.records += [(stored, codec.encode(stored.body)) for stored in made]
        self.change(last_seq=first + len(made) - 1, changed_at=at)
        return made

    def change(self, **fields: object) -> None:
        self.row = msgspec.structs.replace(self.row, **fields)


class MemoryStore:
    """A LogStore."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._sessions: dict[str, _Session] = {}
        self._mark: Mark = 1
        self._changed = asyncio.Event()
        self.blobs = MemoryBlobs(clock)

    async def create(
        self, header: Header, *, parent: Cut | None = None, rest: Rest = Rest(), binding: Binding | None = None
    ) -> str:
        checks.new_session(header.session, taken=header.session in self._sessions)
        if binding is not None:
            self._root_free(binding)
        above = None if parent is None else self._session(parent.session)
        if parent is not None and above is not None:
            checks.prefix(parent, last_seq=above.row.last_seq)
        at, cut = self._clock(), 0 if parent is None else parent.seq
        row = SessionRow(header.session, header.log_id, 0, cut, 0, at, at, rest, None, False, parent)
        session = self._sessions[header.session] = _Session(row, above)
        session.append(header.drafts, at=at, epoch=0, commit="create")
        session.binding = binding
        self._tell()
        return header.session

    async def acquire(
        self, session: str, owner: Owner, *, expected: int, at_least: int = 0, engine_token: int | None = None
    ) -> tuple[Grant, Stored]:
        it = self._session(session)
        checks.expected_epoch(session, expected=expected, epoch=it.row.epoch)
        epoch = max(expected + 1, at_least)
        (raised,) = it.append([Draft(EpochRaised(owner, engine_token))], at=self._clock(), epoch=epoch, commit=f"epoch:{epoch}")
        it.change(epoch=epoch, held_by=owner)
        self._tell()
        return Grant(session, epoch, owner), raised

    async def renew(self, grant: Grant) -> Grant:
        self._fence(grant)
        return grant

    async def release(self, grant: Grant, *, inbox_seen: Seq, rest: Rest) -> None:
        it = self._fence(grant)
        checks.inbox(grant.session, seen=inbox_seen, inbox_seq=it.row.inbox_seq)
        it.change(held_by=None, needs_driver=False, changed_at=self._clock(), rest=rest)
        self._tell()

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
            checks.chunk(digest, data)
        it = self._session(grant.session)
        if id in it.commits:
            return it.commits[id]
        self._fence(grant)
        if inbox_seen is not None:
            checks.inbox(grant.session, seen=inbox_seen, inbox_seq=it.row.inbox_seq)
        for draft in drafts:
            codec.encode(draft.body)
        at, first = self._clock(), it.row.last_seq + 1
        self.blobs.name(names - blobs.keys())
        self.blobs.ride(blobs)
        self.blobs.unpin(id)
        it.append(drafts, at=at, epoch=grant.epoch, commit=id)
        if rest is not None:
            it.change(rest=rest)
        committed = it.commits[id] = Committed(id, first, it.row.last_seq, at, grant.epoch)
        self._tell()
        return committed

    async def find(self, session: str, id: CommitId) -> Committed | None:
        return self._session(session).commits.get(id)

    async def admit(self, session: str, admission: Admission) -> Receipt:
        it = self._session(session)
        digest = checks.payload_digest(admission.draft)
        if (known := it.requests.get(admission.request_id)) is not None:
            checks.same_request(session, admission.request_id, known=known[0], digest=digest)
            return msgspec.structs.replace(known[1], duplicate=True)
        busy = it.row.rest.busy
        if admission.reject_if_busy:
            checks.not_busy(session, busy=busy)
        if admission.busy and not busy and it.binding is not None:
            self._root_free(it.binding)
        at = self._clock()
        (stored,) = it.append([admission.draft], at=at, epoch=0, commit=f"admit:{admission.request_id}")
        it.change(
            inbox_seq=stored.seq,
            needs_driver=it.row.needs_driver or admission.needs_driver,
            rest=msgspec.structs.replace(it.row.rest, busy=busy or admission.busy),
        )
        receipt = Receipt(stored.seq, at)
        it.requests[admission.request_id] = digest, receipt
        self._tell()
        return receipt

    async def read(self, session: str, after: Seq = 0) -> AsyncIterator[Stored]:
        for stored, body in self._prefix(self._session(session)):
            if stored.seq > after:
                yield msgspec.structs.replace(stored, body=codec.decode(body, seq=stored.seq, v=stored.v))

    async def remove(self, grant: Grant, *, inbox_seen: Seq) -> None:
        it = self._fence(grant)
        checks.inbox(grant.session, seen=inbox_seen, inbox_seq=it.row.inbox_seq)
        del self._sessions[grant.session]
        self._tell()

    async def purge(self) -> int:
        return 0  # what no fork begins with is gone with its last reader

    async def records_bytes(self, session: str) -> int:
        return sum(len(body) for _, body in self._session(session).records)

    async def row(self, session: str) -> SessionRow:
        return self._session(session).row

    async def rows(self) -> list[SessionRow]:
        return [it.row for it in self._sessions.values()]

    async def due(self, now: float) -> list[Due]:
        found = []
        for row in await self.rows():
            if row.held_by is not None:
                found.append(Due(row.session, "held", row.epoch, row.held_by))
            elif row.needs_driver:
                found.append(Due(row.session, "inbox", row.epoch, None))
            elif row.rest.due_at is not None and row.rest.due_at <= now:
                found.append(Due(row.session, "timer", row.epoch, None))
        return found

    async def wait(self, since: Mark, timeout_s: float) -> Mark:
        try:
            async with asyncio.timeout(timeout_s):
                while self._mark == since:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            pass
        return self._mark

    async def bind(self, binding: Binding) -> None:
        it = self._session(binding.session)
        self._root_free(binding)
        it.binding = binding
        self._tell()

    async def binding(self, session: str) -> Binding | None:
        return self._session(session).binding

    async def close(self) -> None:
        return None

    def _session(self, session: str) -> _Session:
        try:
            return self._sessions[session]
        except KeyError:
            raise checks.no_session(session) from None

    def _fence(self, grant: Grant) -> _Session:
        it = self._session(grant.session)
        checks.fence(grant, epoch=it.row.epoch, held=it.row.held_by is not None)
        return it

    def _prefix(self, it: _Session) -> list[tuple[Stored, bytes]]:
        above = [] if it.parent is None else self._prefix(it.parent)
        return above[: it.cut] + it.records

    def _root_free(self, binding: Binding) -> None:
        for other in self._sessions.values():
            if other.row.rest.busy and other.binding is not None and other.binding.session != binding.session:
                checks.root_free(binding, other.binding)

    def _tell(self) -> None:
        self._mark += 1
        self._changed.set()


class MemoryBlobs:
    """A BlobStore."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._chunks: dict[Digest, tuple[bytes, SweepNumber]] = {}
        """Bytes, and the newest sweep that had begun when they were stored or last named."""
        self._pins: dict[tuple[str, Digest], float] = {}
        self._sweep: SweepNumber = 0

    async def put(self, chunks: Iterable[tuple[Digest, bytes]], *, pin: str, ttl_s: float = 3600.0) -> None:
        now = self._clock()
        for digest, data in chunks:
            checks.chunk(digest, data)
            self._pins[pin, digest] = now + ttl_s
            self._chunks.setdefault(digest, (data, self._sweep))

    async def get(self, digests: Iterable[Digest]) -> dict[Digest, bytes]:
        return {digest: self._chunks[digest][0] for digest in digests if digest in self._chunks}

    async def has(self, digests: Iterable[Digest]) -> set[Digest]:
        return {digest for digest in digests if digest in self._chunks}

    async def stored_bytes(self, digests: Iterable[Digest]) -> int:
        return sum(len(self._chunks[digest][0]) for digest in set(digests) if digest in self._chunks)

    async def begin_sweep(self) -> SweepNumber:
        self._sweep += 1
        return self._sweep

    async def sweep(self, number: SweepNumber, live: Live, *, dry_run: bool = False) -> Swept:
        old = [digest for digest, (_, named) in self._chunks.items() if named < number or dry_run]
        kept = await live(old)
        if number != self._sweep and not dry_run:
            raise StoreLockedError("another collection has begun meanwhile, and collects what this one had not yet")
        self._pins = {key: until for key, until in self._pins.items() if until > self._clock()}
        pinned = {digest for _, digest in self._pins}
        gone = [d for d in old if d not in kept and d not in pinned and (dry_run or self._chunks[d][1] < number)]
        swept = Swept(len(gone), sum(len(self._chunks[digest][0]) for digest in gone))
        for digest in () if dry_run else gone:
            del self._chunks[digest]
        return swept

    def name(self, names: Set[Digest]) -> None:
        if gone := sorted(names - self._chunks.keys()):
            raise BlobGoneError(tuple(gone))
        self._chunks |= {name: (self._chunks[name][0], self._sweep) for name in names}

    def ride(self, blobs: Mapping[Digest, bytes]) -> None:
        self._chunks |= {digest: (data, self._sweep) for digest, data in blobs.items()}

    def unpin(self, pin: str) -> None:
        self._pins = {key: until for key, until in self._pins.items() if key[0] != pin}
