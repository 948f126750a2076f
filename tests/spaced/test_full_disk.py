"""A call that filled the disk can be taken back although the disk is full."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spaced.world import World, now_ns, window

DISK_BYTES = 4 << 20


@pytest.fixture
def small(tmp_path: Path) -> Iterator[World]:
    """A workspace on a disk of its own."""
    root = tmp_path / "root"
    root.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "none", str(root)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting needs root")
    try:
        yield World(tmp_path)
    finally:
        subprocess.run(["umount", "--lazy", str(root)], check=True)


def fill(path: Path) -> None:
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(os.urandom(1 << 16))


def test_what_filled_the_disk_is_taken_back(small: World) -> None:
    before = small.put("kept", os.urandom(DISK_BYTES // 3)).read_bytes()
    small.commit()
    with window() as lost:
        small.put("kept", b"x" * (DISK_BYTES // 3))
        fill(small.root / "fill")
    small.workspace = small.open()  # another supervisor: the one that ran the call is dead
    small.undo(lost)
    assert (small.root / "kept").read_bytes() == before
    assert os.listdir(small.root) == ["kept"]


def test_an_undo_that_finds_no_room_leaves_no_half_of_a_file_and_goes_on_when_there_is_some(small: World) -> None:
    before = small.put("kept", os.urandom(DISK_BYTES // 2)).read_bytes()
    small.commit()
    with window() as lost:
        small.put("kept", b"x" * (DISK_BYTES // 3))
    now_ns()
    fill(small.root / "mine")
    with pytest.raises(OSError, match="No space left"):
        small.undo(lost)
    assert sorted(os.listdir(small.root)) == ["kept", "mine"]
    (small.root / "mine").unlink()
    small.undo(lost)
    assert (small.root / "kept").read_bytes() == before
