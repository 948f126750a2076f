"""Runs one call of a function tool: `python -m perdure.program.toolhost module:function LIFE`, arguments as JSON on standard input.

LIFE is a descriptor that ends when the driver dies: then this process and all of its group are killed, and nobody is left to act unseen.

The result goes to standard output, as it is if it is text, else as JSON. What the function itself prints goes to standard error, and so does
its failure, in one line without a traceback: that line is what the model is told.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import json
import os
import signal
import sys
import threading
from typing import Any

import msgspec

from perdure.program.tools import from_function


def main(target: str, life: int, source: str) -> int:
    os.set_inheritable(life, False)
    threading.Thread(target=end_with, args=(life,), daemon=True).start()
    answer = os.dup(1)
    os.dup2(2, 1)  # also for what the function's own children print
    try:
        result = _call(target, json.loads(source))
        text = result if isinstance(result, str) else msgspec.json.encode(result).decode()
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    with open(answer, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    return 0


def end_with(life: int) -> None:
    """Kill this process and its group when the driver dies."""
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)


def _call(target: str, source: dict[str, Any]) -> Any:
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    args = from_function(function).convert(source)
    result: Any = function(**{field: getattr(args, field) for field in args.__struct_fields__})
    return asyncio.run(awaited(result)) if inspect.isawaitable(result) else result


async def awaited(value: Any) -> Any:
    return await value


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], int(sys.argv[2]), sys.stdin.read()))
