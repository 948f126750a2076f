"""Content of any length as an image holds it, outside of a tree: in chunks, named by the only one of them or by a file node.

So the whole output of a command and a file of the workspace are stored alike, and equal bytes are stored once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from perdure.record.parts import Digest
from perdure.space.image import chunks
from perdure.space.space import ChunkSource
from perdure.spaced import tree

BATCH_BYTES = 8 << 20

Put = Callable[[list[tuple[Digest, bytes]]], Awaitable[None]]


async def store(pieces: AsyncIterator[bytes], put: Put) -> tuple[Digest, int, set[Digest]]:
    """Store what comes, in bounded memory: its digest, its size in bytes, and every digest that holds it."""
    writer = _Writer(put)
    async for piece in pieces:
        await writer.add(piece)
    return await writer.end()


async def load(digest: Digest, size_bytes: int, source: ChunkSource) -> bytes:
    """The content again, all of it. Raises BlobGoneError if a chunk of it is missing."""
    return b"".join([piece async for piece in pieces(digest, size_bytes, source)])


async def pieces(digest: Digest, size_bytes: int, source: ChunkSource) -> AsyncIterator[bytes]:
    """The content in order, at most 1 MiB at a time. Raises BlobGoneError if a chunk of it is missing."""
    if size_bytes == 0:
        return
    named = bytes.fromhex(digest)
    first = (await chunks([named], source))[named]
    if len(first) == size_bytes and first != tree.encode_file(size_bytes, ()):
        yield first  # whatever it begins with: only a hole's node can be as long as the hole
        return
    size, rows = tree.decode_file(first)
    at = 0
    for row in rows:
        for hole_bytes in _holes(row.offset - at):
            yield bytes(hole_bytes)
        yield (await chunks([row.digest], source))[row.digest]
        at = row.offset + row.length
    for hole_bytes in _holes(size - at):
        yield bytes(hole_bytes)


def _holes(size_bytes: int) -> Iterator[int]:
    while size_bytes:
        yield (part := min(size_bytes, tree.BLOCK_BYTES))
        size_bytes -= part


class _Writer:
    """Cuts as the format wants: whole MiB, and behind the last one 64 KiB."""

    def __init__(self, put: Put) -> None:
        self._put = put
        self._held = bytearray()
        self._size = 0
        self._rows: list[tree.Row] = []
        self._batch: list[tuple[Digest, bytes]] = []
        self._batch_bytes = 0
        self._digests: set[Digest] = set()

    async def add(self, piece: bytes) -> None:
        self._held += piece
        while len(self._held) >= tree.BLOCK_BYTES:
            await self._cut(tree.BLOCK_BYTES)

    async def _cut(self, length: int) -> None:
        chunk = bytes(self._held[:length])
        del self._held[:length]
        if not tree.is_hole(chunk):
            digest = tree.sha256(chunk)
            self._rows.append(tree.Row(self._size, len(chunk), digest))
            await self._keep(digest.hex(), chunk)
        self._size += len(chunk)

    async def _keep(self, digest: Digest, data: bytes) -> None:
        self._digests.add(digest)
        self._batch.append((digest, data))
        self._batch_bytes += len(data)
        if self._batch_bytes >= BATCH_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        if self._batch:
            await self._put(self._batch)
            self._batch, self._batch_bytes = [], 0

    async def end(self) -> tuple[Digest, int, set[Digest]]:
        while self._held:
            await self._cut(min(tree.TAIL_BYTES, len(self._held)))
        if tree.is_single(self._size, tuple(self._rows)):
            digest = self._rows[0].digest.hex()
        else:
            node = tree.encode_file(self._size, tuple(self._rows))
            digest = tree.sha256(node).hex()
            await self._keep(digest, node)
        await self._flush()
        return digest, self._size, self._digests
