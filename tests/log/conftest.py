"""Peers: other processes at the same home."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


class Peer:
    """`ask` waits for the answer, `tell` does not; `heard` is the next line, empty once the process is gone."""

    def __init__(self, home: Path) -> None:
        script = Path(__file__).with_name("peer.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), str(home)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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
def peer() -> Iterator[Callable[[Path], Peer]]:
    peers: list[Peer] = []

    def start(home: Path) -> Peer:
        peers.append(Peer(home))
        return peers[-1]

    yield start
    for each in peers:
        each.end()
