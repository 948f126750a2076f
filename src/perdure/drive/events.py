"""What a driver lets others see while it works. Records are the truth; the rest is for eyes only and may be missed."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from perdure.record.records import Stored


class Recorded(Struct, frozen=True, tag="recorded"):
    """A record is durable."""

    stored: Stored


class TextShown(Struct, frozen=True, tag="text"):
    """A piece of an answer, stored before it is shown. `continued` text follows what an earlier attempt had shown."""

    thread: str
    turn: int
    text: str
    channel: str = "text"


class OutputShown(Struct, frozen=True, tag="output"):
    call: str
    data: bytes


class Notice(Struct, frozen=True, tag="notice"):
    """Something a person may want to know now: waiting for room on the disk, for a lock, a first capture in progress."""

    text: str


Event = Recorded | TextShown | OutputShown | Notice
Emit = Callable[[Event], None]
