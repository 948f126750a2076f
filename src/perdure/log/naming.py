"""What a commit owes to chunks: that those it newly names are stored, and that no sweep takes them. Inside transactions of `log.db`.

While no sweep runs a look is enough, and nothing is written. While one runs, every name goes into the table `spared`, at which the sweep looks in the
same transaction in which it removes. Each sweep has a number of its own, so that what was looked up before a long commit still holds in it if no
sweep began since: a commit that names ten thousand chunks holds the lock no longer than one that names none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set

import apsw
import msgspec
from msgspec import Struct

from perdure.record.errors import BlobGoneError, StoreLockedError
from perdure.record.parts import Digest

FEW = 500
"""So many rows are looked at or removed in one transaction."""


class Sweep(Struct, frozen=True):
    """The newest one: its number, whether it still runs (or was cut off), and when it began."""

    n: int
    running: bool
    began_at: float


def sweep(connection: apsw.Connection) -> Sweep:
    n, running, began_at = connection.execute("SELECT n, running, began_at FROM sweep").get
    return Sweep(n, bool(running), began_at)


def begin_sweep(connection: apsw.Connection, at: float) -> int:
    """Its number. What an unfinished one has spared stays spared, and it may remove nothing more."""
    connection.execute("UPDATE sweep SET n = n + 1, running = 1, began_at = ?", (at,))
    return sweep(connection).n


def running_sweep(connection: apsw.Connection, n: int) -> Sweep:
    """StoreLockedError where a newer one began."""
    now = sweep(connection)
    if now.n != n:
        raise StoreLockedError("another collection has begun meanwhile, and collects what this one had not yet")
    return now


def end_sweep(connection: apsw.Connection, n: int) -> None:
    running_sweep(connection, n)
    connection.execute("UPDATE sweep SET running = 0; DELETE FROM spared")


def touch(connection: apsw.Connection, names: Iterable[Digest]) -> int:
    """Every name is stored, and no sweep that runs takes it: the newest sweep's number. Raises BlobGoneError."""
    wanted = listed(names)
    gone = [name for (name,) in connection.execute(_ABSENT, (wanted,))]
    if gone:
        raise BlobGoneError(tuple(sorted(gone)))
    return spare(connection, wanted)


def spare(connection: apsw.Connection, wanted: str) -> int:
    now = sweep(connection)
    if now.running:
        connection.execute("INSERT OR IGNORE INTO spared (digest) SELECT unhex(value) FROM json_each(?)", (wanted,))
    return now.n


def unpin(connection: apsw.Connection, pin: str) -> bool:
    """Let go of a few chunks; whether there may be more."""
    connection.execute(_UNPIN, {"pin": pin, "few": FEW})
    return connection.changes() == FEW


def present(connection: apsw.Connection, digests: Iterable[Digest]) -> set[Digest]:
    found = connection.execute(
        "SELECT value FROM json_each(?) WHERE EXISTS (SELECT 1 FROM chunk WHERE digest = unhex(value))", (listed(digests),)
    )
    return {name for (name,) in found}


def stored_bytes(connection: apsw.Connection, digests: Iterable[Digest]) -> int:
    """Of the bytes that lie in this file."""
    found = connection.execute(
        "SELECT coalesce(sum(length(data)), 0) FROM chunk WHERE digest IN (SELECT unhex(value) FROM json_each(?))",
        (listed(digests),),
    ).get
    assert isinstance(found, int)
    return found


def batches(names: Iterable[Digest], few: int = FEW) -> Iterable[Sequence[Digest]]:
    ordered = list(names)
    return (ordered[start : start + few] for start in range(0, len(ordered), few))


def listed(names: Iterable[Digest]) -> str:
    """As `json_each` takes them: one statement for all."""
    return msgspec.json.encode(list(names)).decode()


def many(names: Set[Digest]) -> bool:
    """Whether they are looked up before the commit rather than in it."""
    return len(names) > FEW


_ABSENT = "SELECT value FROM json_each(?) WHERE NOT EXISTS (SELECT 1 FROM chunk WHERE digest = unhex(value))"
_UNPIN = "DELETE FROM pin WHERE name = :pin AND digest IN (SELECT digest FROM pin WHERE name = :pin LIMIT :few)"
