"""A state as bytes: a cache by sequence number, never the truth. Another version of the reducers makes it void."""

from __future__ import annotations

from typing import Any

import msgspec

from perdure.state.entries import Entry
from perdure.state.state import State
from perdure.state.trail import Trail

STATE_VERSION = 6
"""Raised whenever a reducer or a state's shape changes its meaning."""


def _encode(value: Any) -> Any:
    if isinstance(value, Trail):
        return list(value)
    raise TypeError(type(value))


def _decode(type_: type, value: Any) -> Any:
    return Trail(msgspec.convert(value, list[Entry]))


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode)
_decoder = msgspec.msgpack.Decoder(tuple[int, State], dec_hook=_decode)


def encode(state: State) -> bytes:
    return _encoder.encode((STATE_VERSION, state))


def decode(data: bytes) -> State | None:
    """None where the snapshot is of another version or damaged: fold the log instead."""
    try:
        version, state = _decoder.decode(data)
    except (msgspec.MsgspecError, TypeError, ValueError):
        return None
    return state if version == STATE_VERSION else None
