"""`ls`."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

import click
import msgspec

from perdure.cli.opening import opened_store
from perdure.cli.status import Status, status_of
from perdure.engine.places import home_path
from perdure.history.line import Style, plain
from perdure.history.paint import Paint
from perdure.log.store import LogStore, SessionRow


@click.command
@click.option("--json", "as_json", is_flag=True, help="A JSON object a session and line.")
def ls(as_json: bool) -> None:
    """List the sessions, and what each waits for.

    A session is running, waiting (for a named reason), settled or failed. One whose driver died before it was done waits for `needs_driver`:
    `perdure resume` goes on with it.
    """
    asyncio.run(_ls(as_json))


async def _ls(as_json: bool) -> None:
    async with await opened_store() as store:
        rows = sorted(await store.rows(), key=lambda row: row.changed_at, reverse=True)
        listed = [(row, await _directory(store, row), status_of(home_path(), row)) for row in rows]
    if as_json:
        for row, directory, status in listed:
            print(msgspec.json.encode(_described(row, directory, status)).decode())
    elif listed:
        _table(listed)
    else:
        print("no sessions yet; `perdure run` starts one", file=sys.stderr)


async def _directory(store: LogStore, row: SessionRow) -> str | None:
    binding = await store.binding(row.session)
    return binding.directory if binding else None


def _described(row: SessionRow, directory: str | None, status: Status) -> dict[str, object]:
    return {
        "session": row.session,
        "dir": directory,
        "status": status.status,
        "waiting_for": status.waiting_for,
        "detail": status.detail,
        "driver": status.pid,
        "epoch": row.epoch,
        "records": row.last_seq,
        "created_at": row.created_at,
        "changed_at": row.changed_at,
    }


_STYLES: dict[str, Style] = {"running": "call", "waiting": "workspace", "settled": "model", "failed": "failure"}


def _table(listed: list[tuple[SessionRow, str | None, Status]]) -> None:
    paint = Paint(sys.stdout)
    names = max(len(row.session) for row, _, _ in listed)
    now = time.time()
    for row, directory, status in listed:
        said = f"{status.status} for {status.waiting_for}" if status.waiting_for else status.status
        shown = paint.text(_STYLES[status.status], f"{said:<28}")
        print(f"{row.session:<{names}}  {shown}  {_ago(now - row.changed_at):>8}  {_short(directory)}")


def _short(directory: str | None) -> str:
    if directory is None:
        return "(no directory on this machine)"
    path, home = Path(directory), Path.home()
    return plain(f"~/{path.relative_to(home)}" if path != home and path.is_relative_to(home) else directory)


def _ago(seconds: float) -> str:
    """How long ago, in one number: `40 s`, `5 min`, `3 h`, `2 d`."""
    for limit, unit, size in ((100, "s", 1), (6000, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{max(0.0, seconds) / size:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"
