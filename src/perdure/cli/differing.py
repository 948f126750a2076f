"""`diff`: the files of one record against those of another, from the log alone."""

from __future__ import annotations

import asyncio
import re
import sys

import click

from perdure.api import Session
from perdure.cli.opening import DIRECTORY, named, opened
from perdure.history.diff import Change, Diff, Limits, render
from perdure.history.diff import diff as compare_images
from perdure.history.line import Line, plain
from perdure.history.paint import Paint
from perdure.record import records as r
from perdure.record.errors import UsageError
from perdure.record.records import Image, Seq

RANGE = re.compile(r"(\d*)\.\.(\d*)")


@click.command
@click.argument("words", nargs=-1, metavar="[SESSION] [A..B]")
@DIRECTORY
@click.option("--stat", is_flag=True, help="Only the paths, and how many lines came and went.")
def diff(words: tuple[str, ...], directory: str | None, stat: bool) -> None:
    """Show what changed in the files.

    A and B are numbers of records, as `perdure log` shows them: the files as they were then. Left out, A is the beginning of the session and B its
    newest record. What others changed in the directory and the log doesn't know yet is not in it; `perdure verify` finds that.
    """
    ranges = [found for word in words if (found := RANGE.fullmatch(word))]
    names = [word for word in words if not RANGE.fullmatch(word)]
    if len(ranges) > 1 or len(names) > 1:
        raise UsageError("give one session and one range: `perdure diff SESSION 12..40`")
    first, last = (int(end) if end else None for end in ranges[0].groups()) if ranges else (None, None)
    asyncio.run(_diff(names[0] if names else None, directory, first, last, stat))


async def _diff(name: str | None, directory: str | None, first: Seq | None, last: Seq | None, stat: bool) -> None:
    async with opened() as home:
        lines = await shown_diff(await named(home, name, directory), first, last, stat=stat)
    if lines is None:
        print("nothing was changed yet", file=sys.stderr)
    paint = Paint(sys.stdout)
    for line in lines or ():
        print(paint.text(line.style, line.text))


async def shown_diff(session: Session, first: Seq | None, last: Seq | None, *, stat: bool = False) -> list[Line] | None:
    """From the files at record `first` (None: at the beginning) to those at `last` (None: now). None where there are no files yet."""
    images = [(stored.seq, image) async for stored in session.records() if (image := image_of(stored.body)) is not None]
    newest = (await session.row()).last_seq
    for seq in (first, last):
        if seq is not None and not 1 <= seq <= newest:
            raise UsageError(f"session {session.id} has records 1 to {newest}, not {seq}")
    if not images:
        return None
    before = images[0][1] if first is None else _at(images, first)
    found = await compare_images(before, _at(images, last or newest), session.home.store.blobs.get, Limits())
    return _stat(found) if stat else list(render(found))


def image_of(body: r.Body) -> Image | None:
    """The workspace's image as this record has it."""
    match body:
        case r.WorkspaceChanged(image=image) | r.SpaceRestored(to_image=image):
            return image
        case r.CallFinished(image=image):
            return image
        case _:
            return None


def _at(images: list[tuple[Seq, Image]], seq: Seq) -> Image:
    """The newest image at that record; before the first one the files are those of the first."""
    return next((image for at, image in reversed(images) if at <= seq), images[0][1])


def _stat(found: Diff) -> list[Line]:
    widest = max((len(change.path) for change in found.changes), default=0)
    lines = [Line("model", f"{plain(change.path):<{min(widest, 80)}}  {_numbers(change)}") for change in found.changes]
    total = len(found.changes) + found.more
    return [*lines, Line("session", f"{total:,} path{'' if total == 1 else 's'} changed")]


def _numbers(change: Change) -> str:
    plus = sum(line.startswith("+") for line in change.lines)
    minus = sum(line.startswith("-") for line in change.lines)
    counted = f"+{plus} -{minus}" if plus or minus else ", ".join(change.notes)
    return counted if change.kind == "modified" else f"{change.kind} {counted}"
