"""The protocol that every store of logs keeps; `perdure.log.conformance` is its executable meaning.

A session is a row (epoch, last record, inbox position, `Rest`) and its records. The *inbox position* is the sequence number of the
newest record that came by `admit`, without an epoch. A commit that decides something names the position it had seen; a miss is
a ConflictError and nothing of the commit is stored. A commit of facts names none: the fence is enough.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence, Set
from typing import Literal, Protocol

from msgspec import Struct

from perdure.record.parts import Digest
from perdure.record.records import Draft, Owner, Seq, Stored

SMALL_CHUNK_BYTES = 64 * 1024
"""Chunks up to this size may ride in a commit; larger ones go first, by `BlobStore.put`."""

SessionId = str
CommitId = str


class Header(Struct, frozen=True):
    """What a new session starts with: its id, its log's id, and the records that open it (`session_created`, `thread_opened`)."""

    session: SessionId
    log_id: str
    drafts: tuple[Draft, ...]


class Cut(Struct, frozen=True):
    """A prefix of another session's log: records 1…seq."""

    session: SessionId
    seq: Seq


class Grant(Struct, frozen=True):
    """Proof of a driver's right. `until` is None where the right ends only by a newer epoch."""

    session: SessionId
    epoch: int
    owner: Owner
    until: float | None = None


class Rest(Struct, frozen=True):
    """What a session is while nobody drives it: the indexed row that `due` and `ls` read, written by whoever knows.

    `detail` says in words what is waited for, and how to answer. `busy` is what a `reject` submission looks at. `due_at` is a wall-clock time in
    seconds at which a driver is wanted.
    """

    status: Literal["running", "waiting", "settled", "failed"] = "settled"
    waiting_for: str | None = None
    due_at: float | None = None
    busy: bool = False
    detail: str = ""


class Committed(Struct, frozen=True):
    """The records first…last are durable. `at` is the time the store gave them."""

    id: CommitId
    first: Seq
    last: Seq
    at: float
    epoch: int


class Admission(Struct, frozen=True):
    """A record from outside the driver: a submission, an abort, an answer, an observation.

    `request_id` makes it idempotent: the same id with the same draft is the same receipt, with another draft a UsageError.
    `reject_if_busy` refuses with SessionBusyError inside the transaction. `needs_driver` makes the session due; `busy` marks it busy.
    """

    request_id: str
    draft: Draft
    reject_if_busy: bool = False
    needs_driver: bool = True
    busy: bool = True


class Receipt(Struct, frozen=True):
    seq: Seq
    at: float
    duplicate: bool = False


class SessionRow(Struct, frozen=True):
    """A session at a glance. `held_by` is the owner of the newest epoch while it has not released it (dead or alive)."""

    session: SessionId
    log_id: str
    epoch: int
    last_seq: Seq
    inbox_seq: Seq
    created_at: float
    changed_at: float
    rest: Rest
    held_by: Owner | None
    needs_driver: bool
    parent: Cut | None = None


class Due(Struct, frozen=True):
    """A session that may want a driver, and why. `held`: its owner never released it; whoever asks finds out if that one lives."""

    session: SessionId
    reason: Literal["inbox", "timer", "held"]
    epoch: int
    owner: Owner | None


Mark = int
"""An opaque number that changes when anything in the store changes."""


class Binding(Struct, frozen=True):
    """Where a session's workspace lies on this machine; a fact of the home, never of the log.

    `binds` are the other paths here that the commands of a sandbox can read.
    """

    session: SessionId
    directory: str
    device: int
    inode: int
    binds: tuple[str, ...] = ()


SweepNumber = int
Live = Callable[[Collection[Digest]], Awaitable[Set[Digest]]]
"""Which of these are named by a record that was committed before the sweep began."""


class Swept(Struct, frozen=True):
    """What a sweep removed, or would remove: chunks, and their bytes as they are stored."""

    chunks: int = 0
    bytes: int = 0


class BlobStore(Protocol):
    """Chunks of at most 1 MiB by their SHA-256."""

    async def put(self, chunks: Iterable[tuple[Digest, bytes]], *, pin: str, ttl_s: float = 3600.0) -> None:
        """Durable, and safe from `sweep` under `pin` until it expires or a commit with that id names it. Verifies digests."""
        ...

    async def get(self, digests: Iterable[Digest]) -> dict[Digest, bytes]:
        """The bytes of those that are stored; a chunk whose bytes do not match its digest counts as missing."""
        ...

    async def has(self, digests: Iterable[Digest]) -> set[Digest]: ...

    async def stored_bytes(self, digests: Iterable[Digest]) -> int:
        """What those that are stored take."""
        ...

    async def begin_sweep(self) -> SweepNumber:
        """What a commit names from now on is spared by the sweep of this number. An older sweep that is not done removes nothing more."""
        ...

    async def sweep(self, number: SweepNumber, live: Live, *, dry_run: bool = False) -> Swept:
        """Delete every chunk that was there when the sweep began, is not `live`, not pinned, and was not named since.

        Killed at any instant it has removed only such chunks. Raises StoreLockedError where a newer sweep began.
        """
        ...


class LogStore(Protocol):
    @property
    def blobs(self) -> BlobStore: ...

    async def create(
        self, header: Header, *, parent: Cut | None = None, rest: Rest = Rest(), binding: Binding | None = None
    ) -> SessionId:
        """A new session at epoch 0, its opening records committed, bound to its directory (as `bind` does). UsageError if the id is taken."""
        ...

    async def acquire(
        self, session: SessionId, owner: Owner, *, expected: int, at_least: int = 0, engine_token: int | None = None
    ) -> tuple[Grant, Stored]:
        """Raise the epoch from exactly `expected` to max(expected + 1, at_least), and commit `epoch_raised`.

        Raises StaleEpochError if the epoch is not `expected`: two watchers never fence each other in turn.
        """
        ...

    async def renew(self, grant: Grant) -> Grant: ...

    async def release(self, grant: Grant, *, inbox_seen: Seq, rest: Rest) -> None:
        """Let go, leaving `rest`. ConflictError if the inbox holds something unseen; StaleEpochError if overtaken."""
        ...

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
        """Append all or nothing, durably. The same id again returns the first outcome.

        `blobs` are small chunks that ride along; `names` are digests newly named by the drafts, which must be stored by then.
        Shielded from cancellation. Raises StaleEpochError, ConflictError, BlobGoneError, StoreFullError, UncertainCommitError.
        """
        ...

    async def find(self, session: SessionId, id: CommitId) -> Committed | None: ...

    async def admit(self, session: SessionId, admission: Admission) -> Receipt:
        """Append the draft, once for its request id; needs no epoch.

        Raises UsageError for another draft under a known id, SessionBusyError where busy was to be refused, RootRefusedError if the session would
        become busy in a root that a busy session has.
        """
        ...

    def read(self, session: SessionId, after: Seq = 0) -> AsyncIterator[Stored]:
        """Records with a greater sequence number, in order; of a fork, its parent's prefix first."""
        ...

    async def remove(self, grant: Grant, *, inbox_seen: Seq) -> None:
        """The session is gone, with its binding: its name is free. What its forks begin with stays readable to them.

        ConflictError if the inbox holds something unseen, StaleEpochError if overtaken. The room comes back by `purge`.
        """
        ...

    async def purge(self) -> int:
        """Delete the records of removed sessions that no fork begins with, a few at a time; how many went."""
        ...

    async def records_bytes(self, session: SessionId) -> int:
        """What the session's own records take, a fork's beginning left out."""
        ...

    async def row(self, session: SessionId) -> SessionRow:
        """UsageError, naming what to do, if there is no such session."""
        ...

    async def rows(self) -> list[SessionRow]: ...

    async def due(self, now: float) -> list[Due]: ...

    async def wait(self, since: Mark, timeout_s: float) -> Mark:
        """The current mark as soon as it differs from `since`, or after the time. Sees other processes' commits."""
        ...

    async def bind(self, binding: Binding) -> None:
        """Record where a workspace lies. RootRefusedError if a *busy* session's root is the same, inside it or above it."""
        ...

    async def binding(self, session: SessionId) -> Binding | None: ...

    async def close(self) -> None: ...
