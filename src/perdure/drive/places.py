"""Where tools outside of the Space run: a process each, beside the driver, killed at its deadline and when the driver dies.

It has no ledger: once begun, its outcome is known only to the driver that waits for it, so nothing of it acts on when that one is gone.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from perdure.drive.children import child, importing
from perdure.program.tools import Tool
from perdure.space.space import OpResult, Status


@dataclass(frozen=True)
class Ended:
    """`lost` says that it was killed in the middle, so that its outcome is unknown."""

    status: Status
    result: OpResult
    lost: bool = False


class DriverPlace(Protocol):
    async def run(self, tool: Tool, args: dict[str, Any], key: str, timeout_s: float) -> Ended: ...


class Processes:
    """Runs `perdure.program.toolhost` for each call, with the environment that commands see."""

    def __init__(self, environment: Mapping[str, str], directory: str | None = None) -> None:
        self._environment = environment
        self._directory = directory

    async def run(self, tool: Tool, args: dict[str, Any], key: str, timeout_s: float) -> Ended:
        assert tool.function is not None
        target, began = tool.function, time.monotonic()

        def command(life: int) -> tuple[str, ...]:
            return sys.executable, "-P", "-m", "perdure.program.toolhost", target, str(life)

        environment = {**self._environment, "PERDURE_CALL_KEY": key, **importing()}
        try:
            async with child(command, self._directory, environment) as process, asyncio.timeout(timeout_s):
                out, err = await process.communicate(json.dumps(args).encode())
        except TimeoutError:
            text = f"Killed after {timeout_s:g} s; whether it took effect is unknown. Check before you try again."
            return Ended(Status("ended", cause="timeout"), OpResult(False, text, duration_s=timeout_s), lost=True)
        duration_s = time.monotonic() - began
        if process.returncode != 0:
            text = err.decode(errors="replace").strip() or f"exit code {process.returncode}"
            result = OpResult(False, text, process.returncode, duration_s=duration_s)
            return Ended(Status("ended", cause="self"), result, lost=(process.returncode or 0) < 0)
        return Ended(Status("ended", cause="self"), OpResult(True, out.decode(errors="replace"), 0, duration_s=duration_s))
