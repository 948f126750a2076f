"""Processes that outlived a supervisor that had no namespace.

They are known by what their command started with: its call key in the environment (Linux), or its process group. A process that dropped both is not
found, which is why nothing here is a proof.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Mapping

from perdure.spaced import processes
from perdure.spaced.processes import Row

PATIENCE_S = 2.0
PAUSE_S = 0.01


def end(groups: Mapping[str, int | None], own: set[int]) -> list[tuple[Row, str]]:
    """Kill what carries one of the keys; (process, key) of what is still there afterwards. `groups`: process group by key."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        found = _find(groups, own)
        sure = [row for row, _, marked in found if marked]
        if not sure or time.monotonic() > deadline:
            return [(row, key) for row, key, _ in found]
        for row in sure:
            processes.send(row, signal.SIGKILL)
        time.sleep(PAUSE_S)


def _find(groups: Mapping[str, int | None], own: set[int]) -> list[tuple[Row, str, bool]]:
    by_group = {group: key for key, group in groups.items() if group is not None}
    found = []
    for row in processes.table().values():
        if row.pid in own or row.pid == os.getpid() or row.zombie:
            continue
        key = processes.call_key(row.pid)
        if key is not None and key in groups:
            found.append((row, key, True))
        elif key is None and not processes.LINUX and row.group in by_group:
            found.append((row, by_group[row.group], False))
    return found
