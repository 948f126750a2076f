"""Both stores keep the same protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from perdure.log.conformance import CHECKS, Check, Clock
from perdure.log.memory import MemoryStore
from perdure.log.sqlite import SqliteStore
from perdure.log.store import LogStore


@asynccontextmanager
async def opened(kind: str, home: Path, clock: Clock) -> AsyncIterator[LogStore]:
    store: LogStore = MemoryStore(clock=clock) if kind == "memory" else await SqliteStore.open(home, clock=clock)
    try:
        yield store
    finally:
        await store.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_store_conforms(kind: str, check: Check, tmp_path: Path) -> None:
    async def run() -> None:
        clock = Clock()
        async with opened(kind, tmp_path / "home", clock) as store:
            await check(store, clock)

    asyncio.run(run())
