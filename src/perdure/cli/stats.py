"""`stats`: what sessions took, by day, session or model."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import click
import msgspec

from perdure.cli.opening import DIRECTORY, named, opened
from perdure.history.line import duration, plain
from perdure.history.spending import spending
from perdure.history.statistics import Taken, add, items

if TYPE_CHECKING:
    from perdure.api import Opened, Session

DAY_S = 86400.0


@click.command
@click.argument("session", required=False)
@DIRECTORY
@click.option(
    "--by", type=click.Choice(("day", "session", "model")), help="What a line is for; by default day, and session for several."
)
@click.option("--days", type=click.IntRange(1), metavar="N", help="Only the last N days.")
@click.option("--json", "as_json", is_flag=True, help="A JSON object a line.")
def stats(session: str | None, directory: str | None, by: str | None, days: int | None, as_json: bool) -> None:
    """Show what sessions took: tokens, what they cost, and time.

    Without SESSION and -C: all sessions of the home. Times are of this machine's time zone. A cost is by the price list of the day of each request.
    """
    asyncio.run(_stats(session, directory, by, days, as_json))


async def _stats(name: str | None, directory: str | None, by: str | None, days: int | None, as_json: bool) -> None:
    async with opened() as home:
        sessions = [await named(home, name, directory)] if name or directory else await _all(home)
        grouped = by or ("session" if len(sessions) > 1 else "day")
        groups = await _groups(sessions, grouped, time.time() - days * DAY_S if days else 0.0)
    if as_json:
        for key, taken in groups.items():
            print(msgspec.json.encode({grouped: key, **msgspec.to_builtins(taken)}).decode())
    elif groups:
        _table(groups, calls=grouped != "model")
    else:
        print("nothing was asked or done yet", file=sys.stderr)


async def _all(home: Opened) -> list[Session]:
    from perdure.api import Session

    return [Session(home.home, row.session) for row in await home.sessions()]


async def _groups(sessions: list[Session], by: str, since: float) -> dict[str, Taken]:
    """Days in their order, sessions the newest first, models as they came."""
    groups: dict[str, Taken] = {}
    for session in sessions:
        async for item in items(session.records()):
            if item.at < since or (by == "model" and not item.model):
                continue
            day = time.strftime("%Y-%m-%d", time.localtime(item.at))
            add(groups, {"day": day, "session": session.id, "model": item.model}[by], item.taken)
    return dict(sorted(groups.items())) if by == "day" else groups


def _table(groups: Mapping[str, Taken], *, calls: bool) -> None:
    """`calls`: they are the session's, and no model's."""
    rows = [(plain(key), *_cells(taken, calls=calls)) for key, taken in groups.items()]
    if len(rows) > 1:
        rows.append(("together", *_cells(sum(groups.values(), Taken()), calls=calls)))
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for key, *cells, spent in rows:
        print(
            "  ".join(
                [f"{key:<{widths[0]}}", *(f"{cell:>{width}}" for cell, width in zip(cells, widths[1:-1], strict=True)), spent]
            )
        )


def _cells(taken: Taken, *, calls: bool) -> list[str]:
    failed = f" ({taken.failed:,} failed)" if taken.failed else ""
    asked, model = _count(taken.requests, "request") + failed, f"model {duration(taken.model_s)}"
    if not calls:
        return [asked, model, spending(taken.tokens)]
    return [f"{asked}, {_count(taken.calls, 'call')}", model, f"calls {duration(taken.calls_s)}", spending(taken.tokens)]


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
