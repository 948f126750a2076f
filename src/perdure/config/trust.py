"""Whose project files the user trusts: a folder's file as it was looked at, by digest. A changed file is a stranger's again.

Kept in the home, a file a trusted file: `trusted/<sha256 of its real path>` holds path and digest.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from pathlib import Path

import msgspec
from msgspec import Struct

from perdure.config.file import File


class _Trusted(Struct, frozen=True):
    path: str
    digest: str


def trust(home: Path, file: File) -> None:
    """This file, as it was read, may set everything."""
    kept = _kept(home, file.path)
    kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = kept.with_name(f"{kept.name}.{secrets.token_hex(4)}")
    beside.touch(mode=0o600)
    beside.write_bytes(msgspec.json.encode(_Trusted(os.path.realpath(file.path), file.digest)))
    beside.replace(kept)


def distrust(home: Path, path: Path) -> bool:
    """Forget it; False if it was not trusted."""
    try:
        _kept(home, path).unlink()
    except FileNotFoundError:
        return False
    return True


def trusted(home: Path, file: File) -> bool:
    try:
        found = msgspec.json.decode(_kept(home, file.path).read_bytes(), type=_Trusted)
    except (OSError, msgspec.MsgspecError):
        return False
    return found == _Trusted(os.path.realpath(file.path), file.digest)


def _kept(home: Path, path: Path) -> Path:
    return home / "trusted" / hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()
