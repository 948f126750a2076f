"""What a home knows of a supervisor besides the supervisor itself: its own word, and what the kernel outside calls it.

`identity.json` is written by the supervisor at the start of each life, `init.json` by whoever reached it, before the first operation is asked for.
A file that can't be read, as a power cut may leave it, is one that is not there: the log knows the supervisor too.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from perdure.record.records import Init


class Supervisor(Struct, frozen=True):
    """A life of the supervisor, and when a Perdure process saw it die."""

    instance: int
    boot_id: str
    init: Init
    custody: Literal["pidns", "unproven"]
    dead_at_ns: int | None = None


def identity(folder: Path) -> dict[str, Any]:
    """The supervisor's own word; empty before its first life."""
    try:
        return msgspec.json.decode((folder / "identity.json").read_bytes(), type=dict[str, Any])
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def recorded(folder: Path) -> Supervisor | None:
    try:
        return msgspec.json.decode((folder / "init.json").read_bytes(), type=Supervisor)
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def record(folder: Path, supervisor: Supervisor) -> None:
    """Replace the record, unless it says as much already."""
    known = recorded(folder)
    if known == supervisor or (known is not None and msgspec.structs.replace(known, dead_at_ns=None) == supervisor):
        return
    beside = folder / f"init.{secrets.token_hex(4)}"
    beside.write_bytes(msgspec.json.encode(supervisor))
    beside.rename(folder / "init.json")


def saw_death(folder: Path, instance: int, dead_at_ns: int) -> None:
    """The first to see it is right."""
    known = recorded(folder)
    if known is not None and known.instance == instance and known.dead_at_ns is None:
        record(folder, msgspec.structs.replace(known, dead_at_ns=dead_at_ns))
