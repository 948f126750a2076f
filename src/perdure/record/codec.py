"""Bodies to bytes and back.

Bodies are JSON, one object with its `kind`: people can read a log with any tool. Unknown fields are skipped on reading and stay
in the stored bytes, which nothing ever rewrites; an unknown kind fails with the version that is needed.
"""

from __future__ import annotations

import msgspec

from perdure.record.errors import CorruptLogError, NewerLogError, UsageError
from perdure.record.records import Body, Draft, Stored

RECORD_VERSION = 1
"""Version of the vocabulary; raised when a new kind is added. Stored with each record."""

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Body] = msgspec.json.Decoder(Body)
_kind: msgspec.json.Decoder[_Kind]


class _Kind(msgspec.Struct):
    kind: str


_kind = msgspec.json.Decoder(_Kind)
KINDS: frozenset[str] = frozenset(t.__struct_config__.tag for t in Body.__args__)


def kind_of(body: Body) -> str:
    tag = body.__struct_config__.tag
    assert isinstance(tag, str)
    return tag


def encode(body: Body) -> bytes:
    """Bytes that `decode` takes. UsageError for a body that it would refuse: one such record, and the log behind it could never be read again."""
    data = _encoder.encode(body)
    try:
        _decoder.decode(data)
    except msgspec.ValidationError as error:
        raise UsageError(f"this can't be stored as a record of kind '{kind_of(body)}': {error}") from error
    return data


def decode(data: bytes, *, seq: int, v: int) -> Body:
    """The body of record `seq`. Raises NewerLogError for an unknown kind, CorruptLogError for anything else unreadable."""
    try:
        return _decoder.decode(data)
    except msgspec.MsgspecError as error:
        try:
            kind = _kind.decode(data).kind
        except msgspec.MsgspecError:
            raise CorruptLogError(f"record {seq} can't be read ({error}); records before it are intact") from error
        if kind not in KINDS or v > RECORD_VERSION:
            raise NewerLogError(
                f"record {seq} is of kind '{kind}' (record version {v}, this program reads up to {RECORD_VERSION}); "
                "open this session with the newer perdure that wrote it"
            ) from error
        raise CorruptLogError(f"record {seq} ({kind}) can't be read: {error}; records before it are intact") from error


def stored(draft: Draft, *, seq: int, at: float, epoch: int, commit: str) -> Stored:
    """What the log makes of the draft at `seq`; a negative cause becomes absolute."""
    cause = draft.cause
    if cause is not None and cause < 0:
        cause = seq + cause
    return Stored(seq, at, epoch, commit, draft.body, draft.thread, cause, draft.trace, RECORD_VERSION)
