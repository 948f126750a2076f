"""In continuous integration nothing is silently left out: a skip whose reason starts with "needs " fails there.

On a laptop without bubblewrap or on macOS such a skip is honest. On the machine that decides whether a change lands, it would hide that a
guarantee went untested.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest

IN_CI = any(os.environ.get(name, "").lower() in {"1", "true", "yes"} for name in ("PERDURE_CI", "CI"))


def _fail_if_needed(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not IN_CI or report.outcome != "skipped" or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    reason = reason.removeprefix("Skipped: ")
    if reason.startswith("needs "):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where every test must run: {reason}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _fail_if_needed(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _fail_if_needed(report)
    return report
