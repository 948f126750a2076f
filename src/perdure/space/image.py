"""Reading images from chunks alone: no Space, no workspace.

A level's nodes are asked for at once, so that a tree costs a few requests and not one a directory.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable

from perdure.record.errors import BlobGoneError
from perdure.record.parts import Digest
from perdure.space.space import ChunkSource
from perdure.spaced.tree import (
    CHUNK,
    DIRECTORY,
    LINK,
    ROWS,
    Branch,
    Entry,
    Payload,
    Row,
    decode_file,
    decode_node,
    decode_payload,
)

_BATCH = 1000


async def chunks(digests: Iterable[bytes], source: ChunkSource) -> dict[bytes, bytes]:
    """The bytes of all of them; BlobGoneError if one is not stored."""
    wanted = list(dict.fromkeys(digests))
    got: dict[bytes, bytes] = {}
    for start in range(0, len(wanted), _BATCH):
        batch = wanted[start : start + _BATCH]
        answer = await source([digest.hex() for digest in batch])
        if gone := tuple(digest.hex() for digest in batch if digest.hex() not in answer):
            raise BlobGoneError(gone)
        got.update((digest, answer[digest.hex()]) for digest in batch)
    return got


async def directories(digests: Iterable[bytes], source: ChunkSource) -> dict[bytes, dict[bytes, Payload]]:
    """Each directory's entries by name, large ones put together from their parts."""
    entries: dict[bytes, dict[bytes, Payload]] = {digest: {} for digest in digests}
    parts = {digest: {digest} for digest in entries}
    while parts:
        nodes = await chunks(parts, source)
        below: dict[bytes, set[bytes]] = {}
        for part, owners in parts.items():
            node = decode_node(nodes[part])
            if isinstance(node, Branch):
                for child in node.children.values():
                    below.setdefault(child, set()).update(owners)
            else:
                for owner in owners:
                    entries[owner].update(node.entries)
        parts = below
    return entries


async def walk(root: Digest, source: ChunkSource) -> AsyncIterator[tuple[bytes, Entry]]:
    """Every path of a `tree` and its entry, a level at a time, sorted within a directory."""
    level = [(b"", bytes.fromhex(root))]
    while level:
        nodes = await directories((digest for _, digest in level), source)
        below: list[tuple[bytes, bytes]] = []
        for path, digest in level:
            for name, payload in sorted(nodes[digest].items()):
                entry = decode_payload(payload)
                inside = path + b"/" + name if path else name
                yield inside, entry
                if entry.kind == DIRECTORY:
                    below.append((inside, entry.digest))
        level = below


async def lookup(root: Digest, path: bytes, source: ChunkSource) -> Entry | None:
    """The entry of a path; None if there is none."""
    digest, names = bytes.fromhex(root), path.strip(b"/").split(b"/")
    for i, name in enumerate(names):
        payload = (await directories([digest], source))[digest].get(name)
        if payload is None:
            return None
        entry = decode_payload(payload)
        if i == len(names) - 1:
            return entry
        if entry.kind != DIRECTORY:
            return None
        digest = entry.digest
    return None


async def content(entry: Entry, source: ChunkSource) -> bytes:
    """What a file holds, or where a symlink leads. Raises IsADirectoryError for a directory."""
    if entry.kind == LINK:
        return entry.target
    size, rows = await layout(entry, source)
    whole = bytearray(size)
    for row in rows:
        whole[row.offset : row.offset + row.length] = (await chunks([row.digest], source))[row.digest]
    return bytes(whole)


async def layout(entry: Entry, source: ChunkSource) -> tuple[int, tuple[Row, ...]]:
    """A file's size and its chunks; what no row covers is a hole. Raises IsADirectoryError for a directory."""
    if entry.kind == CHUNK:
        return entry.size, (Row(0, entry.size, entry.digest),) if entry.size else ()
    if entry.kind == ROWS:
        return decode_file((await chunks([entry.digest], source))[entry.digest])
    raise IsADirectoryError("a directory has no content")


async def fill(fd: int, entry: Entry, source: ChunkSource) -> None:
    """Write its content into an empty file, a chunk at a time; holes stay holes. OSError where there is no room."""
    size, rows = await layout(entry, source)
    for row in rows:
        write_at(fd, (await chunks([row.digest], source))[row.digest], row.offset)
    os.ftruncate(fd, size)


def write_at(fd: int, data: bytes, offset: int) -> None:
    """All of it: pwrite(2) may write less."""
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)


async def read(root: Digest, path: str, source: ChunkSource) -> bytes | None:
    """The content of a file by its path as text; None if there is no such file."""
    entry = await lookup(root, path.encode("utf-8", "surrogateescape"), source)
    return None if entry is None or entry.kind == DIRECTORY else await content(entry, source)


async def digests(roots: Iterable[Digest], source: ChunkSource) -> set[Digest]:
    """What names the contents of all files in these trees: a chunk for small ones, a file node for the others."""
    return {entry.digest.hex() for root in roots async for _, entry in walk(root, source) if entry.kind in (CHUNK, ROWS)}
