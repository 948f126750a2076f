"""Function tools that do what functions do: answer, fail, hang, wait, print."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from pathlib import Path


def hang(mark: str) -> str:
    """Never ends by itself."""
    Path(mark).write_text(f"{os.getpid()}")
    time.sleep(600)
    return "never"


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    print("adding")
    subprocess.run(["echo", "still adding"], check=True)
    return a + b


def fail(why: str) -> str:
    """Raise an error."""
    raise ValueError(why)


async def double(text: str) -> str:
    """Say it twice."""
    await asyncio.sleep(0)
    return text * 2


def leave() -> str:
    """End the process."""
    os._exit(3)


def die() -> str:
    """Be killed."""
    os.kill(os.getpid(), 9)
    return "never"


def where() -> dict[str, str | None]:
    """The directory, the call's key and a secret."""
    return {"cwd": str(Path.cwd()), "key": os.environ.get("PERDURE_CALL_KEY"), "secret": os.environ.get("OPENAI_API_KEY")}


def long(size_bytes: int) -> str:
    """So many bytes in lines of ten."""
    return "123456789\n" * (size_bytes // 10)


def meet(folder: str, me: str, other: str, then_s: float = 0.0) -> str:
    """Ends only when its twin has begun."""
    (Path(folder) / me).touch()
    while not (Path(folder) / other).exists():
        time.sleep(0.01)
    time.sleep(then_s)
    return f"{me} met {other}"


def make(name: str) -> str:
    """Make a file in the working directory."""
    Path(name).write_text("made\n")
    return name


def untyped(a, b: int = 1):  # type: ignore[no-untyped-def]
    """No tool."""
    return a, b


def scribble(path: str, size_bytes: int) -> str:
    """Write random bytes to a file, and a line to one beside the directory."""
    Path(path).write_bytes(os.urandom(size_bytes))
    with open("../scribbled", "a") as file:
        file.write("once\n")
    return "scribbled"
