"""The rows of sessions, and the transactions that move them. Each function runs inside one transaction of `log.db`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw
import msgspec
from msgspec import Struct

from perdure.log import checks, records
from perdure.log.records import Encoded
from perdure.log.store import Admission, Binding, CommitId, Committed, Cut, Due, Grant, Header, Receipt, Rest, SessionRow
from perdure.record.records import Draft, EpochRaised, Owner, Seq, Stored

_owner = msgspec.json.Decoder(Owner)


class Position(Struct, frozen=True):
    """What a transaction looks at before it appends. `row` is the session's short number."""

    row: int
    epoch: int
    last_seq: Seq
    inbox_seq: Seq
    held: bool
    busy: bool


def position(connection: apsw.Connection, session: str) -> Position:
    """UsageError if there is no such session."""
    found = connection.execute(
        "SELECT id, epoch, last_seq, inbox_seq, owner IS NOT NULL, busy FROM session WHERE name = ?", (session,)
    ).fetchone()
    if found is None:
        raise checks.no_session(session)
    row, epoch, last_seq, inbox_seq, held, busy = found
    return Position(row, epoch, last_seq, inbox_seq, bool(held), bool(busy))


def create(
    connection: apsw.Connection, header: Header, drafts: Sequence[Encoded], parent: Cut | None, rest: Rest, at: float
) -> None:
    taken = connection.execute("SELECT 1 FROM session WHERE name = ?", (header.session,)).fetchone()
    checks.new_session(header.session, taken=taken is not None)
    parent_row, cut = None, 0
    if parent is not None:
        above = position(connection, parent.session)
        checks.prefix(parent, last_seq=above.last_seq)
        parent_row, cut = above.row, parent.seq
    row = connection.execute(
        "INSERT INTO session (name, log_id, parent, parent_seq, created_at, changed_at, epoch, last_seq, inbox_seq, needs_driver,"
        " status, waiting_for, due_at, busy, detail) VALUES (?,?,?,?,?,?,0,?,0,0,?,?,?,?,?) RETURNING id",
        (header.session, header.log_id, parent_row, cut, at, at, cut + len(drafts), *_columns(rest)),
    ).get
    records.append(connection, row, drafts, first=cut + 1, at=at, epoch=0, commit="create")


def acquire(
    connection: apsw.Connection, session: str, owner: Owner, *, expected: int, at_least: int, engine_token: int | None, at: float
) -> tuple[Grant, Stored]:
    now = position(connection, session)
    checks.expected_epoch(session, expected=expected, epoch=now.epoch)
    epoch = max(expected + 1, at_least)
    drafts = records.encode([Draft(EpochRaised(owner, engine_token))])
    (raised,) = records.append(connection, now.row, drafts, first=now.last_seq + 1, at=at, epoch=epoch, commit=f"epoch:{epoch}")
    connection.execute(
        "UPDATE session SET epoch = ?, last_seq = ?, changed_at = ?, owner = ? WHERE id = ?",
        (epoch, raised.seq, at, msgspec.json.encode(owner), now.row),
    )
    return Grant(session, epoch, owner), raised


def renew(connection: apsw.Connection, grant: Grant) -> Grant:
    now = position(connection, grant.session)
    checks.fence(grant, epoch=now.epoch, held=now.held)
    return grant


def release(connection: apsw.Connection, grant: Grant, *, inbox_seen: Seq, rest: Rest, at: float) -> None:
    now = position(connection, grant.session)
    checks.fence(grant, epoch=now.epoch, held=now.held)
    checks.inbox(grant.session, seen=inbox_seen, inbox_seq=now.inbox_seq)
    connection.execute(
        "UPDATE session SET owner = NULL, needs_driver = 0, changed_at = ?, status = ?, waiting_for = ?, due_at = ?, busy = ?,"
        " detail = ? WHERE id = ?",
        (at, *_columns(rest), now.row),
    )


def commit(
    connection: apsw.Connection, grant: Grant, id: CommitId, drafts: Sequence[Encoded], *, inbox_seen: Seq | None, at: float
) -> tuple[Committed, bool]:
    """The outcome, and whether it is new. The caller adds chunks and rest to a new one."""
    now = position(connection, grant.session)
    if (before := _committed(connection, now.row, id)) is not None:
        return before, False
    checks.fence(grant, epoch=now.epoch, held=now.held)
    if inbox_seen is not None:
        checks.inbox(grant.session, seen=inbox_seen, inbox_seq=now.inbox_seq)
    first, last = now.last_seq + 1, now.last_seq + len(drafts)
    records.append(connection, now.row, drafts, first=first, at=at, epoch=grant.epoch, commit=id)
    connection.execute(
        "INSERT INTO committed (session, id, first, last, at, epoch) VALUES (?,?,?,?,?,?)",
        (now.row, id, first, last, at, grant.epoch),
    )
    connection.execute("UPDATE session SET last_seq = ?, changed_at = ? WHERE id = ?", (last, at, now.row))
    return Committed(id, first, last, at, grant.epoch), True


def set_rest(connection: apsw.Connection, session: str, rest: Rest) -> None:
    connection.execute(
        "UPDATE session SET status = ?, waiting_for = ?, due_at = ?, busy = ?, detail = ? WHERE name = ?",
        (*_columns(rest), session),
    )


def find(connection: apsw.Connection, session: str, id: CommitId) -> Committed | None:
    return _committed(connection, position(connection, session).row, id)


def admit(connection: apsw.Connection, session: str, admission: Admission, drafts: Sequence[Encoded], at: float) -> Receipt:
    now = position(connection, session)
    digest = checks.payload_digest(admission.draft)
    known = connection.execute(
        "SELECT digest, seq, at FROM request WHERE session = ? AND id = ?", (now.row, admission.request_id)
    ).fetchone()
    if known is not None:
        checks.same_request(session, admission.request_id, known=known[0], digest=digest)
        return Receipt(known[1], known[2], duplicate=True)
    if admission.reject_if_busy:
        checks.not_busy(session, busy=now.busy)
    if admission.busy and not now.busy and (root := binding(connection, session)) is not None:
        _root_free(connection, root)
    seq = now.last_seq + 1
    records.append(connection, now.row, drafts, first=seq, at=at, epoch=0, commit=f"admit:{admission.request_id}")
    connection.execute(
        "INSERT INTO request (session, id, digest, seq, at) VALUES (?,?,?,?,?)", (now.row, admission.request_id, digest, seq, at)
    )
    connection.execute(
        "UPDATE session SET last_seq = ?, inbox_seq = ?, changed_at = ?, needs_driver = needs_driver | ?, busy = busy | ? WHERE id = ?",
        (seq, seq, at, admission.needs_driver, admission.busy, now.row),
    )
    return Receipt(seq, at)


# ---- at a glance -----------------------------------------------------------------------------------------------------------

_ROW = (
    "SELECT s.name, s.log_id, s.epoch, s.last_seq, s.inbox_seq, s.created_at, s.changed_at, s.status, s.waiting_for, s.due_at, s.busy,"
    " s.detail, s.owner, s.needs_driver, coalesce(p.removed, p.name), s.parent_seq FROM session s LEFT JOIN session p ON p.id = s.parent"
)


def row(connection: apsw.Connection, session: str) -> SessionRow:
    found = connection.execute(f"{_ROW} WHERE s.name = ?", (session,)).fetchone()
    if found is None:
        raise checks.no_session(session)
    return _row(found)


def rows(connection: apsw.Connection) -> list[SessionRow]:
    return [_row(each) for each in connection.execute(f"{_ROW} WHERE s.removed IS NULL ORDER BY s.id")]


DUE = (
    "SELECT name, 'held', epoch, owner FROM session WHERE owner IS NOT NULL"
    " UNION ALL SELECT name, 'inbox', epoch, NULL FROM session WHERE needs_driver AND owner IS NULL"
    " UNION ALL SELECT name, 'timer', epoch, NULL FROM session WHERE due_at <= ? AND NOT needs_driver AND owner IS NULL"
)
"""Each arm has its partial index."""


def due(connection: apsw.Connection, now: float) -> list[Due]:
    return [
        Due(name, reason, epoch, None if owner is None else _owner.decode(owner))
        for name, reason, epoch, owner in connection.execute(DUE, (now,))
    ]


def _row(found: tuple[Any, ...]) -> SessionRow:
    (
        session,
        log_id,
        epoch,
        last_seq,
        inbox_seq,
        created_at,
        changed_at,
        status,
        waiting_for,
        due_at,
        busy,
        detail,
        owner,
        needs,
        parent,
        cut,
    ) = found
    return SessionRow(
        session=session,
        log_id=log_id,
        epoch=epoch,
        last_seq=last_seq,
        inbox_seq=inbox_seq,
        created_at=created_at,
        changed_at=changed_at,
        rest=Rest(status, waiting_for, due_at, bool(busy), detail),
        held_by=None if owner is None else _owner.decode(owner),
        needs_driver=bool(needs),
        parent=None if parent is None else Cut(parent, cut),
    )


def _columns(rest: Rest) -> tuple[object, ...]:
    return rest.status, rest.waiting_for, rest.due_at, rest.busy, rest.detail


def _committed(connection: apsw.Connection, row: int, id: CommitId) -> Committed | None:
    found = connection.execute(
        "SELECT id, first, last, at, epoch FROM committed WHERE session = ? AND id = ?", (row, id)
    ).fetchone()
    return None if found is None else Committed(*found)


# ---- roots -----------------------------------------------------------------------------------------------------------------


def bind(connection: apsw.Connection, root: Binding) -> None:
    now = position(connection, root.session)
    _root_free(connection, root)
    connection.execute(
        "INSERT INTO binding (session, directory, device, inode, binds) VALUES (?,?,?,?,?) ON CONFLICT (session)"
        " DO UPDATE SET directory = excluded.directory, device = excluded.device, inode = excluded.inode, binds = excluded.binds",
        (now.row, root.directory, *map(_signed, (root.device, root.inode)), msgspec.json.encode(root.binds).decode()),
    )


def binding(connection: apsw.Connection, session: str) -> Binding | None:
    found = connection.execute(
        f"SELECT {_BINDING} FROM session s JOIN binding b ON b.session = s.id WHERE s.name = ?",
        (session,),
    ).fetchone()
    return None if found is None else _binding(found)


def _root_free(connection: apsw.Connection, root: Binding) -> None:
    for found in connection.execute(
        f"SELECT {_BINDING} FROM session s JOIN binding b ON b.session = s.id WHERE s.busy AND s.name <> ?",
        (root.session,),
    ):
        checks.root_free(root, _binding(found))


def _binding(found: tuple[Any, ...]) -> Binding:
    name, directory, device, inode, binds = found
    return Binding(name, directory, device & _U64, inode & _U64, msgspec.json.decode(binds, type=tuple[str, ...]))


_BINDING = "s.name, b.directory, b.device, b.inode, b.binds"
_U64 = (1 << 64) - 1


def _signed(number: int) -> int:
    """The kernel's numbers are unsigned, SQLite's are not."""
    return number - (1 << 64) if number >> 63 else number
