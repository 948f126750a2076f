"""The directory that changes are applied to: which one it is, and that nobody else works there meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from perdure.engine import copies, places
from perdure.engine.home import Home
from perdure.log import checks
from perdure.log.store import Binding, SessionId
from perdure.record.errors import RootRefusedError, UsageError
from perdure.space import neighbour
from perdure.spaced import state
from perdure.spaced.state import HeldError

LOCK_S = 10.0
RETRY_S = 0.1


async def target(home: Home, session: SessionId, directory: str | os.PathLike[str] | None) -> Path:
    binding, origin = await home.store.binding(session), copies.origin(home.path, session)
    if directory is None and origin is None:
        raise UsageError(f"session {session} works in place: its changes are there already; name another directory with -C")
    root = places.check_root(directory if directory is not None else origin.directory if origin else ".", home.path)
    if binding is not None and str(root) == binding.directory:
        raise UsageError(f"session {session} works in {root}: its changes are there already")
    return root


@asynccontextmanager
async def locked(home: Home, session: SessionId, root: Path) -> AsyncIterator[None]:
    """The directory is nobody's else meanwhile. RootRefusedError where a session has work open there, naming it."""
    await _free(home, session, root)
    fd = await _lock(home, root)
    try:
        await _free(home, session, root)
        yield
    finally:
        with contextlib.suppress(OSError):
            os.close(fd)


async def _lock(home: Home, root: Path) -> int:
    """A supervisor that has nothing to do leaves; another apply is waited for."""
    patience = time.monotonic() + LOCK_S
    while True:
        try:
            return state.lock(str(root), "workspace", folder=True)
        except HeldError as error:
            try:
                await neighbour.ask_to_leave(home.path / "spaces", root, str(error))
            except RootRefusedError:
                if time.monotonic() > patience:
                    raise
                await asyncio.sleep(RETRY_S)


async def _free(home: Home, session: SessionId, root: Path) -> None:
    here = root.stat()
    mine = Binding(session, str(root), here.st_dev, here.st_ino)
    for row in await home.store.rows():
        if row.rest.busy and row.session != session and (other := await home.store.binding(row.session)) is not None:
            checks.root_free(mine, other)
