"""An image that the log holds, read node by node as it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from perdure.spaced.tree import CHUNK, ROWS, Branch, FormatError, Payload, Row, decode_file, decode_node, decode_payload, sha256

Fetch = Callable[[list[str]], dict[str, bytes]]
"""Bytes of chunks and nodes by their digests in hex."""

BATCH_BYTES = 8 << 20
_CHUNKS_AT_ONCE = 8


class Source:
    """The log's chunks, checked against their digests."""

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch

    def get(self, digests: Iterable[bytes]) -> dict[bytes, bytes]:
        """Raises OSError where one is missing or damaged."""
        wanted = sorted({digest.hex() for digest in digests})
        if not wanted:
            return {}
        found = {bytes.fromhex(name): data for name, data in self._fetch(wanted).items()}
        for name in wanted:
            if sha256(found.get(bytes.fromhex(name), b"")).hex() != name:
                raise OSError("the log does not hold %s of the image to be restored" % name)
        return found

    def directories(self, digests: Iterable[bytes]) -> dict[bytes, dict[bytes, Payload]]:
        """All entries of each directory, tries put together; one request a level."""
        out: dict[bytes, dict[bytes, Payload]] = {digest: {} for digest in digests}
        owners = {digest: {digest} for digest in out}
        while owners:
            below: dict[bytes, set[bytes]] = {}
            for digest, data in self.get(owners).items():
                node = decode_node(data)
                for owner in owners[digest]:
                    if isinstance(node, Branch):
                        for child in node.children.values():
                            below.setdefault(child, set()).add(owner)
                    else:
                        out[owner].update(node.entries)
            owners = below
        return out

    def file(self, payload: Payload) -> tuple[int, tuple[Row, ...]]:
        """Size and chunks of a file."""
        entry = decode_payload(payload)
        if entry.kind == CHUNK:
            return entry.size, (Row(0, entry.size, entry.digest),)
        if entry.kind != ROWS:
            raise FormatError("not a file")
        return decode_file(self.get([entry.digest])[entry.digest])

    def pieces(self, rows: tuple[Row, ...]) -> Iterator[tuple[int, bytes]]:
        """(offset, bytes) of the chunks, a few MiB at a time in memory."""
        for at in range(0, len(rows), _CHUNKS_AT_ONCE):
            some = rows[at : at + _CHUNKS_AT_ONCE]
            found = self.get(row.digest for row in some)
            for row in some:
                yield row.offset, found[row.digest]

    def content(self, payload: Payload) -> bytes:
        """A small file's bytes, its holes filled."""
        size, rows = self.file(payload)
        data = bytearray(size)
        for offset, piece in self.pieces(rows):
            data[offset : offset + len(piece)] = piece
        return bytes(data)
