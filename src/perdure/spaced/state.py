"""The state folder: who this Space is, over all lives of its supervisor.

`lock` is held for as long as a supervisor lives. `identity.json` names the generation: it is made anew when the kernel was started again or the root is
another directory, because the ledger then proves nothing; the number of the life only grows, also over generations.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import Any

from perdure.spaced import durable
from perdure.spaced.boot import boot_id

TOKEN_FILE = "token"
_IDENTITY = "identity.json"
_OF_A_GENERATION = ("ledger", "stamp", "outputs")


class HeldError(Exception):
    """Another supervisor lives in this folder, or another Space's holds the root (`what`)."""

    def __init__(self, what: str, path: str) -> None:
        super().__init__("the %s %s is held by another supervisor" % (what, path))
        self.what = what


def lock(path: str, what: str, *, folder: bool = False) -> int:
    """An exclusive lock until the descriptor is closed; HeldError if somebody has it."""
    flags = os.O_RDONLY | os.O_DIRECTORY if folder else os.O_RDWR | os.O_CREAT
    fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(fd)
        raise HeldError(what, path) from error
    return fd


def next_life(folder: str, root_fd: int, root: str, custody: str) -> dict[str, Any]:
    """The identity of this life, written before anything else may refer to it. The lock is held."""
    found = os.fstat(root_fd)
    here = {"boot_id": boot_id(), "root": root, "device": found.st_dev, "inode": found.st_ino}
    old = _read(folder)
    if {name: old.get(name) for name in here} != here:
        for name in _OF_A_GENERATION:
            _remove(os.path.join(folder, name))
        old = {"generation": os.urandom(16).hex(), "ledger_id": os.urandom(16).hex(), "instance": old.get("instance", 0)}
    identity = {**old, **here, "instance": old["instance"] + 1, "custody": custody}
    durable.replace(os.path.join(folder, _IDENTITY), json.dumps(identity).encode())
    return identity


def _read(folder: str) -> dict[str, Any]:
    try:
        with open(os.path.join(folder, _IDENTITY)) as file:
            return dict(json.load(file))
    except (FileNotFoundError, ValueError):
        return {}


def _remove(path: str) -> None:
    if os.path.isdir(path):
        for name in os.listdir(path):
            os.unlink(os.path.join(path, name))
        os.rmdir(path)
    elif os.path.exists(path):
        os.unlink(path)
