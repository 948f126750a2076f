"""Runs one hook that is a function: `python -m perdure.program.hookhost NAME LIFE`, its struct as JSON on standard input.

LIFE is as in `toolhost`: the process ends with its driver. What the function prints goes to standard error; what it returns is the answer.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import sys
import threading
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import msgspec

from perdure.program.hooks import GROUP, Event, Ruling
from perdure.program.toolhost import awaited, end_with


def main(name: str, life: int, source: bytes) -> int:
    os.set_inheritable(life, False)
    threading.Thread(target=end_with, args=(life,), daemon=True).start()
    answer = os.dup(1)
    os.dup2(2, 1)
    try:
        result = _function(name)(msgspec.json.decode(source, type=Event))
        if inspect.isawaitable(result):
            result = asyncio.run(awaited(result))
        text = b"" if result is None else msgspec.json.encode(msgspec.convert(result, Ruling, from_attributes=True))
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    with open(answer, "wb") as file:
        file.write(text)
    return 0


def _function(name: str) -> Callable[[Event], Any]:
    module, colon, attribute = name.partition(":")
    if colon:
        found = getattr(importlib.import_module(module), attribute)
    else:
        (entry,) = entry_points(group=GROUP, name=name) or (None,)
        if entry is None:
            known = ", ".join(sorted({each.name for each in entry_points(group=GROUP)})) or "none"
            raise LookupError(f"no package has an entry point '{name}' in the group {GROUP}; there are: {known}")
        found = entry.load()
    function: Callable[[Event], Any] = found
    return function


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2]), sys.stdin.buffer.read()))
