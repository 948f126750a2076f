"""Processes that outlived a supervisor that had no namespace.

On Linux they are known by the Space and call key that their command started with, in the environment, and killed. One that dropped it is
not found, and elsewhere an environment can't be read: which is why nothing here is a proof.
"""

from __future__ import annotations

import os
import signal
import time
from typing import AbstractSet

from perdure.spaced import processes
from perdure.spaced.processes import Row

PATIENCE_S = 2.0
PAUSE_S = 0.01


def end(keys: AbstractSet[str], generation: str, own: AbstractSet[int]) -> list[tuple[Row, str]]:
    """Kill what carries one of the keys; (process, key) of what is still there after two seconds."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = _find(keys, generation, own)
        if not found or time.monotonic() > deadline:
            return found
        for row, _ in found:
            processes.send(row, signal.SIGKILL)
        time.sleep(PAUSE_S)


def _find(keys: AbstractSet[str], generation: str, own: AbstractSet[int]) -> list[tuple[Row, str]]:
    found = []
    for row in processes.table().values():
        key = processes.marked(row.pid, generation) if not row.zombie else None
        if key is not None and key in keys and row.pid not in own and row.pid != os.getpid():
            found.append((row, key))
    return found
