"""In continuous integration a test that lacks what it needs fails; elsewhere it is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent / "conftest.py"
TESTS = """
import pytest

@pytest.mark.skipif(True, reason="needs a unicorn")
def test_by_mark(): ...

def test_in_the_middle():
    pytest.skip("needs a unicorn")

def test_for_another_reason():
    pytest.skip("only on Tuesdays")

@pytest.mark.xfail(reason="needs a unicorn")
def test_known_to_fail():
    assert False
"""
MODULE = """
import pytest
pytest.skip("needs a unicorn", allow_module_level=True)
"""


def outcome(directory: Path, ci: str | None) -> tuple[int, str]:
    shutil.copy(CONFTEST, directory / "conftest.py")
    environ = {k: v for k, v in os.environ.items() if k not in {"CI", "PERDURE_CI"} and not k.startswith("PYTEST_")}
    if ci is not None:
        environ["PERDURE_CI"] = ci
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", str(directory)],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize("ci", [None, "0"])
def test_elsewhere_a_missing_need_is_a_skip(tmp_path: Path, ci: str | None) -> None:
    (tmp_path / "test_needs.py").write_text(TESTS)
    code, summary = outcome(tmp_path, ci)
    assert code == 0 and "3 skipped" in summary and "1 xfailed" in summary, summary


def test_in_ci_a_missing_need_fails_and_other_skips_stay(tmp_path: Path) -> None:
    (tmp_path / "test_needs.py").write_text(TESTS)
    code, summary = outcome(tmp_path, "1")
    assert code == 1 and "1 failed" in summary and "1 error" in summary, summary  # a mark's skip fails in set-up
    assert "1 skipped" in summary and "1 xfailed" in summary, summary


def test_in_ci_a_module_that_skips_itself_fails(tmp_path: Path) -> None:
    (tmp_path / "test_module.py").write_text(MODULE)
    code, summary = outcome(tmp_path, "1")
    assert code != 0 and "1 error" in summary, summary
