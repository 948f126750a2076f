"""`salvage`: what recovery took back is stored as an image of its own, and can be listed, looked at and brought back.

Nothing is ever written over: `apply` makes a new folder, and puts the files there under the names that they had.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
from msgspec import Struct

from perdure.api import Session
from perdure.cli.opening import DIRECTORY, named, opened, session_argument, spelled
from perdure.history.compare import compare
from perdure.history.diff import render, told
from perdure.history.line import listed, plain
from perdure.history.paint import Paint
from perdure.record import records as r
from perdure.record.errors import UsageError
from perdure.record.parts import Digest
from perdure.record.records import Seq
from perdure.space import image
from perdure.spaced import tree
from perdure.spaced.restore import QUARANTINE
from perdure.spaced.tree import Entry

ID_CHARS = 12


class Salvaged(Struct, frozen=True):
    """`root` is the digest of the image's tree; `call` is the call that was undone, None for files that a power cut tore."""

    root: Digest
    seq: Seq
    call: str | None
    taken_back: tuple[str, ...]

    @property
    def id(self) -> str:
        return self.root[:ID_CHARS]


@click.group
def salvage() -> None:
    """List, show and bring back what recovery took away.

    Before recovery undoes a call in the files, it stores everything that would be lost by it.
    """


@salvage.command("ls")
@session_argument
def ls(session: str | None, directory: str | None) -> None:
    """List what was salvaged: id, record, call, paths. Files that were too large to be stored were moved into the home, and are listed with their place."""
    asyncio.run(_with(session, directory, _list))


@salvage.command("diff")
@click.argument("id")
@session_argument
def diff(id: str, session: str | None, directory: str | None) -> None:
    """Show the salvaged files against what the log has of them now."""
    asyncio.run(_with(session, directory, lambda found: _show(found, id)))


@salvage.command("apply")
@click.argument("id")
@click.argument("session", required=False)
@DIRECTORY
@click.option("--to", "folder", metavar="FOLDER", help="A new folder for the files; by default ./salvage-ID.")
def apply(id: str, session: str | None, directory: str | None, folder: str | None) -> None:
    """Write the salvaged files into a new folder, to copy from by hand."""
    asyncio.run(_with(session, directory, lambda found: _apply(found, id, folder)))


async def _with(name: str | None, directory: str | None, work: Callable[[Session], Awaitable[None]]) -> None:
    async with opened() as home:
        await work(await named(home, name, directory))


async def _salvages(session: Session) -> list[Salvaged]:
    """Each once, under the first record that names it."""
    found: dict[Digest, Salvaged] = {}
    async for stored in session.records():
        match stored.body:
            case (
                r.Recovered(salvage=str(root), call=call, taken_back=paths)
                | r.SpaceRestored(salvage=str(root), call=call, taken_back=paths)
            ):
                found.setdefault(root, Salvaged(root, stored.seq, call, paths))
            case _:
                pass
    return list(found.values())


async def _one(session: Session, id: str) -> Salvaged:
    salvages = await _salvages(session)
    found = [salvaged for salvaged in salvages if id and salvaged.root.startswith(id)]
    if len(found) == 1:
        return found[0]
    which = f"names {len(found)} of them" if found else "is none of them"
    raise UsageError(f"'{plain(id)}' {which}; session {session.id} has {len(salvages)}: {spelled('salvage', 'ls', session.id)}")


async def _list(session: Session) -> None:
    salvages = await _salvages(session)
    for salvaged in salvages:
        print(f"{salvaged.id}  {salvaged.seq:>5}  {salvaged.call or 'power cut':<12}  {listed(salvaged.taken_back)}")
    aside = sorted(_aside(session))
    for path in aside:
        print(f"{plain(str(path))}  was too large to be stored, and was moved there")
    if not salvages and not aside:
        print("nothing was ever taken back in this session", file=sys.stderr)


def _aside(session: Session) -> list[Path]:
    """Files that recovery moved out of the directory; they belong to whoever takes them away."""
    folder = session.home.spaces.folder(session.id) / "workspace" / QUARANTINE
    return [Path(at, name) for at, _, names in os.walk(folder) for name in names]


async def _show(session: Session, id: str) -> None:
    salvaged, source = await _one(session, id), session.home.store.blobs.get
    newest = (await session.state()).workspace.image
    kept = {path async for path, _ in image.walk(salvaged.root, source)}
    found = [d for d in await compare(newest.tree if newest else None, salvaged.root, source) if d.path in kept]
    paint = Paint(sys.stdout)
    for line in render(await told(found, source)):
        print(paint.text(line.style, line.text))


async def _apply(session: Session, id: str, folder: str | None) -> None:
    salvaged = await _one(session, id)
    to = Path(folder or f"salvage-{salvaged.id}").expanduser().absolute()
    try:
        to.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"{to} can't be made: {error.strerror}; name a new folder with --to") from error
    files = 0
    async for path, entry in image.walk(salvaged.root, session.home.store.blobs.get):
        await _write(session, to / os.fsdecode(path), entry)
        files += entry.kind != tree.DIRECTORY
    print(f"{files:,} file{'' if files == 1 else 's'} in {to}")


async def _write(session: Session, path: Path, entry: Entry) -> None:
    """One entry of the image; its directory came before. Links are made, never followed."""
    if entry.kind == tree.DIRECTORY:
        path.mkdir(mode=0o700)
    elif entry.kind == tree.LINK:
        path.symlink_to(os.fsdecode(entry.target))
    else:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            await image.fill(fd, entry, session.home.store.blobs.get)
            os.fchmod(fd, entry.mode & 0o777)
        finally:
            os.close(fd)
