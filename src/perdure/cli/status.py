"""What a session is doing, as `ls` and others say it: the row of the store, and whether the driver it names lives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from msgspec import Struct

from perdure.cli.opening import spelled
from perdure.engine import lease, places
from perdure.log.store import SessionRow

APPROVAL = "approval"
NEEDS_DRIVER = "needs_driver"

ANSWERS = {"keep": "changed_after_crash", "restore": "changed_after_crash", "accept": "survivors"}
"""What each answer of a person is an answer to."""


class Status(Struct, frozen=True):
    """`waiting_for` is a stable word; `pid` is the living driver's (0: it lives in another PID namespace)."""

    status: Literal["running", "waiting", "settled", "failed"]
    waiting_for: str | None = None
    detail: str = ""
    pid: int | None = None


def status_of(home: Path, row: SessionRow) -> Status:
    """`home` is its folder. A driver that died without letting go leaves its session waiting for another one."""
    if row.held_by is not None:
        pid = lease.holder(places.driver_lock(home, row.session), row.epoch)
        return Status("running", pid=pid) if pid is not None else Status("waiting", NEEDS_DRIVER)
    if row.needs_driver or row.rest.status == "running":
        return Status("waiting", NEEDS_DRIVER)
    return Status(row.rest.status, row.rest.waiting_for, row.rest.detail)


_ANSWERS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "changed_after_crash": (("--keep", "keeps such files as they are"), ("--restore", "puts them back as before the call")),
    "survivors": (("--accept", "goes on all the same"),),
}


def answers(session: str, waiting_for: str | None) -> list[str]:
    """The commands that end the wait, and what each does."""
    lines = [f"{spelled('resume', session, option)}   {meaning}" for option, meaning in _ANSWERS.get(waiting_for or "", ())]
    if lines:
        return lines
    if waiting_for == APPROVAL:
        return [
            f"{spelled('approve', session)} CALL   allows it",
            f"{spelled('deny', session)} CALL   does not; then {spelled('resume', session)}",
        ]
    if waiting_for == "root_replaced":
        return [f"{spelled('resume', session)}   once it is back", f"{spelled('abandon', session)}   gives the session up"]
    return [spelled("resume", session)]
