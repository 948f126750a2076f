"""pydantic-ai made durable by DBOS on SQLite: each answer of the model is a step, and so is the tool, which its author decorates."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from dbos import DBOS, SetWorkflowID
from pydantic_ai import Agent
from pydantic_ai.durable_exec.dbos import DBOSDurability

from bench.rivals.program import main
from bench.rivals.pydantic_plain import NO_LIMIT, counting, crashing


def _run(made: Agent) -> str:
    @DBOS.workflow()
    async def run() -> str:
        return str((await made.run("go", usage_limits=NO_LIMIT)).output)

    DBOS.launch()  # recovers what this program left pending

    async def begin() -> str:
        with SetWorkflowID("w1"):
            handle = await DBOS.start_workflow_async(run)
        return await handle.get_result()

    return asyncio.run(begin())


def _durable(folder: Path) -> dict[str, Any]:
    url = f"sqlite:///{folder / 'dbos.sqlite'}"
    quiet: Any = {"log_level": "ERROR", "console_log_level": "ERROR"}
    DBOS(config={"name": "bench", "system_database_url": url, "application_version": "1", **quiet})
    return {"capabilities": [DBOSDurability()], "step": DBOS.step()}


def _crash(folder: Path) -> str:
    return _run(crashing(folder, **_durable(folder)))


def _turns(folder: Path, count: int) -> list[float]:
    marks: list[float] = []
    _run(counting(count, marks, **_durable(folder)))
    return marks


if __name__ == "__main__":
    main(_crash, _turns)
