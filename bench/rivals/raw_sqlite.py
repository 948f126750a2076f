"""A loop written by hand that keeps its messages in SQLite, WAL with synchronous=FULL: the floor of what a durable turn costs."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from bench.rivals.program import deploy, main, note


def _loop(folder: Path, calls: int, tool: Callable[[], str], seen: Callable[[list[str]], None] = lambda messages: None) -> str:
    log = sqlite3.connect(folder / "log.db", isolation_level=None)
    log.executescript("pragma journal_mode=wal; pragma synchronous=full; create table if not exists log(message text);")
    messages = [text for (text,) in log.execute("select message from log order by rowid")]

    def add(text: str) -> None:
        log.execute("insert into log values (?)", (text,))
        messages.append(text)

    if not messages:
        add("user: go")
    while True:
        if not messages[-1].startswith("call: "):
            seen(messages)
            if sum(message.startswith("result: ") for message in messages) == calls:
                add("done")
                return messages[-1]
            add("call: " + json.dumps({"tool": "deploy"}))
        add("result: " + tool())


def _crash(folder: Path) -> str:
    return _loop(folder, 1, lambda: deploy(folder), lambda messages: note(folder, messages))


def _turns(folder: Path, count: int) -> list[float]:
    marks: list[float] = []
    _loop(folder, count, lambda: marks.append(time.perf_counter()) or "ok")  # type: ignore[func-returns-value]
    return marks


if __name__ == "__main__":
    main(_crash, _turns)
