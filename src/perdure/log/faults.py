"""A disk that remembers what was written and when it was synced, and that can be told to fail.

`Disk` is an SQLite VFS that writes through to the real files and appends every write, truncation, deletion and sync to one *trace*, shared by all
processes that register it with the same path. From the trace the files can be made as a power cut at any instant would leave them: what
was synced is there, of the rest as much as a `Loss` says. `fail` lets the n-th write or sync end with an error.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from enum import Enum
from pathlib import Path

import apsw
import msgspec
from msgspec import Struct


class Op(Struct, array_like=True):
    """`kind`: write, truncate, delete, rename, sync, lost or ack.

    A rename has the new name as `data`; it and a delete count as durable at once. `lost` is a sync that failed: what it should have made durable
    is taken for clean from then on (as Linux does) and never gets to the disk. An ack is the test's own mark, with its text as `data`.
    """

    kind: str
    file: str
    offset: int
    data: bytes


Fail = Callable[[str, str], None]
"""Called with (kind, file name) before a write or sync; raises to make it fail."""


class Disk(apsw.VFS):
    """`trace` None records nothing."""

    def __init__(self, name: str, trace: Path | None = None, fail: Fail | None = None) -> None:
        self.name, self.fail = name, fail
        self._trace = None if trace is None else os.open(trace, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        super().__init__(name, base="")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        return DiskFile(self, name, flags)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self.record("delete", filename)

    def record(self, kind: str, file: str, offset: int = 0, data: bytes = b"") -> None:
        if self._trace is not None:
            body = msgspec.msgpack.encode(Op(kind, file, offset, data))
            os.write(self._trace, len(body).to_bytes(4, "big") + body)

    def ack(self, text: str) -> None:
        self.record("ack", "", 0, text.encode())

    def before(self, kind: str, file: str) -> None:
        if self.fail is not None:
            self.fail(kind, Path(file).name)


class DiskFile(apsw.VFSFile):
    def __init__(self, disk: Disk, name: str | apsw.URIFilename | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk = disk
        self._name = name.filename() if isinstance(name, apsw.URIFilename) else name or ""

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.before("write", self._name)
        super().xWrite(data, offset)
        self._disk.record("write", self._name, offset, bytes(data))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._disk.record("truncate", self._name, newsize)

    def xSync(self, flags: int) -> None:
        try:
            self._disk.before("sync", self._name)
        except apsw.Error:
            self._disk.record("lost", self._name)
            raise
        super().xSync(flags)
        self._disk.record("sync", self._name)


def read_trace(trace: Path) -> list[Op]:
    data, ops, at = trace.read_bytes(), [], 0
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        ops.append(msgspec.msgpack.decode(data[at + 4 : at + 4 + size], type=Op))
        at += 4 + size
    return ops


class Loss(Enum):
    """What becomes of writes that no sync has followed when the power goes."""

    ALL = "all are lost"
    NONE = "none is lost"
    TORN = "all but the last are there, of that one the first half"
    SOME = "a random half is lost, each by itself"


def after_power_cut(ops: list[Op], loss: Loss, seed: int = 0) -> dict[str, bytes]:
    """The files as they are found when the power is back."""
    choose = random.Random(seed)
    files: dict[str, bytearray] = {}
    pending: list[Op] = []
    for op in ops:
        if op.kind in ("write", "truncate"):
            pending.append(op)
        elif op.kind != "ack":
            unsynced, pending = [p for p in pending if p.file == op.file], [p for p in pending if p.file != op.file]
            match op.kind:
                case "sync":
                    for each in unsynced:
                        _apply(files, each)
                case "delete":
                    files.pop(op.file, None)
                case "rename":
                    new = op.data.decode()
                    files[new] = files.pop(op.file, bytearray())
                    pending += [Op(p.kind, new, p.offset, p.data) for p in unsynced]
    for i, op in enumerate(pending):
        last = i == len(pending) - 1
        if loss is Loss.NONE or (loss is Loss.TORN and not last) or (loss is Loss.SOME and choose.random() < 0.5):
            _apply(files, op)
        elif loss is Loss.TORN and op.kind == "write":
            _apply(files, Op("write", op.file, op.offset, op.data[: len(op.data) // 2]))
    return {name: bytes(content) for name, content in files.items()}


def _apply(files: dict[str, bytearray], op: Op) -> None:
    content = files.setdefault(op.file, bytearray())
    if op.kind == "truncate":
        del content[op.offset :]
        return
    content.extend(bytes(max(0, op.offset - len(content))))
    content[op.offset : op.offset + len(op.data)] = op.data
