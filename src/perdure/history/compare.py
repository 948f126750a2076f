"""What differs between two images, read from chunks alone: no Space, no workspace, and nothing of what is equal.

Both trees are walked together, a level at a time. Nodes with equal digests are equal all the way down and never fetched, so the cost follows the
change; a level's nodes are asked for at once, so it is a few requests and not one a directory.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from perdure.record.parts import Digest
from perdure.space.image import directories
from perdure.space.space import ChunkSource
from perdure.spaced.tree import DIRECTORY, Entry, Payload, decode_payload


class Difference(Struct, frozen=True):
    """A path, relative to the root, whose entries differ. None: it is not there."""

    path: bytes
    before: Entry | None
    after: Entry | None


class _Pair(Struct, frozen=True):
    """Two directories of one path; None is an empty one."""

    path: bytes
    before: bytes | None
    after: bytes | None


async def compare(before: Digest | None, after: Digest | None, source: ChunkSource) -> list[Difference]:
    """The differences between two `tree` roots, sorted by path. None is an empty tree.

    A directory counts where it appears, goes or changes its mode, and beside it everything in it. Raises BlobGoneError if a node is not stored.
    """
    found: list[Difference] = []
    level = [_Pair(b"", _raw(before), _raw(after))] if before != after else []
    while level:
        nodes = await directories((digest for pair in level for digest in (pair.before, pair.after) if digest), source)
        below: list[_Pair] = []
        for pair in level:
            _entries(pair, nodes, found, below)
        level = below
    return sorted(found, key=lambda difference: difference.path)


def _entries(pair: _Pair, nodes: Mapping[bytes, Mapping[bytes, Payload]], found: list[Difference], below: list[_Pair]) -> None:
    old = nodes[pair.before] if pair.before else {}
    new = nodes[pair.after] if pair.after else {}
    for name in old.keys() | new.keys():
        if old.get(name) == new.get(name):
            continue
        path = pair.path + b"/" + name if pair.path else name
        before = decode_payload(old[name]) if name in old else None
        after = decode_payload(new[name]) if name in new else None
        inside = _Pair(path, _directory(before), _directory(after))
        if not (inside.before and inside.after) or _mode(before) != _mode(after):
            found.append(Difference(path, before, after))
        if inside.before != inside.after:
            below.append(inside)


def _directory(entry: Entry | None) -> bytes | None:
    return entry.digest if entry and entry.kind == DIRECTORY else None


def _mode(entry: Entry | None) -> int | None:
    return entry.mode if entry else None


def _raw(digest: Digest | None) -> bytes | None:
    return bytes.fromhex(digest) if digest else None
