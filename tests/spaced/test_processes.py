"""What the kernel tells of processes."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.spaced import processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def test_a_process_is_found_below_its_parent_with_its_start() -> None:
    child = subprocess.Popen(["sleep", "60"])
    try:
        (row,) = [row for row in processes.descendants(processes.table(), [os.getpid()]) if row.pid == child.pid]
        assert row.parent == os.getpid()
        assert not processes.send(row._replace(start="0"), signal.SIGKILL)
        assert child.poll() is None
        assert processes.send(row, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        assert not processes.send(row, signal.SIGKILL)
    finally:
        child.kill()
        child.wait()


def test_a_name_full_of_parentheses_confuses_nobody(tmp_path: Path) -> None:
    program = tmp_path / "a) R 1 (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([str(program), "60"])
    try:
        assert processes.table()[child.pid].parent == os.getpid()
        assert processes.command(child.pid) == f"{program} 60"
    finally:
        child.kill()
        child.wait()


def test_listening_ports_are_known_by_process() -> None:
    with socket.socket() as listening, socket.socket() as bound:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        bound.bind(("127.0.0.1", 0))
        assert processes.ports([os.getpid()]) == {os.getpid(): [listening.getsockname()[1]]}
        assert processes.ports([]) == {}


def test_hot_is_what_can_still_be_written(tmp_path: Path) -> None:
    paths = {name: tmp_path / name for name in ("written", "read", "mapped", "closed")}
    for path in paths.values():
        path.write_bytes(b"x" * 4096)
    identity = {name: (path.stat().st_dev, path.stat().st_ino) for name, path in paths.items()}
    with open(paths["written"], "ab"), open(paths["read"], "rb"):
        with open(paths["mapped"], "r+b") as file:
            mapped = mmap.mmap(file.fileno(), 0)
        found = processes.hot([os.getpid()]) & set(identity.values())
        mapped.close()
    assert found == {identity["written"], identity["mapped"]}
