"""Runs one call of a function tool: `python -m perdure.program.toolhost module:function`, arguments as JSON on standard input.

The result goes to standard output, as it is if it is text, else as JSON. What the function itself prints goes to standard error, and so does
its failure, in one line without a traceback: that line is what the model is told.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import json
import sys
from typing import Any

import msgspec

from perdure.program.tools import from_function


def main(target: str, source: str) -> int:
    module, _, name = target.partition(":")
    with contextlib.redirect_stdout(sys.stderr):
        function = getattr(importlib.import_module(module), name)
        args = from_function(function).convert(json.loads(source))
        try:
            result: Any = function(**{field: getattr(args, field) for field in args.__struct_fields__})
            if inspect.isawaitable(result):
                result = asyncio.run(_awaited(result))
        except Exception as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            return 1
    sys.stdout.write(result if isinstance(result, str) else msgspec.json.encode(result).decode())
    return 0


async def _awaited(value: Any) -> Any:
    return await value


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], sys.stdin.read()))
