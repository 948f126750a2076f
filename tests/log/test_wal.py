"""The write-ahead log of each file stays small, whoever reads how slowly, and shrinks again when it could not."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.log.conformance import digest, note, session
from perdure.log.sqlite import SqliteStore

pytestmark = pytest.mark.crash
Start = Callable[[Path], Any]
TEXT = "x" * 4000


async def size(home: Path, file: str = "log.db") -> int:
    return (home / f"{file}-wal").stat().st_size


def test_it_stays_small_while_one_process_writes_and_another_reads_slowly(tmp_path: Path, peer: Start) -> None:
    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store:
            grant = await session(store)
            for n in range(40):
                await store.commit(grant, f"c{n}", [note(TEXT) for _ in range(50)])
            other, largest = peer(tmp_path), 0
            other.tell("burst s 3000")
            writing = asyncio.create_task(asyncio.to_thread(other.heard))
            while not writing.done():
                async for stored in store.read("s"):
                    if stored.seq % 50 == 0:
                        await asyncio.sleep(0.005)
                        largest = max(largest, await size(tmp_path))
            assert writing.result() == "done"
            assert 0 < largest < 6 << 20

    asyncio.run(run())


def test_it_shrinks_when_somebody_who_held_it_up_has_gone(tmp_path: Path, peer: Start) -> None:
    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store:
            grant = await session(store)
            other = peer(tmp_path)
            assert other.ask("hold BEGIN") == "inside"
            for n in range(60):
                await store.commit(grant, f"c{n}", [note(TEXT) for _ in range(100)])
            assert await size(tmp_path) > 20 << 20
            other.end()
            for n in range(600):
                await store.commit(grant, f"d{n}", [note(TEXT) for _ in range(4)])
            assert await size(tmp_path) <= 8 << 20

    asyncio.run(run())


def test_that_of_the_bulk_too(tmp_path: Path) -> None:
    async def run() -> None:
        async with await SqliteStore.open(tmp_path) as store:
            for n in range(12):
                pieces = [random.Random(n * 10 + k).randbytes(1 << 20) for k in range(10)]
                await store.blobs.put([(digest(piece), piece) for piece in pieces], pin="p", ttl_s=0)
                assert await size(tmp_path, "chunks.db") < 28 << 20
            assert await size(tmp_path) < 6 << 20

    asyncio.run(run())
