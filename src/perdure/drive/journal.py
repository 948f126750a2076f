"""The driver's side of the log: what is durable, what is pending, and how it is committed.

Drafts gather until something must be done outside, and then go in one commit: facts (what happened) and the decisions that follow from them. `state` is the
durable state, `view` what it will be with the pending drafts. A Conflict means that something was admitted which the decisions had not seen: the
facts are committed alone at once, the decisions are dropped, and `Redecide` tells the driver to look again.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping

from msgspec import Struct

from perdure.drive.events import Emit, Notice, Recorded
from perdure.log.store import CommitId, Committed, Grant, LogStore, Rest
from perdure.record import codec
from perdure.record.errors import (
    BlobGoneError,
    ConflictError,
    PerdureError,
    StoreFullError,
    StoreLockedError,
    UncertainCommitError,
)
from perdure.record.parts import Digest
from perdure.record.records import Draft, Seq, Stored, SubmissionSettled
from perdure.spaced.steps import step
from perdure.state.state import State, fold

FULL_RETRY_S = (0.5, 1.0, 2.0, 5.0)
"""Pauses between tries on a full disk; the last one repeats."""


class Redecide(Exception):
    """Decisions were dropped, since the inbox held something that they had not seen. The facts are committed."""


class _Pending(Struct, frozen=True):
    draft: Draft
    fact: bool


class Journal:
    """One driver's journal. Nothing in it is shared; only its driver calls it."""

    def __init__(self, store: LogStore, grant: Grant, state: State, *, emit: Emit, clock: Callable[[], float]) -> None:
        self.store = store
        self.grant = grant
        self.state = state
        self._view = state
        self._unfolded: list[Draft] = []
        self.after_commit: list[Callable[[], object]] = []
        self.refill: Callable[[Iterable[Digest]], Awaitable[None]] | None = None
        self._emit = emit
        self.clock = clock
        self.commit_id: CommitId = uuid.uuid4().hex
        """The next commit's. Chunks that go before it are pinned under its name, so that it lets go of them when it names them itself."""
        self._pending: list[_Pending] = []
        self._blobs: dict[Digest, bytes] = {}
        self._names: set[Digest] = set()

    @property
    def view(self) -> State:
        """Folded when somebody looks: most of what is pending is durable before anybody does, and is folded once."""
        for draft in self._unfolded:
            stored = codec.stored(draft, seq=self._view.seq + 1, at=self.clock(), epoch=self.grant.epoch, commit="")
            self._view = fold(self._view, stored)
        self._unfolded.clear()
        return self._view

    def _see(self, state: State) -> None:
        """Nothing is pending any more."""
        self._view = state
        self._unfolded.clear()

    def left_s(self, deadline: float | None) -> float | None:
        """Seconds until a wall-clock time; None where there is none."""
        return None if deadline is None else deadline - self.clock()

    def fact(self, *drafts: Draft) -> None:
        """What happened. It will be stored whatever else came in."""
        self._add(drafts, fact=True)

    def decide(self, *drafts: Draft) -> None:
        """What follows from the state as it is seen."""
        self._add(drafts, fact=False)

    def name(self, digests: set[Digest], blobs: Mapping[Digest, bytes]) -> None:
        """The pending drafts name these chunks; `blobs` are the small ones, which ride along."""
        self._names |= digests
        self._blobs.update(blobs)

    def riding(self, digests: Iterable[Digest]) -> dict[Digest, bytes]:
        """Those of them whose bytes wait for the next commit."""
        return {digest: self._blobs[digest] for digest in digests if digest in self._blobs}

    def _add(self, drafts: tuple[Draft, ...], *, fact: bool) -> None:
        self._pending.extend(_Pending(draft, fact) for draft in drafts)
        self._unfolded.extend(drafts)

    async def flush(self, rest: Rest | None = None) -> None:
        """Make everything pending durable. Raises Redecide, or what the store raises for a stale or uncertain commit."""
        pending = self._pending
        if not pending:
            return
        settles = any(isinstance(p.draft.body, SubmissionSettled) for p in pending)
        if rest is None and settles and self.state.busy and not self.view.busy:
            rest = Rest("running")
        decides = any(not p.fact for p in pending) or rest is not None
        try:
            await self._commit([p.draft for p in pending], inbox_seen=self.state.seq if decides else None, rest=rest)
        except ConflictError:
            facts = [p.draft for p in pending if p.fact]
            if facts:
                await self._commit(facts, inbox_seen=None, rest=None)
            await self.refresh()
            raise Redecide from None

    async def flush_facts(self) -> None:
        """Make what happened durable, and forget what was about to be decided: this driver goes."""
        facts = [p.draft for p in self._pending if p.fact]
        if facts:
            await self._commit(facts, inbox_seen=None, rest=None)
        self._pending = []
        self._see(self.state)

    async def _commit(self, drafts: list[Draft], *, inbox_seen: Seq | None, rest: Rest | None) -> None:
        for pause_s in self._pauses():
            try:
                await self._attempt(drafts, inbox_seen, rest)
                return
            except BlobGoneError as error:
                if self.refill is None:
                    raise
                await self.refill(error.digests)
            except (StoreFullError, StoreLockedError, UncertainCommitError) as error:
                # The same id again is the same commit, whether or not the uncertain one survived.
                self._emit(Notice(f"{error}; trying again"))
                await asyncio.sleep(pause_s)

    async def _attempt(self, drafts: list[Draft], inbox_seen: Seq | None, rest: Rest | None) -> None:
        step(f"commit.before:{codec.kind_of(drafts[-1].body)}")
        try:
            committed = await self.store.commit(
                self.grant, self.commit_id, drafts, blobs=self._blobs, names=self._names, inbox_seen=inbox_seen, rest=rest
            )
        except asyncio.CancelledError:
            # A driver that is told to go takes in a commit that had begun; else it would write the same again.
            with contextlib.suppress(PerdureError):
                if stored := await self.store.find(self.grant.session, self.commit_id):
                    await self._taken(drafts, stored)
            raise
        await self._taken(drafts, committed)

    async def _taken(self, drafts: list[Draft], committed: Committed) -> None:
        step(f"commit.after:{codec.kind_of(drafts[-1].body)}")
        self.commit_id = uuid.uuid4().hex
        self._pending, self._blobs, self._names = [], {}, set()
        if committed.first == self.state.seq + 1:
            for i, draft in enumerate(drafts):
                self._fold(
                    codec.stored(draft, seq=committed.first + i, at=committed.at, epoch=committed.epoch, commit=committed.id)
                )
            self._see(self.state)
        else:
            await self.refresh()
        after, self.after_commit = self.after_commit, []
        for act in after:
            act()

    @staticmethod
    def _pauses() -> Iterator[float]:
        yield from FULL_RETRY_S
        while True:
            yield FULL_RETRY_S[-1]

    async def refresh(self) -> None:
        """Fold what others admitted. Drops decisions that are pending; there must be no pending facts."""
        if any(p.fact for p in self._pending):
            raise PerdureError("facts would be dropped")
        self._pending = []
        async for stored in self.store.read(self.grant.session, self.state.seq):
            self._fold(stored)
        self._see(self.state)

    def _fold(self, stored: Stored) -> None:
        self.state = fold(self.state, stored)
        self._emit(Recorded(stored))
