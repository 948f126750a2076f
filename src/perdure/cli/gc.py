"""`gc`: room that nothing needs any more."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

import click

from perdure.api import Opened
from perdure.cli.opening import opened
from perdure.cli.sizes import shown_bytes
from perdure.config.quantities import age_s, size_bytes
from perdure.engine import collecting
from perdure.engine.collecting import Collected, Old
from perdure.record.errors import ConflictError, SessionBusyError, StaleEpochError


def _read(by: Callable[[str], float]) -> Callable[[click.Context, click.Parameter, str | None], float | None]:
    """The option's value, which may not be given."""

    def read(context: click.Context, option: click.Parameter, value: str | None) -> float | None:
        try:
            return None if value is None else by(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return read


def _configured(key: str) -> Callable[[], str | None]:
    """What the user's own perdure.toml says, where the option is not given."""

    def default() -> str | None:
        from perdure.config.file import read, user_path

        file = read(user_path(os.environ))
        return file.values.get(key) if file else None

    return default


@click.command
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option(
    "--older-than",
    "older_s",
    callback=_read(age_s),
    default=_configured("retention.older_than"),
    metavar="AGE",
    help="First remove settled sessions unchanged for so long: 30d, 12h.",
)
@click.option(
    "--keep-bytes",
    callback=_read(size_bytes),
    default=_configured("retention.keep_bytes"),
    metavar="SIZE",
    help="First remove settled sessions, oldest first, until the rest fits: 500MB, 5GiB.",
)
def gc(dry_run: bool, older_s: float | None, keep_bytes: int | None) -> None:
    """Free the room that no session needs any more.

    What `[retention]` of your perdure.toml says holds where an option is not given.

    Sessions may be at work meanwhile. Sessions with open work, running or waiting, are never removed.
    """
    asyncio.run(_gc(dry_run, older_s, keep_bytes))


async def _gc(dry_run: bool, older_s: float | None, keep_bytes: int | None) -> None:
    async with opened() as home:
        going = await collecting.old(home.home, older_s=older_s, keep_bytes=keep_bytes)
        for each in going:
            await _remove(home, each, dry_run)
        _tell(await home.collect(dry_run=dry_run), dry_run, going)


async def _remove(home: Opened, old: Old, dry_run: bool) -> None:
    size = "" if old.bytes is None else f", {shown_bytes(old.bytes)}"
    changed = time.strftime("%Y-%m-%d", time.localtime(old.row.changed_at))
    if not dry_run:
        try:
            await home.remove(old.row.session)
        except (SessionBusyError, ConflictError, StaleEpochError) as error:
            print(f"session {old.row.session} stays: {error}")
            return
    print(f"{'would remove' if dry_run else 'removed'} session {old.row.session} (last changed {changed}{size})")


def _tell(collected: Collected, dry_run: bool, going: list[Old]) -> None:
    what = f"{collected.chunks:,} chunk{'' if collected.chunks == 1 else 's'}, {shown_bytes(collected.bytes)}"
    if dry_run:
        print(f"would collect {what}" + (", and what only those sessions need" if going else ""))
    else:
        print(f"collected {what}; the disk got {shown_bytes(collected.freed_bytes)} back")
