"""What is left of a run that nobody disturbed: made once, doctored by each test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from perdure.chaos.evidence import Evidence

SEED = 5


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Evidence:
    return calm_run(tmp_path_factory.mktemp("undisturbed"))


def calm_run(folder: Path, *arguments: str) -> Evidence:
    """In a process of its own, since drivers are forked from whoever makes a world."""
    command = [sys.executable, "-m", "tests.chaos.calm", str(SEED), str(folder), *arguments]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    return msgspec.msgpack.decode((folder / "evidence").read_bytes(), type=Evidence)
