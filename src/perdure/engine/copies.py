"""Workspaces that Perdure made: copies of a directory, one a session, in the home.

    <home>/copies/<session>/origin.json      which directory it is a copy of
    <home>/copies/<session>/<name>/          the workspace, named as the directory is

A copy is made under a name of its own, and takes the session's once it is complete and on the disk; the session is made after that. Who makes one holds a
lock on its folder, so what nobody holds and no session has was left by somebody who died, and goes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from perdure.log.store import LogStore, SessionId
from perdure.record.errors import StoreFullError, UsageError
from perdure.space.copying import Cancelled, Copied, copy
from perdure.spaced.durable import sync
from perdure.spaced.steps import step

FOLDER = "copies"
_MAKING = ".making-"
_GOING = ".removed-"
_ORIGIN = "origin.json"


class Origin(Struct, frozen=True):
    """The directory that was copied, and what there is to say about that."""

    directory: str
    copied: Copied = Copied()


def folder(home: Path, session: SessionId) -> Path:
    return home / FOLDER / session


def origin(home: Path, session: SessionId) -> Origin | None:
    """None where the session has no copy."""
    try:
        return msgspec.json.decode((folder(home, session) / _ORIGIN).read_bytes(), type=Origin)
    except FileNotFoundError:
        return None


@asynccontextmanager
async def made(home: Path, store: LogStore, session: SessionId, source: Path) -> AsyncIterator[Path]:
    """A copy of the directory for a session to be made inside of the `with`; without one it goes again.

    UsageError where the session exists, or the directory can't be copied; StoreFullError where there is no room.
    """
    (home / FOLDER).mkdir(mode=0o700, parents=True, exist_ok=True)
    await sweep(home, store)
    if session in {row.session for row in await store.rows()}:
        raise UsageError(f"there is already a session {session}")
    making, lock = _begun(home)
    place = folder(home, session)
    try:
        step("copy.begin")
        copied = await _copied(source, making / source.name)
        (making / _ORIGIN).write_bytes(msgspec.json.encode(Origin(str(source), copied)))
        sync(making)
        step("copy.complete")
        try:
            making.rename(place)
        except OSError as error:
            raise UsageError(f"session {session} is being made by another process; choose another name") from error
        sync(place.parent)
        making = place
        step("copy.named")
        yield place / source.name
    finally:
        if session not in {row.session for row in await store.rows()}:
            await asyncio.to_thread(_clear, making)
        os.close(lock)


async def sweep(home: Path, store: LogStore) -> None:
    """Remove what was left of copies whose makers died, and of removed ones."""
    for found in (home / FOLDER).iterdir() if (home / FOLDER).is_dir() else ():
        try:
            lock = os.open(found, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if found.name not in {row.session for row in await store.rows()}:
                await asyncio.to_thread(_clear, found)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


async def remove(home: Path, session: SessionId) -> None:
    """The session's copy, if it has one. Nothing outside of the home is touched."""
    going = home / FOLDER / f"{_GOING}{secrets.token_hex(8)}"
    with contextlib.suppress(FileNotFoundError):
        folder(home, session).rename(going)
        await asyncio.to_thread(_clear, going)


def remake(workspace: Path, lost_inode: int) -> None:
    """A workspace in the place of one that is gone; its files come out of the log. What stands there instead, and is not empty, is filled.

    It is never the lost inode again: what a Space remembers of that one is not true of the new one.
    """
    workspace.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if workspace.is_symlink() or (workspace.exists() and not workspace.is_dir()):
        workspace.rename(workspace.with_name(f"{workspace.name}.{secrets.token_hex(4)}"))
    if workspace.is_dir() and any(workspace.iterdir()):
        return
    tried: list[Path] = []
    while not tried or tried[-1].stat().st_ino == lost_inode:
        tried.append(workspace.with_name(f"{_MAKING}{secrets.token_hex(8)}"))
        tried[-1].mkdir(mode=0o700)
    tried.pop().rename(workspace)
    for spare in tried:
        spare.rmdir()


def _begun(home: Path) -> tuple[Path, int]:
    """A folder to make a copy in, and the lock on it."""
    while True:
        making = home / FOLDER / f"{_MAKING}{secrets.token_hex(8)}"
        making.mkdir(mode=0o700)
        try:
            lock = os.open(making, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError):
            if making.stat().st_ino == os.fstat(lock).st_ino:
                return making, lock
        os.close(lock)


async def _copied(source: Path, target: Path) -> Copied:
    """Off the loop; who is cancelled waits until nothing is written any more."""
    gone = threading.Event()
    work = asyncio.ensure_future(asyncio.to_thread(copy, source, target, cancelled=gone.is_set))
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        gone.set()
        with contextlib.suppress(Cancelled, OSError, UsageError):
            await work
        raise
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StoreFullError(
                f"no room for a copy of {source}: {error.strerror}; make room, or work in place without --copy"
            ) from error
        raise UsageError(f"{source} can't be copied: {error}; mend that, or work in place without --copy") from error


def _clear(path: Path) -> None:
    """As far as that is allowed; links are removed, never followed."""
    for at, names, _ in os.walk(path):  # top down: each is opened before it is entered
        for below in (Path(at, name) for name in names):
            with contextlib.suppress(OSError):
                if not below.is_symlink():
                    below.chmod(0o700)
    shutil.rmtree(path, ignore_errors=True)
