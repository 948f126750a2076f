"""Processes in the driver's place. Each ends with all of its group when the driver does, however that comes."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path


@asynccontextmanager
async def child(
    command: Callable[[int], Sequence[str]], directory: str | None, environment: Mapping[str, str]
) -> AsyncIterator[Process]:
    """Runs what `command` says, which is given the descriptor by which the process knows that its driver lives (`life`).

    Its three streams are pipes. It is killed with its group if it has not ended when the `with` does. OSError where it can't be started.
    """
    with life() as alive:
        process = await asyncio.create_subprocess_exec(
            *command(alive),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=directory,
            env=environment,
            start_new_session=True,
            pass_fds=[alive],
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                with suppress(ProcessLookupError):  # it has ended, and the loop is not told yet
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


@contextmanager
def life() -> Iterator[int]:
    """The reading end of a pipe whose other end is this process's alone: it ends when this process does, however that comes."""
    end, alive = os.pipe()
    try:
        yield end
    finally:
        os.close(end)
        os.close(alive)


def importing() -> dict[str, str]:
    """The variable that lets a Python process import what this one can; with -P nothing else: the directory that it works in is the project's."""
    return {"PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
