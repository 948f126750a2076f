"""The rows of records: appended by a transaction, read in pages of a prefix chain, checked by a sum each."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import apsw
from msgspec import Struct

from perdure.record import codec
from perdure.record.errors import CorruptLogError
from perdure.record.records import Draft, Seq, Stored

PAGE_RECORDS = 256
"""Read at once; between pages other work of the same thread goes on."""


class Encoded(Struct, frozen=True):
    """A draft whose body is bytes already, so that the transaction need not wait for the encoder."""

    draft: Draft
    body: bytes


class Segment(Struct, frozen=True):
    """Records `after` + 1 to `last` of a reader's view, which are rows of the session numbered `row`."""

    row: int
    after: Seq
    last: Seq


class Page(Struct, frozen=True):
    """Rows as stored. `error` says why there are fewer than were asked for."""

    rows: list[tuple[object, ...]]
    error: str | None = None


def encode(drafts: Sequence[Draft]) -> list[Encoded]:
    return [Encoded(draft, codec.encode(draft.body)) for draft in drafts]


def append(
    connection: apsw.Connection, row: int, drafts: Sequence[Encoded], *, first: Seq, at: float, epoch: int, commit: str
) -> list[Stored]:
    """Insert as `first`, `first` + 1, …; the caller moves `last_seq` along."""
    made = [codec.stored(each.draft, seq=first + i, at=at, epoch=epoch, commit=commit) for i, each in enumerate(drafts)]
    connection.executemany(
        "INSERT INTO record (key, at, epoch, commit_id, thread, cause, trace, v, crc, body) VALUES (?,?,?,?,?,?,?,?,?,?)",
        [
            (key(row, s.seq), at, epoch, commit, s.thread, s.cause, s.trace, s.v, _sum(s.seq, each.body), each.body)
            for s, each in zip(made, drafts, strict=True)
        ],
    )
    return made


def segments(connection: apsw.Connection, row: int, after: Seq, last: Seq) -> list[Segment]:
    """Where the records `after` + 1 to `last` lie: of a fork, its parent's prefix first."""
    found: list[Segment] = []
    link: int | None = row
    while link is not None and last > after:
        (parent, cut) = connection.execute("SELECT parent, parent_seq FROM session WHERE id = ?", (link,)).get
        if last > cut:
            found.append(Segment(link, max(after, cut), last))
        link, last = parent, min(last, cut)
    return found[::-1]


def own_bytes(connection: apsw.Connection, row: int) -> int:
    """Of the bodies that are rows of this session."""
    found = connection.execute(
        "SELECT coalesce(sum(length(body)), 0) FROM record WHERE key > ? AND key < ?", (key(row, 0), key(row + 1, 0))
    ).get
    assert isinstance(found, int)
    return found


def page(connection: apsw.Connection, segment: Segment, after: Seq) -> Page:
    """The next rows of the segment. A page of the file that can't be read ends it early, with what came before."""
    rows: list[tuple[object, ...]] = []
    try:
        rows.extend(
            connection.execute(
                "SELECT key & 0xffffffff, at, epoch, commit_id, thread, cause, trace, v, crc, body FROM record"
                " WHERE key > ? AND key <= ? ORDER BY key LIMIT ?",
                (key(segment.row, after), key(segment.row, segment.last), PAGE_RECORDS),
            )
        )
    except (apsw.CorruptError, apsw.IOError) as error:
        return Page(rows, str(error))
    return Page(rows)


def decode(row: tuple[object, ...], *, expected: Seq) -> Stored:
    """Raises CorruptLogError, NewerLogError."""
    seq, at, epoch, commit, thread, cause, trace, v, crc, body = row
    if seq != expected:
        raise missing(expected, f"the next one is {seq}")
    assert isinstance(seq, int) and isinstance(v, int) and isinstance(body, bytes)
    if crc != _sum(seq, body):
        raise CorruptLogError(f"record {seq} is not what was written (its sum differs); records before it are intact")
    decoded = codec.decode(body, seq=seq, v=v)
    return Stored(seq, at, epoch, commit, decoded, thread, cause, trace, v)  # type: ignore[arg-type]


def missing(seq: Seq, why: str) -> CorruptLogError:
    return CorruptLogError(f"record {seq} can't be read ({why}); records before it are intact")


def key(row: int, seq: Seq) -> int:
    """Of a record among all sessions'; 0 comes before the first."""
    return row << 32 | seq


def _sum(seq: Seq, body: bytes) -> int:
    return zlib.crc32(body, seq & 0xFFFFFFFF)
