"""Whatever instant the power goes at, every acknowledged record and chunk is there afterwards, and no commit is there by half."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from perdure.log.conformance import OWNER, Clock, digest, header, note, notes, session, swept
from perdure.log.faults import Disk, Loss, Op, after_power_cut, read_trace
from perdure.log.sqlite import SqliteStore
from perdure.log.store import Admission, Rest
from perdure.record.records import NoteAdded

LARGE = bytes(range(256)) * 1024
CLOCK = Clock()


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> list[Op]:
    """A session's life, with an ack after everything that was acknowledged."""
    folder = tmp_path_factory.mktemp("recorded")
    disk = Disk("recording", folder / "trace")
    try:
        asyncio.run(_live(folder / "home", disk))
    finally:
        disk.unregister()
    return read_trace(folder / "trace")


async def _live(home: Path, disk: Disk) -> None:
    for life in range(2):
        async with await SqliteStore.open(home, clock=CLOCK, vfs=disk.name) as store:
            if life == 0:
                await store.create(header("s"))
            grant, _ = await store.acquire("s", OWNER, expected=life)
            for n in range(6):
                await store.commit(grant, f"{life}.{n}", [note(f"{life}.{n}a " + "x" * 3000), note(f"{life}.{n}b")])
                disk.ack(f"{life}.{n}a")
                disk.ack(f"{life}.{n}b")
            chunk = LARGE + bytes([life])
            await store.blobs.put([(digest(chunk), chunk)], pin="c")
            await store.commit(grant, f"{life}.c", [note(f"{life}.chunk")], names={digest(chunk)})
            disk.ack(f"{life}.chunk")
            await store.admit("s", Admission(f"{life}.r", note(f"{life}.request")))
            disk.ack(f"{life}.request")
            loose = LARGE + b"loose"
            await store.blobs.put([(digest(loose), loose)], pin="x", ttl_s=0)
            assert (await swept(store, *(LARGE + bytes([n]) for n in range(life + 1)))).chunks == 1
            await store.release(grant, inbox_seen=1000, rest=Rest())


def test_every_acknowledged_record_survives_a_cut_at_every_sync(trace: list[Op], memory_path: Path) -> None:
    cuts = [i for i, op in enumerate(trace) if op.kind == "sync"]
    assert len(cuts) > 30
    for end in sorted({*cuts, *(cut + 1 for cut in cuts)}):
        for loss in Loss:
            _survived(trace[:end], loss, memory_path / f"{end}.{loss.name}", seed=end)


def _survived(ops: list[Op], loss: Loss, folder: Path, *, seed: int) -> None:
    home = folder / "home"
    home.mkdir(parents=True)
    for name, content in after_power_cut(ops, loss, seed).items():
        (home / Path(name).name).write_bytes(content)
    acknowledged = [op.data.decode() for op in ops if op.kind == "ack"]
    asyncio.run(_look(home, acknowledged))
    shutil.rmtree(folder)


async def _look(home: Path, acknowledged: list[str]) -> None:
    async with await SqliteStore.open(home) as store:
        rows = await store.rows()
        if not rows:
            assert not acknowledged
            return
        found = [text.partition(" ")[0] for text in await notes(store)]
        assert found[: len(acknowledged)] == acknowledged
        assert len(found) - len(acknowledged) in (0, 1, 2)
        for text in found:
            if text.endswith(".chunk"):
                chunk = LARGE + bytes([int(text[0])])
                assert await store.blobs.get([digest(chunk)]) == {digest(chunk): chunk}
        pairs = [text for text in found if text[-1] in "ab"]
        assert len(pairs) % 2 == 0
        row = await store.row("s")
        grant, raised = await store.acquire("s", OWNER, expected=row.epoch)
        assert raised.seq == row.last_seq + 1
        await store.commit(grant, "after", [note("after")])
        last = [stored async for stored in store.read("s", raised.seq)]
        assert [stored.body for stored in last] == [NoteAdded("after")]


def test_what_two_processes_acknowledged_survives_too(tmp_path: Path, memory_path: Path, peer: Callable[..., Any]) -> None:
    home, trace = tmp_path / "home", tmp_path / "trace"

    async def prepare() -> None:
        async with await SqliteStore.open(home) as store:
            for name in "ab":
                await session(store, name)

    asyncio.run(prepare())
    before = {path.name: path.read_bytes() for path in home.iterdir()}
    peers = {name: peer(home, trace) for name in "ab"}
    for name, each in peers.items():
        each.tell(f"burst {name} 25")
    for each in peers.values():
        assert each.heard() == "done"
        each.end()
    start = [Op("write", str(home / name), 0, content) for name, content in before.items()]
    ops = [*start, *(Op("sync", op.file, 0, b"") for op in start), *read_trace(trace)]
    cuts = [i for i, op in enumerate(ops) if op.kind == "sync" and i > 2 * len(start)]
    assert len(cuts) >= 25
    for cut in cuts:
        for loss in Loss:
            home = memory_path / f"{cut}.{loss.name}"
            home.mkdir()
            for name, content in after_power_cut(ops[:cut], loss, cut).items():
                (home / Path(name).name).write_bytes(content)
            asyncio.run(_both_are_there(home, [op.data.decode().split() for op in ops[:cut] if op.kind == "ack"]))
            shutil.rmtree(home)


async def _both_are_there(home: Path, acknowledged: list[list[str]]) -> None:
    async with await SqliteStore.open(home) as store:
        for name in "ab":
            expected = [n for session, n in acknowledged if session == name]
            found = await notes(store, name)
            assert found[: len(expected)] == expected
            assert len(found) <= len(expected) + 1
