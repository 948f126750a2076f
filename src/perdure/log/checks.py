"""What every store checks inside the transaction of a request: pure, and said in one place so that all stores say it alike."""

from __future__ import annotations

import hashlib

import msgspec

from perdure.log.store import SMALL_CHUNK_BYTES, Binding, Cut, Grant
from perdure.record.errors import ConflictError, RootRefusedError, SessionBusyError, StaleEpochError, UsageError
from perdure.record.parts import Digest
from perdure.record.records import Draft, Seq


def fence(grant: Grant, *, epoch: int, held: bool) -> None:
    """StaleEpochError unless the grant is that of the newest epoch and was not released."""
    if grant.epoch != epoch:
        raise StaleEpochError(
            f"session {grant.session} is driven at epoch {epoch}; this driver holds {grant.epoch} and must stop"
        )
    if not held:
        raise StaleEpochError(f"epoch {grant.epoch} of session {grant.session} was released; acquire a new one")


def expected_epoch(session: str, *, expected: int, epoch: int) -> None:
    if expected != epoch:
        raise StaleEpochError(f"session {session} is at epoch {epoch}, not {expected}: somebody else acquired it")


def inbox(session: str, *, seen: Seq, inbox_seq: Seq) -> None:
    """ConflictError if something came in that the decision had not seen."""
    if seen < inbox_seq:
        raise ConflictError(
            f"session {session} has a record {inbox_seq} in its inbox, this decision had seen {seen}; decide again"
        )


def not_busy(session: str, *, busy: bool) -> None:
    if busy:
        raise SessionBusyError(f"session {session} is busy; submit as a follow-up or a steer, or wait until it settles")


def same_request(session: str, request_id: str, *, known: bytes, digest: bytes) -> None:
    if known != digest:
        raise UsageError(f"request id {request_id} was used in session {session} for something else; choose another id")


def payload_digest(draft: Draft) -> bytes:
    """What makes two drafts the same request: everything but the trace, which a retry brings anew."""
    return hashlib.sha256(msgspec.json.encode((draft.body, draft.thread, draft.cause))).digest()


def small_chunk(digest: Digest, data: bytes) -> None:
    if len(data) > SMALL_CHUNK_BYTES:
        raise UsageError(f"chunk {digest} has {len(data)} bytes; more than {SMALL_CHUNK_BYTES} go first, by BlobStore.put")


def chunk(digest: Digest, data: bytes) -> None:
    if hashlib.sha256(data).hexdigest() != digest:
        raise UsageError(f"the bytes given as chunk {digest} have another digest")


def root_free(binding: Binding, other: Binding) -> None:
    """RootRefusedError if the other session, which is busy, works in the same directory, inside it or above it."""
    if (binding.device, binding.inode) == (other.device, other.inode):
        relation = "is"
    elif _inside(binding.directory, other.directory):
        relation = "lies inside"
    elif _inside(other.directory, binding.directory):
        relation = "lies above"
    else:
        return
    raise RootRefusedError(
        f"{binding.directory} {relation} the root of session {other.session}, which is not settled; "
        f"resume that session (perdure resume {other.session}) or abandon it (perdure abandon {other.session})"
    )


def _inside(directory: str, above: str) -> bool:
    return directory == above or directory.startswith(above.rstrip("/") + "/")


def new_session(session: str, *, taken: bool) -> None:
    if taken:
        raise UsageError(f"there is already a session {session}")


def prefix(parent: Cut, *, last_seq: Seq) -> None:
    if not 0 < parent.seq <= last_seq:
        raise UsageError(f"session {parent.session} has records 1 to {last_seq}; it can't be forked at {parent.seq}")


def no_session(session: str) -> UsageError:
    return UsageError(f"there is no session {session}; `perdure ls` shows those of this home")
