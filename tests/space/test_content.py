"""Content outside of a tree: in, by pieces of any size, and out again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping

import pytest

from perdure.record.parts import Digest
from perdure.space import content
from perdure.spaced.tree import encode_file

MIB = 1 << 20


async def pieces(data: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(data), 70_001):
        yield data[at : at + 70_001]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"text",
        b"x" * MIB,
        bytes(range(256)) * 5000,
        bytes(6),
        bytes(3 * MIB),
        bytes(MIB) + b"behind a hole",
        b"Pf1\n is how a file node begins, and so may a command's output",
        encode_file(10, ()) + b"x" * 100_000,
    ],
    ids=[
        "nothing",
        "a chunk",
        "a whole block",
        "many chunks",
        "a short hole",
        "a hole",
        "a hole and text",
        "node-like",
        "node-like, long",
    ],
)
def test_what_was_stored_comes_back(data: bytes) -> None:
    store: dict[Digest, bytes] = {}

    async def put(chunks: list[tuple[Digest, bytes]]) -> None:
        store.update(chunks)

    async def source(digests: Iterable[Digest]) -> Mapping[Digest, bytes]:
        return {digest: store[digest] for digest in digests if digest in store}

    async def story() -> None:
        digest, size_bytes, digests = await content.store(pieces(data), put)
        assert (size_bytes, digests) == (len(data), store.keys())
        assert await content.load(digest, size_bytes, source) == data

    asyncio.run(story())
