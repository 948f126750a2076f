"""The machine's own prices: a sync of a small append, and a bare process."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figure import Figure, median

SYNCS = 200
SPAWNS = 100


def measure(folder: Path) -> Iterator[Figure]:
    syncs = _syncs_ms(folder / "sync")
    yield Figure("machine", "append 4 KiB and fdatasync", median(syncs), "ms", samples=tuple(syncs))
    spawns = spawns_ms()
    yield Figure("machine", "bash -c true", median(spawns), "ms", samples=tuple(spawns))


def spawns_ms(count: int = SPAWNS) -> list[float]:
    """A bare process, started and waited for."""
    found = []
    for _ in range(count):
        began = time.perf_counter()
        subprocess.run(["bash", "-c", "true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        found.append((time.perf_counter() - began) * 1000)
    return found


def _syncs_ms(path: Path) -> list[float]:
    found = []
    sync = getattr(os, "fdatasync", os.fsync)
    with open(path, "ab", buffering=0) as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(bytes(4096))
            sync(file.fileno())
            found.append((time.perf_counter() - began) * 1000)
    return found
