"""A turn of one call, `bash true`, at the beginning of a session and after a thousand turns; its syncs and its bytes.

The turn is timed from one `turn_started` to the next, as its driver sees them become durable. What the scripted model took is measured beside it and
taken off, and so is a bare process. Syncs are counted in a VFS that passes everything on.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import apsw

from bench.figure import Figure, median
from bench.machine import spawns_ms
from perdure.api import Opened
from perdure.drive.events import Event, Recorded
from perdure.engine.home import Home
from perdure.log.live import LiveText
from perdure.log.sqlite import SqliteStore
from perdure.model.scripted import Scripted
from perdure.model.stream import Delta, Final, Request
from perdure.record import records as r

EARLY, LATE, AROUND = 10, 1000, 20


def measure(folder: Path, *, late: int = LATE) -> Iterator[Figure]:
    run = asyncio.run(_session(folder, late + AROUND + 1))
    spawn_ms = median(spawns_ms())
    early = [run.turn_ms(n) - spawn_ms for n in range(EARLY - 5, EARLY - 5 + AROUND)]
    at_end = [run.turn_ms(n) - spawn_ms for n in range(late - AROUND, late + AROUND)]
    turns = late + AROUND - 1
    yield Figure("turn", f"one call at turn {EARLY}, above model and spawn", median(early), "ms", "≤ 2.5", tuple(early))
    yield Figure("turn", f"one call at turn {late}, above model and spawn", median(at_end), "ms", "", tuple(at_end))
    yield Figure("turn", f"turn {late} against turn {EARLY}", median(at_end) / median(early), "times", "about 1")
    yield Figure("turn", "processor time of driver and model a turn", run.cpu_s * 1000 / turns, "ms", "")
    yield Figure("turn", f"memory of the driver after turn {late} against turn {EARLY}", run.grown_bytes / 2**20, "MiB more", "")
    yield Figure("turn", "syncs of commits a turn", run.syncs["log.db-wal"] / turns, "", "2")
    yield Figure("turn", "syncs of checkpoints a turn", (run.syncs.total() - run.syncs["log.db-wal"]) / turns, "", "")
    yield Figure("turn", "log.db and chunks.db grow a turn by", run.bytes / turns, "bytes", "")


class _Run:
    """`syncs`, by file, and `cpu_s` are those from the second turn's start to the last one's; `bytes` is what the whole session added to the store.

    `grown_bytes` is what the driver's process, which the scripted model is in, grew by from turn 10 on.
    """

    def __init__(self) -> None:
        self.started: dict[int, float] = {}
        self.model_ms: dict[int, float] = {}
        self.syncs: Counter[str] = Counter()
        self.bytes = 0
        self.cpu_s = 0.0
        self.grown_bytes = 0

    def turn_ms(self, n: int) -> float:
        return (self.started[n + 1] - self.started[n]) * 1000 - self.model_ms[n]


async def _session(folder: Path, turns: int) -> _Run:
    run = _Run()
    counting = _Counting()
    root = folder / "turns"
    root.mkdir()
    script = folder / "turns.json"
    call = {"tool": "bash", "args": {"command": "true"}}
    script.write_text(json.dumps({"turns": [{"calls": [call]}] * turns + [{"text": "done"}]}))
    async with _home(folder / "home", counting) as home:
        session = await Opened(home).session("turns", directory=root, model=f"scripted:{script}")
        model = _Timed(script, run.model_ms)
        home.models = lambda _: lambda name: model  # type: ignore[method-assign, assignment]
        before_bytes = _size_bytes(home.path)

        def note(event: Event) -> None:
            if isinstance(event, Recorded) and isinstance(event.stored.body, r.TurnStarted):
                run.started[event.stored.body.turn] = time.perf_counter()
                if event.stored.body.turn == 2:
                    counting.count.clear()
                    run.cpu_s = -time.process_time()
                if event.stored.body.turn == EARLY:
                    run.grown_bytes = -_resident_bytes()
                if event.stored.body.turn == turns:
                    run.syncs = counting.count.copy()
                    run.cpu_s += time.process_time()
                    run.grown_bytes += _resident_bytes()

        await session.run("go", emit=note)
        run.bytes = _size_bytes(home.path) - before_bytes
    return run


class _Timed(Scripted):
    """Notes how long its answers take, by turn."""

    def __init__(self, path: Path, took_ms: dict[int, float]) -> None:
        super().__init__(path)
        self._took_ms = took_ms

    @asynccontextmanager
    async def stream(self, request: Request, deadline_s: float) -> AsyncIterator[AsyncIterator[Delta | Final]]:
        began = time.perf_counter()
        async with super().stream(request, deadline_s) as events:
            yield events
        self._took_ms[request.context.responses + 1] = (time.perf_counter() - began) * 1000


@asynccontextmanager
async def _home(path: Path, counting: _Counting) -> AsyncIterator[Home]:
    store = await SqliteStore.open(path, vfs=counting.vfs_name)
    live = await LiveText.open(path, vfs=counting.vfs_name)
    home = Home(path, store, live, os.environ, time.time)
    try:
        yield home
    finally:
        await home.close()


def _resident_bytes() -> int:
    """At its greatest so far; macOS counts in bytes, Linux in KiB."""
    found = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return found if sys.platform == "darwin" else found * 1024


def _size_bytes(home: Path) -> int:
    """What the store holds once its WALs are written back."""
    total = 0
    for name in ("log.db", "chunks.db"):
        connection = apsw.Connection(str(home / name))
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        total += connection.pragma("page_count") * connection.pragma("page_size")
        connection.close()
    return total


class _Counting(apsw.VFS):
    """`count` has the syncs of each file by its name."""

    def __init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.vfs_name = "counting"
        super().__init__(self.vfs_name, "")

    def xOpen(self, name: apsw.URIFilename | str | None, flags: list[int]) -> _CountingFile:
        return _CountingFile(self.count, name, flags)


class _CountingFile(apsw.VFSFile):
    def __init__(self, count: Counter[str], name: apsw.URIFilename | str | None, flags: list[int]) -> None:
        super().__init__("", name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        self._count, self._name = count, Path(path or "temporary").name

    def xSync(self, flags: int) -> None:
        self._count[self._name] += 1
        super().xSync(flags)
