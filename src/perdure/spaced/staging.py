"""Bytes on their way to the log: what captures met and no driver has taken over yet.

Content is copied here the moment it is hashed, so that what happens to the file afterwards does not matter. Each capture that met something new
is one *batch*, a file of its own; batches form a chain of images. From the chain follows what any base on it lacks: everything in the later
batches. `settle` drops the batches that the log holds.

Batches outlive the supervisor, since a successor answers for its ended operations, but nothing is synced: after a power cut the
ledger proves nothing either. A batch without its last record was never told to anyone and is removed.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import struct
from typing import Any, BinaryIO, NamedTuple, Optional

from perdure.spaced import durable
from perdure.spaced.tree import sha256

Key = tuple[str, str, Optional[str]]
"""What an image is apart from its clock: tree, times, git."""

_RECORD = struct.Struct(">32sI")
_END = bytes(32)


class Signature(NamedTuple):
    """What an image says of a path: its payload in the tree (without a directory's digest), and its mtime."""

    payload: bytes
    mtime_ns: Optional[int]


Change = tuple[Optional[Signature], Optional[Signature]]


def key_of(image: Optional[dict[str, Any]]) -> Optional[Key]:
    return None if image is None else (image["tree"], image["times"], image.get("git"))


class Batch:
    """Chunks by digest as (offset in the file, size), and what the capture found changed against the one before it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.chunks: dict[bytes, tuple[int, int]] = {}
        self.image: Optional[Key] = None
        self.changes: dict[str, Change] = {}
        self.opaque: list[str] = []
        self._file: Optional[BinaryIO] = None
        self._reader: Optional[int] = None
        self._end = 0

    def add(self, digest: bytes, data: bytes) -> None:
        if digest in self.chunks:
            return
        self._append(digest, data)
        self.chunks[digest] = (self._end - len(data), len(data))

    def read(self, digest: bytes) -> bytes:
        """Bytes of a finished batch, checked against their digest."""
        if self._reader is None:
            self._reader = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        offset, size = self.chunks[digest]
        data = os.pread(self._reader, size, offset)
        if sha256(data) != digest:
            raise OSError("staged chunk %s is damaged" % digest.hex())
        return data

    def finish(self) -> None:
        changes = {path: tuple(side and tuple(side) for side in change) for path, change in self.changes.items()}
        self._append(_END, marshal.dumps((self.image, changes, self.opaque)))
        assert self._file is not None
        self._file.close()
        self._file = None

    def drop(self) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk, found out when the rest is written
                self._file.close()
            self._file = None
        if self._reader is not None:
            os.close(self._reader)
            self._reader = None
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def load(self) -> bool:
        """Read the file's records; False where its last one is missing."""
        with open(self.path, "rb") as file:
            while True:
                header = file.read(_RECORD.size)
                if len(header) < _RECORD.size:
                    return False
                digest, size = _RECORD.unpack(header)
                if digest == _END:
                    return self._load_end(file.read(size), size)
                self.chunks[digest] = (file.tell(), size)
                file.seek(size, os.SEEK_CUR)

    def _load_end(self, data: bytes, size: int) -> bool:
        if len(data) != size:
            return False
        self.image, changes, self.opaque = marshal.loads(data)
        for path, (before, after) in changes.items():
            self.changes[path] = (before and Signature(*before), after and Signature(*after))
        return True

    def _append(self, digest: bytes, data: bytes) -> None:
        if self._file is None:
            self._file = open(self.path, "wb", buffering=1 << 18)  # noqa: SIM115
        self._file.write(_RECORD.pack(digest, len(data)))
        self._file.write(data)
        self._end += _RECORD.size + len(data)


def number_of(batch: Batch) -> int:
    return int(os.path.basename(batch.path))


class Staging:
    """The chain: `start` is the image that the first batch is told against; batches before `first` belong to an older chain."""

    def __init__(self, directory: str) -> None:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        self._directory = directory
        self._start, self._first = self._read_start()
        self._apart: list[Batch] = []
        self._chain: list[Batch] = []
        self._next = self._first - 1
        for name in sorted(os.listdir(directory)):
            if name.isdigit():
                self._open(name)

    @property
    def end(self) -> Optional[Key]:
        """The newest image of the chain."""
        return next((batch.image for batch in reversed(self._chain) if batch.image), self._start)

    def begin(self) -> Batch:
        self._next += 1
        return Batch(os.path.join(self._directory, "%012d" % self._next))

    def append(self, batch: Batch) -> None:
        """Make the batch part of the chain; one without an image (a salvage) hangs on the image before it."""
        batch.finish()
        self._chain.append(batch)

    def since(self, base: Optional[Key]) -> Optional[list[Batch]]:
        """The batches behind that image; None where it is not on the chain."""
        if base == self._start:
            return list(self._chain)
        for index, batch in enumerate(self._chain):
            if batch.image == base and base is not None:
                return self._chain[index + 1 :]
        return None

    def restart(self, start: Optional[Key]) -> None:
        """A new chain: what follows is told against `start`. Batches of the old one stay readable until something is settled."""
        self._apart += self._chain
        self._chain = []
        self._write_start(start, self._next + 1)

    def read(self, digest: str) -> bytes:
        """Raises KeyError for a digest that is not staged (any more), OSError for damaged bytes."""
        raw = bytes.fromhex(digest)
        for batch in (*reversed(self._chain), *reversed(self._apart)):
            if raw in batch.chunks:
                return batch.read(raw)
        raise KeyError(digest)

    def settle(self, image: Optional[dict[str, Any]] = None) -> None:
        """The log holds `image` and everything told before it; None: everything told so far. An image that is not here settles nothing."""
        count = len(self._chain)
        if image is not None:
            wanted = key_of(image)
            count = next((n + 1 for n in reversed(range(count)) if self._chain[n].image == wanted), 0)
        if not count:
            return
        settled, rest = self._chain[:count], self._chain[count:]
        start = next((batch.image for batch in reversed(settled) if batch.image), self._start)
        self._write_start(start, number_of(rest[0]) if rest else self._next + 1)
        for batch in (*self._apart, *settled):
            batch.drop()
        self._apart, self._chain = [], rest

    def _open(self, name: str) -> None:
        self._next = int(name)
        batch = Batch(os.path.join(self._directory, name))
        if batch.load():
            (self._chain if self._next >= self._first else self._apart).append(batch)
        else:
            batch.drop()

    def _read_start(self) -> tuple[Optional[Key], int]:
        try:
            with open(os.path.join(self._directory, "start"), "rb") as file:
                start, first = marshal.loads(file.read())
                return start, first
        except FileNotFoundError:
            return None, 1

    def _write_start(self, start: Optional[Key], first: int) -> None:
        durable.replace(os.path.join(self._directory, "start"), marshal.dumps((start, first)))
        self._start, self._first = start, first
