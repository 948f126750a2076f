"""The driver's hold on its Space: opening it, comparing it with the log, and moving bytes from one to the other.

Every image that a record names has its chunks in the store by the time that record is durable: small ones ride in the commit, the others go
first. The Space keeps its own copy until `settle`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from perdure.drive.journal import Journal
from perdure.drive.spaces import Opened, Spaces
from perdure.history.compare import compare
from perdure.log.store import SMALL_CHUNK_BYTES, Binding
from perdure.record import records as r
from perdure.record.parts import Digest, printable
from perdure.record.records import Draft, FoundBy, Image
from perdure.space.space import Capture, Expect, Op, OpResult, Read, Space

RIDING_BYTES = 1 << 20
BATCH_BYTES = 8 << 20
CHANGED_SHOWN = 1000
READ_S = 10.0
SOMEWHERE = "."
"""Among the paths that a Space names where it does not know what the base held."""


class Site:
    """`space` raises until `open` was called. One driver's, one epoch's. `reaching` is the newest look's, as in Capture."""

    def __init__(self, spaces: Spaces, journal: Journal, binding: Binding) -> None:
        self.binding = binding
        self._spaces = spaces
        self._journal = journal
        self._space: Space | None = None
        self._unsettled: Image | None = None
        self.reaching: tuple[str, ...] = ()
        journal.refill = self._refill

    @property
    def space(self) -> Space:
        assert self._space is not None, "the Space is not open"
        return self._space

    @property
    def is_open(self) -> bool:
        return self._space is not None

    async def open(self, *, accepted: bool) -> Opened:
        """Reach the supervisor or start a new instance, under this driver's epoch. Commits nothing. As `Spaces.open`."""
        created = self._journal.state.session.created
        assert created is not None
        opened = await self._spaces.open(
            self._journal.grant.session,
            self.binding,
            self._journal.grant.epoch,
            created,
            self._journal.state.workspace,
            accepted=accepted,
        )
        self._space = opened.space
        return opened

    async def close(self) -> None:
        space, self._space = self._space, None
        if space is not None:
            await space.close()

    # ---- images ------------------------------------------------------------------------------------------------------------

    async def compare(self, found_by: FoundBy, call: str | None = None) -> Image:
        """The workspace's image now. Where it differs from the log's, that is somebody's work and becomes a fact."""
        known = self._journal.view.workspace.image
        settled, self._unsettled = self._unsettled, None
        created = self._journal.state.session.created
        strict = created is not None and created.capture == "strict" and found_by == "before_call"
        capture = await self.space.capture(known, settled=settled, audit=strict or found_by == "audit")
        return await self.found(capture, found_by, call)

    def expected(self) -> Expect | None:
        """For a call to be begun against the log's image, which the Space then looks for itself; None where it has to be looked at before.

        That is so with `strict` captures, and in a workspace that Perdure made: there an undo spares nothing that its base does not hold.
        """
        created = self._journal.state.session.created
        if self._journal.view.workspace.image is None or created is None or created.capture == "strict":
            return None
        if self.space.traits.own_workspace:
            return None
        settled, self._unsettled = self._unsettled, None
        return Expect(bool(self.reaching), settled)

    async def found(self, capture: Capture, found_by: FoundBy, call: str | None = None) -> Image:
        """The workspace's image as it was captured against the log's. Where it differs, that is somebody's work, or of calls that ended
        without an image, and becomes a fact."""
        known = self._journal.view.workspace.image
        self.reaching = capture.reaching
        if known is not None and capture.image.same(known) and not capture.opaque_changed:
            return known
        await self.take(capture.chunks)
        changed, count = await self.changed(capture, known)
        self._journal.fact(
            Draft(
                r.WorkspaceChanged(
                    capture.image,
                    changed,
                    count,
                    found_by,
                    call=call,
                    opaque=tuple(map(printable, capture.opaque)),
                    perhaps_by=self._journal.view.workspace.unimaged,
                )
            )
        )
        return capture.image

    async def changed(self, capture: Capture, base: Image | None) -> tuple[tuple[str, ...], int]:
        """The paths that a record may name, and how many there are; `capture` is taken and `base` in the log.

        A supervisor that was killed has forgotten what the log's image holds, and can't say where the workspace differs; the images can.
        """
        if base is None or SOMEWHERE not in capture.changed:
            return tuple(map(printable, capture.changed)), capture.changed_count
        paths = await self._differing(base, capture.image)
        return tuple(map(printable, paths[:CHANGED_SHOWN])), len(paths)

    async def _differing(self, before: Image, after: Image) -> list[str]:
        async def source(digests: Iterable[Digest]) -> Mapping[Digest, bytes]:
            wanted = set(digests)
            riding = self._journal.riding(wanted)
            return {**riding, **await self.source(wanted - riding.keys())}

        return [os.fsdecode(found.path) for found in await compare(before.tree, after.tree, source)]

    async def take(self, chunks: Mapping[Digest, int]) -> None:
        """Bring these from the Space into the store; the journal's pending records name them."""
        if not chunks:
            return
        blobs = self._journal.store.blobs
        missing = set(chunks) - await blobs.has(chunks)
        riding: dict[Digest, bytes] = {}
        riding_bytes = batch_bytes = 0
        batch: list[tuple[Digest, bytes]] = []
        async for digest, data in self.space.chunks(missing):
            if len(data) <= SMALL_CHUNK_BYTES and riding_bytes + len(data) <= RIDING_BYTES:
                riding[digest] = data
                riding_bytes += len(data)
                continue
            batch.append((digest, data))
            batch_bytes += len(data)
            if batch_bytes >= BATCH_BYTES:
                await blobs.put(batch, pin=self._journal.commit_id)
                batch, batch_bytes = [], 0
        if batch:
            await blobs.put(batch, pin=self._journal.commit_id)
        self._journal.name(set(chunks), riding)

    async def _refill(self, digests: Iterable[Digest]) -> None:
        """Chunks that were collected between their arrival and the commit that names them."""
        found = [pair async for pair in self.space.chunks(digests)]
        await self._journal.store.blobs.put(found, pin=self._journal.commit_id)

    async def source(self, digests: Iterable[Digest]) -> Mapping[Digest, bytes]:
        """The log's chunks, for a restore."""
        return await self._journal.store.blobs.get(digests)

    def settles(self, image: Image) -> None:
        """Once the pending records are durable, the Space may drop its own copies: it is told so at the next look."""

        def committed() -> None:
            self._unsettled = image

        self._journal.after_commit.append(committed)

    # ---- reading -----------------------------------------------------------------------------------------------------------

    async def read(self, path: str, key: str) -> OpResult | None:
        """A file of the workspace outside of any call; None where it can't be read."""
        return await self.ask(Read(path, limit=100_000), key)

    async def ask(self, op: Op, key: str) -> OpResult | None:
        """What an operation that only reads says outside of any call; None where it failed."""
        status = await self.space.start(key, op, wait_s=READ_S)
        return status.result if status.result and status.result.ok else None
