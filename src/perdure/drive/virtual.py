"""Paths that lead into the log instead of the workspace: `output:CALL` and `salvage:ID/PATH`; and to the user's skills: `skill:NAME/FILE`.

So whatever was too long to show, and whatever recovery took back, stays readable by the model for as long as the session lives. Long content is
stored as a file of an image is: in chunks of at most 1 MiB, named by their file node.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from perdure.drive.journal import Journal
from perdure.log.store import SMALL_CHUNK_BYTES, LogStore, SessionId
from perdure.program import skills
from perdure.record import records as r
from perdure.record.parts import Blob
from perdure.space import content, image
from perdure.space.space import OpResult
from perdure.state.state import State

MAX_READ_BYTES = 50 * 1024


class Virtual:
    def __init__(self, store: LogStore, folders: tuple[Path, ...] = ()) -> None:
        """`folders` are where the user's skills lie."""
        self._store = store
        self._folders = folders

    def serves(self, tool: str, args: dict[str, Any]) -> bool:
        return tool == "read" and str(args.get("path", "")).startswith(("output:", "salvage:", skills.SCHEME))

    async def read(self, state: State, session: SessionId, args: dict[str, Any]) -> OpResult:
        scheme, _, rest = str(args["path"]).partition(":")
        try:
            if scheme == "output":
                pieces = await self._output(session, rest)
            elif scheme == "salvage":
                pieces = await self._salvage(session, rest)
            else:
                pieces = _whole(skills.find(self._folders, rest))
        except LookupError as error:
            return OpResult(False, str(error.args[0]))
        return await _lines(pieces, int(args.get("offset", 1)), int(args.get("limit", 2000)))

    async def _output(self, session: SessionId, call: str) -> AsyncIterator[bytes]:
        async for stored in self._store.read(session):
            body = stored.body
            if isinstance(body, r.CallFinished) and body.call == call:
                blob = body.result.output or body.result.blob
                return self._content(blob) if blob else _whole(body.result.text.encode())
        raise LookupError(f"There is no output of a call '{call}'.")

    async def _salvage(self, session: SessionId, rest: str) -> AsyncIterator[bytes]:
        id, _, path = rest.partition("/")
        async for stored in self._store.read(session):
            body = stored.body
            if isinstance(body, r.Recovered | r.SpaceRestored) and body.salvage and body.salvage.startswith(id) and id:
                found = await image.read(body.salvage, path, self._store.blobs.get)
                if found is None:
                    raise LookupError(f"Salvage {id} holds no file '{path}'.")
                return _whole(found)
        raise LookupError(f"There is no salvage '{id}'.")

    def _content(self, blob: Blob) -> AsyncIterator[bytes]:
        return content.pieces(blob.digest, blob.size_bytes, self._store.blobs.get)

    def blob(self, journal: Journal, data: bytes, media_type: str) -> Blob:
        """Content of at most 64 KiB that rides in the next commit."""
        assert len(data) <= SMALL_CHUNK_BYTES
        digest = hashlib.sha256(data).hexdigest()
        journal.name({digest}, {digest: data})
        return Blob(digest, len(data), media_type)

    async def keep(self, journal: Journal, pieces: AsyncIterator[bytes], media_type: str) -> Blob:
        """Store content of any length; the next commit names it."""

        async def put(chunks: list[tuple[str, bytes]]) -> None:
            await self._store.blobs.put(chunks, pin=journal.commit_id)

        digest, size_bytes, digests = await content.store(pieces, put)
        journal.name(digests, {})
        return Blob(digest, size_bytes, media_type)


async def _whole(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _lines(pieces: AsyncIterator[bytes], offset: int, limit: int) -> OpResult:
    page = _Page(offset, offset + limit - 1)
    async for piece in pieces:
        page.add(piece)
    return OpResult(True, page.shown(), truncated=False)


class _Page:
    """Lines `first` to `last` of what is added, as far as they fit; the others, of which there may be a GiB, are only counted."""

    def __init__(self, first: int, last: int) -> None:
        self._first, self._last = first, last
        self._chosen = bytearray()
        self._number = 1
        self._ended = True

    def add(self, piece: bytes) -> None:
        """The next piece, which begins in line `_number`."""
        ends = piece.count(b"\n")
        if self._first <= self._number + ends and self._number <= self._last and len(self._chosen) <= MAX_READ_BYTES:
            begin, end = max(self._first - self._number, 0), self._last - self._number + 1
            self._chosen += b"\n".join(piece.split(b"\n")[begin:end]) + (b"\n" if end <= ends else b"")
        self._number += ends
        self._ended = piece.endswith(b"\n")

    def shown(self) -> str:
        cut = len(self._chosen) > MAX_READ_BYTES
        text = self._chosen[:MAX_READ_BYTES].decode("utf-8", "replace")
        lines = self._number - self._ended
        if cut or self._last < lines:
            go_on = self._first + max(text.count("\n"), 1)
            text = text.rstrip("\ufffd") + f"\n[{lines} lines in all; go on with offset {go_on}]"
        return text
