"""The format of images: how a workspace becomes content-addressed nodes. Normative for ever, since roots are compared for ever.

A file's content is cut into chunks: at multiples of 1 MiB, and behind the last whole MiB at multiples of 64 KiB, so that appending to a
large file makes small new chunks. All-zero chunks are left out (holes). A chunk is named by the SHA-256 of its raw bytes.

A directory is a node of entries sorted by name; above 512 entries it is a trie of such nodes by SHA-256(name), five bits a level, so
that one change in a directory of 100,000 names makes three small nodes. An image is named by the SHA-256 of its root node. The root
directory's own mode is not held: it belongs to the place, not to the content.

Times are a second tree of the same shape that holds `mtime_ns` of files and symlinks. They are apart so that equal files have equal roots
whenever they were written. A directory's own times are not held: they follow from its entries.

There is exactly one encoding of a tree (docs/format.md, tests/vectors): integers are shortest LEB128, names strictly ascend, and the decoder
refuses everything else, so that two readers can never take one digest for two trees.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

BLOCK_BYTES = 1 << 20
TAIL_BYTES = 1 << 16
LEAF_ENTRIES = 512
FANOUT_BITS = 5
SLOTS = 31
"""The mask of a slot."""

TREE_LEAF, TREE_BRANCH = b"Pd1\n", b"Pb1\n"
TIMES_LEAF, TIMES_BRANCH = b"Pt1\n", b"Pu1\n"
FILE_NODE = b"Pf1\n"
BRANCH_OF = {TREE_LEAF: TREE_BRANCH, TIMES_LEAF: TIMES_BRANCH}
LEAF_OF = {branch: leaf for leaf, branch in BRANCH_OF.items()}

DIRECTORY, CHUNK, ROWS, LINK, TIME = b"d", b"c", b"f", b"l", b"t"
_ZEROS = bytes(BLOCK_BYTES)

Payload = bytes
"""What an entry says of its name, encoded: the entry without the name."""


class FormatError(ValueError):
    """Bytes that are not the canonical encoding of anything."""


class Row(NamedTuple):
    """A chunk of a file that is not a hole."""

    offset: int
    length: int
    digest: bytes


class Entry(NamedTuple):
    """A name's meaning. `digest` names a directory node (d), the only chunk (c) or a file node (f); `target` is a symlink's (l).

    `size` is known for (c) only; of (f) the file node holds it. In a tree of times only (d) and (t) occur, and `mtime_ns` of (t).
    """

    kind: bytes
    mode: int = 0
    size: int = 0
    digest: bytes = b""
    target: bytes = b""
    mtime_ns: int = 0


class Leaf(NamedTuple):
    """A directory, or the part of one, with its entries in order of their names."""

    header: bytes
    entries: dict[bytes, Payload]


class Branch(NamedTuple):
    """A directory of `total` entries, or the part of one: children by the next five bits of SHA-256(name)."""

    header: bytes
    total: int
    children: dict[int, bytes]


# ---- content ---------------------------------------------------------------------------------------------------------------


def cuts(size: int) -> Iterator[tuple[int, int]]:
    """(offset, length) of every chunk of a file of that size, holes included."""
    tail = size - size % BLOCK_BYTES
    for offset in range(0, tail, BLOCK_BYTES):
        yield offset, BLOCK_BYTES
    for offset in range(tail, size, TAIL_BYTES):
        yield offset, min(TAIL_BYTES, size - offset)


def is_hole(chunk: bytes) -> bool:
    return not chunk[0] and chunk == (_ZEROS if len(chunk) == BLOCK_BYTES else _ZEROS[: len(chunk)])


def is_single(size: int, rows: tuple[Row, ...]) -> bool:
    """True where one chunk that is no hole covers the whole file: such a file needs no node of its own."""
    return len(rows) == 1 and rows[0].length == size


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


# ---- entries ---------------------------------------------------------------------------------------------------------------


def varint(value: int) -> bytes:
    """Shortest unsigned LEB128."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if 1 << 56 <= value < 1 << 63:  # a time of this age; every file has one
        low = (value & 127 | 128, value >> 7 & 127 | 128, value >> 14 & 127 | 128, value >> 21 & 127 | 128)
        return bytes(
            (
                *low,
                value >> 28 & 127 | 128,
                value >> 35 & 127 | 128,
                value >> 42 & 127 | 128,
                value >> 49 & 127 | 128,
                value >> 56,
            )
        )
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def directory_payload(mode: int, digest: bytes) -> Payload:
    return DIRECTORY + varint(mode) + digest


def chunk_payload(mode: int, size: int, digest: bytes) -> Payload:
    return CHUNK + varint(mode) + varint(size) + digest


def rows_payload(mode: int, digest: bytes) -> Payload:
    return ROWS + varint(mode) + digest


def link_payload(target: bytes) -> Payload:
    return LINK + varint(len(target)) + target


def time_payload(mtime_ns: int) -> Payload:
    return TIME + varint(mtime_ns * 2 if mtime_ns >= 0 else -mtime_ns * 2 - 1)


def times_directory_payload(digest: bytes) -> Payload:
    return DIRECTORY + digest


def encode_leaf(header: bytes, entries: Iterable[tuple[bytes, Payload]]) -> bytes:
    """`entries` in any order, names distinct, at most 512."""
    ordered = sorted(entries)
    assert len(ordered) <= LEAF_ENTRIES
    parts = [header, varint(len(ordered))]
    for name, payload in ordered:
        parts += (varint(len(name)), name, payload)
    return b"".join(parts)


def encode_branch(header: bytes, count: int, children: dict[int, bytes]) -> bytes:
    bitmap = sum(1 << slot for slot in children)
    return b"".join([header, varint(count), bitmap.to_bytes(4, "big"), *(children[slot] for slot in sorted(children))])


def encode_file(size: int, rows: tuple[Row, ...]) -> bytes:
    parts = [FILE_NODE, varint(size), varint(len(rows))]
    for offset, length, digest in rows:
        parts += (varint(offset), varint(length), digest)
    return b"".join(parts)


def slot_of(name: bytes, level: int) -> int:
    """Which child of a branch at that level (0 at the top) a name belongs to."""
    return int.from_bytes(sha256(name), "big") >> slot_shift(level) & SLOTS


def slot_shift(level: int) -> int:
    """By how many bits the digest of a name, as a number, is shifted for its slot at that level."""
    return 256 - FANOUT_BITS * (level + 1)


# ---- reading ---------------------------------------------------------------------------------------------------------------


class _Reader:
    __slots__ = ("at", "data")

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def take(self, length: int) -> bytes:
        piece = self.data[self.at : self.at + length]
        if len(piece) != length:
            raise FormatError("truncated node")
        self.at += length
        return piece

    def varint(self) -> int:
        value = shift = 0
        while True:
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if shift > 7 and not byte:
            raise FormatError("an integer is not in its shortest form")
        return value

    def end(self) -> None:
        if self.at != len(self.data):
            raise FormatError("bytes behind the end of a node")


def _entry(reader: _Reader, *, times: bool) -> Entry:
    kind = reader.take(1)
    if times:
        if kind == DIRECTORY:
            return Entry(kind, digest=reader.take(32))
        if kind == TIME:
            raw = reader.varint()
            return Entry(kind, mtime_ns=-(raw + 1) // 2 if raw & 1 else raw // 2)
        raise FormatError("unknown kind of entry %r" % kind)
    if kind == LINK:
        target = reader.take(reader.varint())
        if not target or b"\0" in target:
            raise FormatError("an impossible link target")
        return Entry(kind, target=target)
    if kind not in (DIRECTORY, CHUNK, ROWS):
        raise FormatError("unknown kind of entry %r" % kind)
    mode = reader.varint()
    if mode > 0o7777:
        raise FormatError("mode bits outside 07777")
    size = reader.varint() if kind == CHUNK else 0
    if kind == CHUNK and not (0 < size <= TAIL_BYTES or size == BLOCK_BYTES):
        raise FormatError("a file of %d bytes is not one chunk" % size)
    return Entry(kind, mode, size, reader.take(32))


def decode_payload(payload: Payload, *, times: bool = False) -> Entry:
    reader = _Reader(payload)
    entry = _entry(reader, times=times)
    reader.end()
    return entry


def decode_node(data: bytes) -> Leaf | Branch:
    """A directory node of either tree. Raises FormatError for anything that the encoder would not have written."""
    header = data[:4]
    if header in BRANCH_OF:
        return _leaf(header, _Reader(data, 4))
    if header in LEAF_OF:
        return _branch(header, _Reader(data, 4))
    raise FormatError("not a directory node")


def _leaf(header: bytes, reader: _Reader) -> Leaf:
    count = reader.varint()
    if count > LEAF_ENTRIES:
        raise FormatError("more than %d entries in one node" % LEAF_ENTRIES)
    entries: dict[bytes, Payload] = {}
    previous = b""
    for _ in range(count):
        name = reader.take(reader.varint())
        if name <= previous or b"\0" in name or b"/" in name or name in (b".", b".."):
            raise FormatError("names are not strictly ascending, or one is impossible")
        start = reader.at
        _entry(reader, times=header == TIMES_LEAF)
        entries[name] = reader.data[start : reader.at]
        previous = name
    reader.end()
    return Leaf(header, entries)


def _branch(header: bytes, reader: _Reader) -> Branch:
    count = reader.varint()
    bitmap = int.from_bytes(reader.take(4), "big")
    if count <= LEAF_ENTRIES or not bitmap:
        raise FormatError("a branch of so few entries is a leaf")
    children = {slot: reader.take(32) for slot in range(32) if bitmap >> slot & 1}
    reader.end()
    return Branch(header, count, children)


def decode_file(data: bytes) -> tuple[int, tuple[Row, ...]]:
    """Size and rows of a file node. Raises FormatError for anything that the encoder would not have written."""
    reader = _Reader(data, 4)
    if data[:4] != FILE_NODE:
        raise FormatError("not a file node")
    size = reader.varint()
    rows: list[Row] = []
    allowed = cuts(size)
    for _ in range(reader.varint()):
        row = Row(reader.varint(), reader.varint(), reader.take(32))
        if (row.offset, row.length) not in allowed:  # consumes up to the match, so rows must ascend
            raise FormatError("a chunk lies where no cut is")
        rows.append(row)
    reader.end()
    if is_single(size, tuple(rows)):
        raise FormatError("a file of one chunk needs no node")
    return size, tuple(rows)
