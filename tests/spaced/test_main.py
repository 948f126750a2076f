"""The supervisor as a program of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import perdure.spaced

SPACED = Path(perdure.spaced.__file__).parent


def run(*arguments: str, program: Path = SPACED, python: str = sys.executable) -> subprocess.CompletedProcess[bytes]:
    command = [python, "-I", "-S", str(program), *arguments]
    return subprocess.run(command, capture_output=True, timeout=30, check=False, env={"PATH": os.environ["PATH"]})


def test_it_needs_nothing_but_its_own_folder_and_the_standard_library(tmp_path: Path) -> None:
    shutil.copytree(SPACED, tmp_path / "spaced", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "file").write_text("content")
    (tmp_path / "state").mkdir()
    done = run("--scan", str(tmp_path / "root"), str(tmp_path / "state"), program=tmp_path / "spaced")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["entries"] == 1


def test_a_scan_changes_nothing_and_says_what_a_supervisor_would(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").write_text("content")
    (root / "json.py").write_text("raise SystemExit('imported from the workspace')")
    before = {path: path.stat().st_mtime_ns for path in [root, *root.iterdir()]}
    images = []
    for state in ("one", "two"):
        (tmp_path / state).mkdir()
        images.append(json.loads(run("--scan", str(root), str(tmp_path / state)).stdout)["image"])
    assert images[0]["tree"] == images[1]["tree"]
    assert {path: path.stat().st_mtime_ns for path in [root, *root.iterdir()]} == before


def test_it_explains_itself() -> None:
    done = run("--epoch", "1")
    assert done.returncode != 0
    assert b"spaced STATE ROOT" in done.stderr
