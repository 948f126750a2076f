"""`verify`: the directory against the log, by a scan that changes nothing.

The scan is the supervisor's own, in a process of its own with a folder of its own, so it can't be mistaken in the same way as what it checks: it
takes no cache, and hashes every byte.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import msgspec
from msgspec import Struct

from perdure.api import Session
from perdure.cli.opening import named, opened, session_argument
from perdure.cli.telling import json_line
from perdure.history.compare import compare
from perdure.history.line import plain
from perdure.history.paint import Paint
from perdure.record.errors import PerdureError, UsageError
from perdure.record.parts import Digest, printable
from perdure.record.records import Image
from perdure.space.launch import spaced_command
from perdure.spaced.staging import Staging

SHOWN = 50
UNEQUAL = 1


class Verified(Struct, frozen=True):
    """`image` and `log_image` are the digests of the trees; `differing` are paths. `opaque` were left out of both."""

    image: Digest
    log_image: Digest | None
    equal: bool
    record: int = 0
    differing: tuple[str, ...] = ()
    opaque: tuple[str, ...] = ()
    entries: int = 0


class _Scanned(Struct, frozen=True):
    image: Image
    opaque: tuple[str, ...] = ()
    entries: int = 0


@click.command
@session_argument
@click.option("--json", "as_json", is_flag=True, help="One JSON object: image, log_image, equal, and the paths that differ.")
def verify(session: str | None, directory: str | None, as_json: bool) -> int:
    """Check that the directory is what the log says.

    Every byte is looked at; exit code 1 if it is not. While a call runs, or after somebody edited files, it is not; the session finds that out by itself
    before its next call.
    """
    return asyncio.run(_verify(session, directory, as_json))


async def _verify(name: str | None, directory: str | None, as_json: bool) -> int:
    async with opened() as home:
        session = await named(home, name, directory)
        verified = await _compared(session)
    if as_json:
        print(json_line(msgspec.to_builtins(verified)))
    else:
        _show(verified)
    return 0 if verified.equal else UNEQUAL


async def _compared(session: Session) -> Verified:
    state = await session.state()
    logged, root = state.workspace.image, await session.directory()
    if not Path(root).is_dir():
        raise UsageError(f"{root}, the directory of session {session.id}, is not there")
    with tempfile.TemporaryDirectory(prefix="verify-", dir=session.home.path) as folder:
        scanned = await _scan(
            root, folder, logged, state.session.exclude, own=bool(state.session.created and state.session.created.copy)
        )
        differing: tuple[str, ...] = ()
        if logged is not None and not scanned.image.same_files(logged):
            found = await compare(logged.tree, scanned.image.tree, _either(session, Staging(f"{folder}/staging")))
            differing = tuple(printable(os.fsdecode(difference.path)) for difference in found)
    return Verified(
        scanned.image.tree,
        logged.tree if logged else None,
        logged is not None and scanned.image.same_files(logged),
        state.workspace.image_seq,
        differing,
        scanned.opaque,
        scanned.entries,
    )


async def _scan(root: str, folder: str, base: Image | None, exclude: tuple[str, ...], *, own: bool) -> _Scanned:
    known = ["--base", msgspec.json.encode(base).decode()] if base else []
    known += ["--exclude", msgspec.json.encode(exclude).decode()] if exclude else []
    known += ["--own"] if own else []
    child = await asyncio.create_subprocess_exec(
        *spaced_command("--scan", root, folder, *known), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, errors = await child.communicate()
    if child.returncode != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-1:]
        raise PerdureError(f"{root} can't be scanned: {last[0] if last else f'exit code {child.returncode}'}")
    return msgspec.json.decode(out, type=_Scanned)


def _either(session: Session, staging: Staging) -> Any:
    """Chunks from the log, else from what the scan met."""

    async def source(digests: Iterable[Digest]) -> Mapping[Digest, bytes]:
        wanted = list(digests)
        found = await session.home.store.blobs.get(wanted)
        return found | {digest: staging.read(digest) for digest in wanted if digest not in found}

    return source


def _show(verified: Verified) -> None:
    paint = Paint(sys.stdout)
    for path in verified.differing[:SHOWN]:
        print(paint.text("minus", f"differs: {plain(path)}"))
    if len(verified.differing) > SHOWN:
        print(f"and {len(verified.differing) - SHOWN:,} more paths")
    if verified.opaque:
        print(f"not looked at, as in the log: {', '.join(map(plain, verified.opaque[:SHOWN]))}")
    image = verified.image[:16]
    if verified.log_image is None:
        print(paint.text("failure", f"the log holds no image yet; the directory is {image}"))
    elif verified.equal:
        print(paint.text("plus", f"equal: {image}, {verified.entries:,} entries, the image of record {verified.record}"))
    else:
        print(
            paint.text(
                "failure", f"not equal: {image} in the directory, {verified.log_image[:16]} in the log (record {verified.record})"
            )
        )
