"""Logs of every release open for ever: a copy of each is read, driven on, and its original stays as it is."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from pathlib import Path

import msgspec
import pytest

from perdure.log.conformance import note
from perdure.log.sqlite import SqliteStore
from perdure.log.store import Binding, Cut, Rest
from perdure.record.records import Owner, Stored

LOGS = Path(__file__).parents[1] / "fixtures" / "logs"
RELEASES = sorted(path.parent for path in LOGS.glob("*/log.db"))


def test_there_is_one() -> None:
    assert RELEASES


@pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)
def test_it_reads_as_it_did(release: Path, tmp_path: Path) -> None:
    home = shutil.copytree(release, tmp_path / "home")
    expected = msgspec.json.decode((release / "expected.json").read_bytes(), type=dict[str, list[Stored]])

    async def run() -> None:
        async with await SqliteStore.open(home) as store:
            assert {row.session for row in await store.rows()} == set(expected)
            for session, records in expected.items():
                assert [stored async for stored in store.read(session)] == records
            row = await store.row("all")
            assert (row.epoch, row.held_by, row.needs_driver) == (1, Owner("host", "boot", 1, 2, 3, "token"), True)
            fork = await store.row("fork")
            assert (fork.parent, fork.rest) == (Cut("all", 5), Rest("waiting", "you"))
            assert await store.binding("all") == Binding("all", "/w", 1, 2)
            assert await store.find("all", "big") is not None
            chunks = [b"a small chunk", b"a larger one " * 10_000]
            names = [hashlib.sha256(chunk).hexdigest() for chunk in chunks]
            assert list((await store.blobs.get(names)).values()) == chunks
            grant, _ = await store.acquire("all", Owner("h", "b", 1, 1, 1), expected=1)
            await store.commit(grant, "now", [note("goes on")])

    asyncio.run(run())
