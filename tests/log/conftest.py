"""Peers: other processes at the same home."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class Peer:
    """`ask` waits for the answer, `tell` does not; `heard` is the next line, empty once the process is gone."""

    def __init__(self, home: Path, *trace: Path) -> None:
        script = Path(__file__).with_name("peer.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(home), *map(str, trace)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.heard() == "ready"

    @property
    def pid(self) -> int:
        return self.process.pid

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def heard(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, line: str) -> str:
        self.tell(line)
        return self.heard()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A folder in memory where there is one: for sweeps over hundreds of homes, whose subject is not what a sync costs."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="perdure-", dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def peer() -> Iterator[Callable[..., Peer]]:
    peers: list[Peer] = []

    def start(home: Path, *trace: Path) -> Peer:
        peers.append(Peer(home, *trace))
        return peers[-1]

    yield start
    for each in peers:
        each.end()
