"""Search, with ripgrep and without: the same lines, bounded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.spaced import search


@pytest.fixture(params=["ripgrep", "python"])
def programs(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "ripgrep":
        if not shutil.which("rg"):
            pytest.skip("needs ripgrep")
        return os.environ["PATH"]
    return str(tmp_path / "nowhere")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name, content in {
        "a.py": "import os\nprint(os)\n",
        "sub/b.py": "import sys\r\n",
        "sub/c.txt": "import nothing\n",
        ".hidden": "import hidden\n",
        ".git/config": "import git\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content.encode())
    (root / "binary").write_bytes(b"import\0import")
    os.mkfifo(root / "fifo")
    return root


def run(root: Path, programs: str, **request: Any) -> tuple[int, list[str]]:
    command = [sys.executable, "-I", "-S", search.__file__, json.dumps(request)]
    done = subprocess.run(command, cwd=root, env={"PATH": programs}, capture_output=True, text=True, timeout=20)
    assert not done.stderr
    return done.returncode, done.stdout.splitlines()


def test_matches_are_told_with_file_and_line(root: Path, programs: str) -> None:
    assert run(root, programs, pattern="^import [a-z]+$") == (
        0,
        [".hidden:1:import hidden", "a.py:1:import os", "sub/b.py:1:import sys", "sub/c.txt:1:import nothing"],
    )


def test_path_and_glob_narrow(root: Path, programs: str) -> None:
    assert run(root, programs, pattern="import", path="sub", glob="*.py") == (0, ["sub/b.py:1:import sys"])
    assert run(root, programs, pattern="import", path="a.py") == (0, ["a.py:1:import os"])


def test_output_is_bounded(root: Path, programs: str) -> None:
    (root / "many").write_text("match\n" * 1000 + "match" + "x" * 10_000 + "\n")
    code, lines = run(root, programs, pattern="match", limit=5)
    assert code == 0
    assert len(lines) == 6
    assert "more than 5 matching lines" in lines[-1]
    assert max(map(len, run(root, programs, pattern="x+$", path="many")[1])) < 600


def test_nothing_found_and_nonsense_are_told_apart(root: Path, programs: str) -> None:
    assert run(root, programs, pattern="nowhere to be found") == (1, ["[nothing found]"])
    code, lines = run(root, programs, pattern="(")
    assert code == 2
    assert "not a regular expression" in lines[0]
    assert run(root, programs, pattern="x", path="missing") == (2, ["there is no missing"])


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may read everything")
def test_what_may_not_be_read_is_passed_over(root: Path, programs: str) -> None:
    for number in range(600):  # more complaints than a pipe holds
        (root / f"{'closed' * 20}{number}").mkdir(mode=0)
    powerless = [shutil.which("setpriv") or "", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
    command = [*powerless, sys.executable, "-I", "-S", search.__file__, json.dumps({"pattern": "nowhere to be found"})]
    done = subprocess.run(command, cwd=root, env={"PATH": programs}, capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stdout, done.stderr) == (1, "[nothing found]\n", "")
