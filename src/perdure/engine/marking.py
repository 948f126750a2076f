"""Which chunks the records of a home name: what a collection must leave alone.

Every record of every session is read, and every image, salvage, input and output that one names is walked down to the last chunk: nodes are fetched, contents
are not. What was met is kept in a temporary file of SQLite's own, so that neither memory nor the time for a tree that many images share grows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Set
from types import TracebackType
from typing import Any, Literal

import apsw
import msgspec
from msgspec import Struct

from perdure.log.store import BlobStore, LogStore, SessionId
from perdure.log.worker import Worker
from perdure.record import records as r
from perdure.record.errors import CorruptLogError
from perdure.record.parts import Blob, Digest
from perdure.spaced import tree

BATCH = 250
FEW_CONTENTS = 5000

Met = Callable[[Set[Digest]], Awaitable[None]]


class Marks:
    """Digests of one home's chunks; an async context manager. `among` is a `Live`."""

    def __init__(self) -> None:
        self._connection = apsw.Connection("")
        self._connection.pragma("journal_mode", "off")
        self._connection.execute("CREATE TABLE mark (digest BLOB PRIMARY KEY, walked INTEGER NOT NULL) WITHOUT ROWID")
        self._worker = Worker("perdure marks", lambda: None)

    async def __aenter__(self) -> Marks:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._worker.close(self._connection.close)

    async def among(self, digests: Collection[Digest]) -> Set[Digest]:
        """Those of them that are marked."""
        return await self._ask(_AMONG, digests)

    async def add(self, digests: Collection[Digest]) -> Set[Digest]:
        """Contents; those of them that are new."""
        return await self._ask(_ADD, digests)

    async def walk(self, digests: Collection[Digest]) -> Set[Digest]:
        """Nodes; those of them that were not walked before. A node may have been met as somebody's content."""
        return await self._ask(_WALK, digests)

    async def _ask(self, question: str, digests: Collection[Digest]) -> Set[Digest]:
        given = msgspec.json.encode(list(digests)).decode()

        def ask() -> Set[Digest]:
            found: list[Any] = self._connection.execute(question, (given,)).fetchall()
            return {digest for (digest,) in found}

        return await self._worker.run(ask)


_AMONG = "SELECT value FROM json_each(?) WHERE EXISTS (SELECT 1 FROM mark WHERE digest = unhex(value))"
_ADD = "INSERT OR IGNORE INTO mark SELECT unhex(value), 0 FROM json_each(?) RETURNING lower(hex(digest))"
_WALK = (
    "INSERT INTO mark SELECT unhex(value), 1 FROM json_each(?) WHERE true"
    " ON CONFLICT (digest) DO UPDATE SET walked = 1 WHERE walked = 0 RETURNING lower(hex(digest))"
)


async def mark(store: LogStore, session: SessionId, marks: Marks, met: Met | None = None) -> None:
    """Mark what this session's records name, a fork's beginning included; `met` is told of every digest that was new.

    Raises CorruptLogError if something is missing that leads on to other chunks.
    """
    walk = _Walk(store.blobs, session, marks, met)
    async for stored in store.read(session):
        named = list(_named(stored.body))
        await walk.down({name.digest for name in named if name.leads_on}, {name.digest for name in named if not name.leads_on})
    await walk.end()


class _Name(Struct, frozen=True):
    """A digest that a record names. `leads_on`: what it names is a node that names other chunks."""

    digest: Digest
    leads_on: bool


def _named(value: object, field: str = "") -> Iterator[_Name]:
    """Whatever kinds of records there will be: images, blobs and salvages wherever they occur in one."""
    match value:
        case r.Image(tree=root, times=times, git=git):
            yield from (_Name(digest, True) for digest in (root, times, git) if digest)
        case Blob(digest=digest, size_bytes=size_bytes):
            yield _Name(digest, size_bytes > tree.TAIL_BYTES and size_bytes != tree.BLOCK_BYTES)
        case str() if field == "salvage":
            yield _Name(value, True)
        case Struct():
            for name in value.__struct_fields__:
                yield from _named(getattr(value, name), name)
        case tuple() | list():
            for each in value:
                yield from _named(each)
        case _:
            pass


class _Walk:
    """Contents gather until they are worth a statement."""

    def __init__(self, blobs: BlobStore, session: SessionId, marks: Marks, met: Met | None) -> None:
        self._blobs, self._session, self._marks, self._met = blobs, session, marks, met
        self._contents: set[Digest] = set()

    async def down(self, nodes: Set[Digest], contents: Set[Digest]) -> None:
        """Depth first, a batch of nodes at a time: what waits is what a few batches name."""
        self._contents |= contents
        waiting = list(nodes)
        while waiting:
            part, waiting = waiting[-BATCH:], waiting[:-BATCH]
            new = await self._marks.walk(part)
            await self._tell(new)
            for digest, data in (await self._get(new)).items():
                try:
                    for kind, below in _below(data):
                        waiting.append(below) if kind == "node" else self._contents.add(below)
                except tree.FormatError as error:
                    raise self._missing(digest) from error
            if len(self._contents) >= FEW_CONTENTS:
                await self.end()

    async def end(self) -> None:
        contents, self._contents = self._contents, set()
        if contents:
            await self._tell(await self._marks.add(contents))

    async def _get(self, nodes: Set[Digest]) -> dict[Digest, bytes]:
        found = await self._blobs.get(nodes)
        if gone := nodes - found.keys():
            raise self._missing(min(gone))
        return found

    async def _tell(self, new: Set[Digest]) -> None:
        if self._met is not None and new:
            await self._met(new)

    def _missing(self, digest: Digest) -> CorruptLogError:
        return CorruptLogError(
            f"chunk {digest} of session {self._session} is missing or damaged, so nobody knows what else the session needs; nothing was "
            f"collected. Put the home back from a copy, or remove the session: `perdure rm {self._session}`"
        )


def _below(data: bytes) -> Iterator[tuple[Literal["node", "content"], Digest]]:
    """What a node names; a blob that is its own only chunk names nothing. Raises FormatError."""
    header = data[:4]
    if header == tree.FILE_NODE:
        _, rows = tree.decode_file(data)
        yield from (("content", row.digest.hex()) for row in rows)
    elif header in tree.BRANCH_OF or header in tree.LEAF_OF:
        node = tree.decode_node(data)
        if isinstance(node, tree.Branch):
            yield from (("node", child.hex()) for child in node.children.values())
            return
        for payload in node.entries.values():
            entry = tree.decode_payload(payload, times=node.header == tree.TIMES_LEAF)
            if entry.kind in (tree.DIRECTORY, tree.ROWS):
                yield "node", entry.digest.hex()
            elif entry.kind == tree.CHUNK:
                yield "content", entry.digest.hex()
    else:
        raise tree.FormatError("no node")
