"""`apply`: a session's changes, brought into the directory that it is a copy of."""

from __future__ import annotations

import asyncio
import functools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from perdure.api import Applied, Opened, Session
from perdure.cli.opening import named, opened, session_argument, spelled
from perdure.cli.telling import json_line
from perdure.engine import copies
from perdure.history.line import plain
from perdure.history.paint import Paint

SHOWN = 200
CONFLICTS = 1


WHERE = click.option(
    "-C",
    "directory",
    metavar="DIR",
    help="The directory to bring them into; without SESSION, the one whose newest copy is meant.",
)


@click.command
@functools.partial(session_argument, directory=WHERE)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@click.option("--only", multiple=True, metavar="PATH", help="Bring this path and what lies below it; may be repeated.")
@click.option(
    "--ours", multiple=True, metavar="PATH", help="Where it is a conflict, leave what the directory has; may be repeated."
)
@click.option(
    "--theirs", multiple=True, metavar="PATH", help="Where it is a conflict, take what the session has; may be repeated."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object: paths, merged, removed, conflicts.")
def apply(session: str | None, directory: str | None, as_json: bool, **wish: Any) -> int:
    """Bring a session's changes home.

    What the session changed goes into the directory it is a copy of, or into another one (-C DIR). What was changed on both sides is merged, where that is text
    and the changes are apart; else it is a conflict: the directory keeps its version, and exit code 1 says so. Commits made in the copy are for `git fetch`.
    """
    return asyncio.run(_apply(session, directory, as_json, **wish))


async def _apply(name: str | None, directory: str | None, as_json: bool, **wish: Any) -> int:
    async with opened() as home:
        session = await _meant(home, name, directory)
        applied = await session.apply(directory if name else None, **wish)
    if as_json:
        print(json_line(msgspec.to_builtins(applied)))
    else:
        _show(session.id, applied, dry_run=wish["dry_run"])
    return CONFLICTS if applied.conflicts else 0


async def _meant(home: Opened, name: str | None, directory: str | None) -> Session:
    """Without a name the newest session in a copy of the directory."""
    if name:
        return await named(home, name, None)
    root = os.path.realpath(Path(directory or ".").expanduser())
    for row in await home.sessions():
        origin = copies.origin(home.home.path, row.session)
        if origin is not None and origin.directory == root:
            return Session(home.home, row.session)
    return await named(home, None, directory)


def _show(session: str, applied: Applied, *, dry_run: bool) -> None:
    paint = Paint(sys.stdout)
    if applied.at_work:
        print(f"perdure: session {session} is at work; what it had at its last call is taken", file=sys.stderr)
    merged = set(applied.merged)
    lines = [
        *((path, "merged" if path in merged else "applied") for path in applied.paths),
        *((path, "removed") for path in applied.removed),
    ]
    for path, what in sorted(lines)[:SHOWN]:
        print(paint.text("minus" if what == "removed" else "plus", f"{what:<8} {plain(path)}"))
    if len(lines) > SHOWN:
        print(f"and {len(lines) - SHOWN:,} more paths")
    for conflict in applied.conflicts:
        print(paint.text("failure", f"conflict {plain(conflict.path)}: {conflict.why}"))
        if conflict.theirs:
            print(f"         the session's version: {plain(conflict.theirs)}")
    print(paint.text("session", _summary(applied, lines, dry_run=dry_run)))
    if applied.conflicts:
        print(
            f"{spelled('apply', session, '--theirs', 'PATH')}   takes the session's version, --ours PATH keeps yours",
            file=sys.stderr,
        )
    if applied.fetch:
        print(f"it made commits; git fetch {plain(applied.fetch)} brings them", file=sys.stderr)


def _summary(applied: Applied, lines: Sequence[object], *, dry_run: bool) -> str:
    count, conflicts = len(lines), len(applied.conflicts)
    if not count and not conflicts:
        return f"nothing to apply: {plain(applied.directory)} has it all"
    words = f"{count:,} path{'' if count == 1 else 's'} {'to apply' if dry_run else 'applied'} in {plain(applied.directory)}"
    return words + (
        f", {conflicts:,} {'conflict, left as it is' if conflicts == 1 else 'conflicts, left as they are'}" if conflicts else ""
    )
