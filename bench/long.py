"""A session of 2,000 turns in a small window: how long its requests and its turns become, how often it is summed up, and whether every output can be read.

The model refuses what is above its window, so a single request that is too long would show. A turn is timed from answer to answer:
the call, its commits, and the next request.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figure import Figure, median
from perdure.api import Opened
from perdure.drive.events import Event, Recorded
from perdure.drive.virtual import Virtual
from perdure.engine.home import Home
from perdure.model.scripted import Scripted
from perdure.model.stream import Context, Request, ToolMessage
from perdure.record import records as r
from perdure.record.parts import text_of

TURNS, EARLY, AROUND, WINDOW, CHARS, READ = 2000, 100, 40, 16_000, 1200, 50


class _Run:
    """`numbers` are those of the turns, between which summaries have theirs; `answered` when each had its answer; `asked` the tokens of each request."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.answered: dict[int, float] = {}
        self.asked: list[int] = []
        self.compacted = self.overflows = self.readable = 0

    def turn_ms(self, n: int) -> float:
        return (self.answered[self.numbers[n + 1]] - self.answered[self.numbers[n]]) * 1000


class _Measured(Scripted):
    def __init__(self, path: Path, asked: list[int]) -> None:
        super().__init__(path)
        self._asked = asked

    def prepare(self, context: Context) -> Request:
        said = sum(len(m.text if isinstance(m, ToolMessage) else text_of(m.parts)) for m in context.messages)
        self._asked.append((said + len(context.system)) // 4)
        return super().prepare(context)


def measure(folder: Path, *, turns: int = TURNS) -> Iterator[Figure]:
    run = asyncio.run(_session(folder, turns))
    early = [run.turn_ms(n) for n in range(EARLY, EARLY + AROUND)]
    late = [run.turn_ms(n) for n in range(turns - AROUND, turns)]
    yield Figure("long", f"longest request of {turns} turns in a window of {WINDOW}", max(run.asked), "tokens", f"< {WINDOW}")
    yield Figure("long", "requests that were too long", run.overflows, "", "0")
    yield Figure("long", "summaries", run.compacted, "")
    yield Figure("long", f"a turn at {EARLY}, from answer to answer", median(early), "ms", "", tuple(early))
    yield Figure("long", f"a turn at {turns}", median(late), "ms", "", tuple(late))
    yield Figure("long", f"turn {turns} against turn {EARLY}", median(late) / median(early), "times", "about 1")
    yield Figure("long", f"of {READ} outputs all over, readable whole", run.readable, "", f"{READ}")


async def _session(folder: Path, turns: int) -> _Run:
    run = _Run()
    root, script = folder / "long", folder / "long.json"
    root.mkdir()
    calls = [
        {"tool": "bash", "args": {"command": f"printf 'n%05d ' {n}; head -c {CHARS} /dev/zero | tr '\\0' x"}}
        for n in range(turns)
    ]
    script.write_text(json.dumps({"turns": [*({"calls": [call]} for call in calls), {"text": "done"}], "window": WINDOW}))
    home = await Home.open(folder / "home")
    try:
        model = f"scripted:{script}"
        session = await Opened(home).session("long", directory=root, model=model, model_options={"context_tokens": WINDOW})
        measured = _Measured(script, run.asked)
        home.models = lambda _: lambda name: measured  # type: ignore[method-assign, assignment]

        def note(event: Event) -> None:
            match event:
                case Recorded(stored):
                    _note(run, stored.body)
                case _:
                    pass

        await session.run("go", emit=note)
        state = await session.state()
        virtual = Virtual(home.store)
        for n in range(0, turns, max(1, turns // READ)):
            read = await virtual.read(state, session.id, {"path": f"output:main.{run.numbers[n]}.0"})
            run.readable += read.ok and read.text.startswith(f"n{n:05d} ") and len(read.text) >= CHARS
    finally:
        await home.close()
    return run


def _note(run: _Run, body: r.Body) -> None:
    match body:
        case r.ModelResponded(turn=turn):
            run.numbers.append(turn)
            run.answered[turn] = time.perf_counter()
        case r.Compacted():
            run.compacted += 1
        case r.ModelFailed():
            run.overflows += 1
        case _:
            pass
