"""SIGKILL for everything in the middle of a tool, then the same program again: what becomes of the effect, of the tree, of the run.

The tool has an effect outside of the tree and leaves half of a change in it. Afterwards it is counted how often the effect happened, looked whether the
model was told that the first one is uncertain, and whether the tree was put back before anything went on. And what a turn of one call costs everyone.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from math import nan
from pathlib import Path

from bench import turns
from bench.figure import Figure, median
from bench.rivals.program import AGAIN, BEFORE, EFFECTS, FOUND, HALF, SEEN, TREE
from perdure.api import Opened, Session, open
from perdure.record import records as r

REPOSITORY = Path(__file__).parent.parent
PYTHON = Path(os.environ.get("PERDURE_RIVALS") or REPOSITORY / "build" / "rivals" / "bin" / "python")
INSTALL = "not installed: `make rivals`"
RIVALS = {
    "raw_sqlite": "a loop of one's own on SQLite",
    "langgraph_sqlite": "LangGraph, SQLite checkpointer",
    "pydantic_plain": "pydantic-ai alone",
    "pydantic_dbos": "pydantic-ai, DBOS on SQLite",
}
NO_SERVER = {
    "Temporal": "needs its own server, which no Python package brings",
    "Absurd": "needs a PostgreSQL server and upstream's schema",
}
TURNS = 60
LIMIT_S = 60.0
TOLD = ("unknown", "interrupt", "may have", "uncertain")


def measure(folder: Path, *, count: int = TURNS, rivals: Sequence[str] = tuple(RIVALS)) -> Iterator[Figure]:
    yield from crashes(folder, rivals)
    yield from turn_costs(folder, count, rivals)


def _has(module: str) -> bool:
    """Whether the rival can be imported where rivals are installed."""
    command = [str(PYTHON), "-c", f"import bench.rivals.{module}"]
    return PYTHON.exists() and subprocess.run(command, cwd=REPOSITORY, stderr=subprocess.DEVNULL).returncode == 0


# ---- the crash ---------------------------------------------------------------------------------------------------------------


def crashes(folder: Path, rivals: Sequence[str]) -> Iterator[Figure]:
    yield _crash(folder / "perdure", "perdure", [sys.executable, "-m", "bench.crash_table"])
    for module in rivals:
        if _has(module):
            yield _crash(folder / module, RIVALS[module], [str(PYTHON), "-m", f"bench.rivals.{module}", "crash"])
        else:
            yield Figure("killed in a tool", RIVALS[module], nan, "", note=INSTALL)
    for name, why in NO_SERVER.items():
        yield Figure("killed in a tool", name, nan, "", note=why)


def _crash(folder: Path, name: str, command: list[str]) -> Figure:
    (folder / TREE).mkdir(parents=True)
    (folder / TREE / "file").write_text(BEFORE)
    first = _start(folder, command)
    try:
        _wait(lambda: (folder / TREE / "file").read_text() == HALF, first)
    finally:
        _kill(folder, first)
    (folder / SEEN).unlink(missing_ok=True)
    (folder / AGAIN).touch()
    began = time.perf_counter()
    second = _start(folder, command)
    try:
        out, errors = second.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        out, errors = "", "not done in time"
    finally:
        took_s = time.perf_counter() - began
        _kill(folder, second)
    done = out.splitlines()[-1:] == ["done"]
    found = folder / FOUND if (folder / FOUND).exists() else folder / TREE / "file"
    seen = (folder / SEEN).read_text().lower() if (folder / SEEN).exists() else ""
    note = [
        f"effect {(folder / EFFECTS).read_text().count('effect')} ×",
        "model told" if any(word in seen for word in TOLD) else "model not told",
        "tree put back" if found.read_text() == BEFORE else "tree left half changed",
        "finished by itself" if done else f"not finished: {(out + errors).strip().splitlines()[-1:]}",
    ]
    return Figure("killed in a tool", name, took_s if done else nan, "s", note=", ".join(note))


def _start(folder: Path, command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*command, str(folder)],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def _kill(folder: Path, process: subprocess.Popen[str]) -> None:
    """The program with its process group, and, ours having one, the supervisor with all that it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    if (folder / "home").exists() and (supervisor := asyncio.run(_supervisor(folder))) is not None:
        os.kill(supervisor, signal.SIGKILL)
    process.communicate()


# ---- ours --------------------------------------------------------------------------------------------------------------------


async def _supervisor(folder: Path) -> int | None:
    """Of the session's Space, where it lives."""
    async with open(folder / "home") as home:
        space = (await (await home.session("crash")).state()).workspace.space
        if space is None:
            return None
        try:
            os.kill(space.init.pid, 0)
        except ProcessLookupError:
            return None
        return space.init.pid


async def _go_on(folder: Path) -> str:
    async with open(folder / "home") as home:
        answer = await (await _session(home, folder)).run("go", request_id="go")
        session = await home.session("crash")
        told = [stored.body async for stored in session.records() if isinstance(stored.body, r.CallFinished)]
        (folder / SEEN).write_text(str(told))
        return answer.text


async def _session(home: Opened, folder: Path) -> Session:
    if any(row.session == "crash" for row in await home.sessions()):
        return await home.session("crash")
    effects, again = (shlex.quote(str(folder / name)) for name in (EFFECTS, AGAIN))
    command = f"echo effect >> {effects}; printf '{HALF}' > file; while [ ! -e {again} ]; do sleep 0.05; done"
    script = folder / "crash.json"
    script.write_text(json.dumps({"turns": [{"calls": [{"tool": "bash", "args": {"command": command}}]}, {"text": "done"}]}))
    return await home.session("crash", directory=folder / TREE, model=f"scripted:{script}")


# ---- a turn ------------------------------------------------------------------------------------------------------------------


def turn_costs(folder: Path, count: int, rivals: Sequence[str]) -> Iterator[Figure]:
    """Ours runs a command and captures the tree; theirs runs a Python function that does nothing."""
    place = folder / "perdure-turns"
    place.mkdir()
    ours = next(iter(turns.measure(place, late=count)))
    yield ours._replace(part="turn of one call", name="perdure, above model and spawn", note="a command, and its tree captured")
    for module in rivals:
        if not _has(module):
            yield Figure("turn of one call", RIVALS[module], nan, "", note=INSTALL)
            continue
        place = folder / f"{module}-turns"
        place.mkdir()
        command = [str(PYTHON), "-m", f"bench.rivals.{module}", "turns", str(place), str(count)]
        out = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True)
        took_ms = tuple(json.loads(out.stdout.splitlines()[-1]))
        value, keeps = median(took_ms), "keeps nothing" if module == "pydantic_plain" else ""
        yield Figure("turn of one call", RIVALS[module], value, "ms", "", took_ms, value / ours.value, "perdure's", keeps)


def _wait(there: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + LIMIT_S
    while not there():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"{process.args!r} did not reach its tool")
        time.sleep(0.02)
    time.sleep(0.2)  # the middle of the tool, and not its first instant


if __name__ == "__main__":
    print(asyncio.run(_go_on(Path(sys.argv[1]))), flush=True)
