"""What a person waits for before anything happens: an import, and a list of sessions."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figure import Figure, median
from perdure.api import open

RUNS = 15
SESSIONS = 50


def measure(folder: Path) -> Iterator[Figure]:
    home = folder / "ls"
    asyncio.run(_sessions(folder, home))
    commands = {
        "python -c pass": ["-c", "pass"],
        "import perdure": ["-c", "import perdure"],
        "import perdure, and open": ["-c", "import perdure; perdure.open"],
        f"perdure ls, {SESSIONS} sessions": ["-m", "perdure.cli.main", "ls"],
    }
    for name, arguments in commands.items():
        took_ms = [_run_ms(arguments, home) for _ in range(RUNS)]
        yield Figure(
            "starting", name, median(took_ms), "ms", "< 100 above python" if name == "import perdure" else "", tuple(took_ms)
        )


def _run_ms(arguments: list[str], home: Path) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], env={"PERDURE_HOME": str(home)}, stdout=subprocess.DEVNULL, check=True)
    return (time.perf_counter() - began) * 1000


async def _sessions(folder: Path, home: Path) -> None:
    script = folder / "none.json"
    script.write_text(json.dumps({"turns": []}))
    async with open(home) as opened:
        for n in range(SESSIONS):
            root = folder / f"ls-{n}"
            root.mkdir()
            await opened.session(f"s{n}", directory=root, model=f"scripted:{script}")
