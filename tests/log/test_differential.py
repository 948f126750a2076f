"""Whatever is asked, in whatever order: the store on disk answers as the one in memory does."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.log.conformance import LARGE, OWNER, SMALL, Clock, digest, header, note, swept
from perdure.log.conformance import live as live_chunks
from perdure.log.memory import MemoryStore
from perdure.log.sqlite import SqliteStore
from perdure.log.store import Admission, Binding, Cut, Grant, Header, LogStore, Rest
from perdure.record.errors import PerdureError

IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
NAMES = st.sampled_from(["a", "b", "c"])
FEW = st.integers(0, 3)
SEQS = st.integers(0, 12)
RESTS = st.builds(Rest, st.sampled_from(["settled", "waiting"]), due_at=st.none() | st.just(1_000_001.0), busy=st.booleans())
CHUNKS = st.sampled_from([SMALL, LARGE, LARGE + b"!"])
ROOTS = st.sampled_from([("/w", 1), ("/w/src", 2), ("/v", 3)])

REQUESTS = st.one_of(
    st.tuples(st.just("create"), NAMES, st.none() | st.tuples(NAMES, SEQS)),
    st.tuples(st.just("acquire"), NAMES, FEW, FEW),
    st.tuples(st.just("commit"), NAMES, FEW, FEW, st.none() | SEQS, st.none() | RESTS, st.lists(CHUNKS, max_size=2)),
    st.tuples(st.just("admit"), NAMES, FEW, FEW, st.booleans(), st.booleans(), st.booleans()),
    st.tuples(st.just("release"), NAMES, FEW, SEQS, RESTS),
    st.tuples(st.just("renew"), NAMES, FEW),
    st.tuples(st.just("find"), NAMES, FEW),
    st.tuples(st.just("bind"), NAMES, ROOTS),
    st.tuples(st.just("put"), CHUNKS, FEW),
    st.tuples(st.just("sweep"), st.lists(CHUNKS, max_size=2)),
    st.tuples(st.just("begin sweep"), st.none()),
    st.tuples(st.just("end sweep"), FEW),
    st.tuples(st.just("remove"), NAMES, FEW, SEQS),
    st.tuples(st.just("purge"), st.none()),
    st.tuples(st.just("pass"), st.just(1000.0)),
    st.tuples(st.just("look"), NAMES, SEQS),
)


async def ask(store: LogStore, clock: Clock, request: tuple[Any, ...]) -> Any:
    match request:
        case "create", name, None:
            return await store.create(header(name))
        case "create", name, (parent, cut):
            return await store.create(Header(name, f"log-{name}", (note("forked"),)), parent=Cut(parent, cut))
        case "acquire", name, expected, at_least:
            return await store.acquire(name, OWNER, expected=expected, at_least=at_least)
        case "commit", name, epoch, id, seen, rest, named:
            grant = Grant(name, epoch, OWNER)
            names = {digest(chunk) for chunk in named}
            return await store.commit(grant, f"c{id}", [note(f"{id}"), note("x")], inbox_seen=seen, rest=rest, names=names)
        case "admit", name, id, text, reject, needs, busy:
            draft = note(str(text % 2))
            return await store.admit(name, Admission(f"r{id}", draft, reject, needs, busy))
        case "release", name, epoch, seen, rest:
            return await store.release(Grant(name, epoch, OWNER), inbox_seen=seen, rest=rest)
        case "renew", name, epoch:
            return await store.renew(Grant(name, epoch, OWNER))
        case "find", name, id:
            return await store.find(name, f"c{id}")
        case "bind", name, (directory, inode):
            return await store.bind(Binding(name, directory, 1, inode))
        case "put", chunk, pin:
            return await store.blobs.put([(digest(chunk), chunk)], pin=f"c{pin}", ttl_s=1500)
        case "sweep", live:
            return (await swept(store, *live)).chunks
        case "begin sweep", _:
            return await store.blobs.begin_sweep()
        case "end sweep", number:
            return (await store.blobs.sweep(number, live_chunks())).chunks
        case "remove", name, epoch, seen:
            return await store.remove(Grant(name, epoch, OWNER), inbox_seen=seen)
        case "purge", _:
            await store.purge()
            return None
        case "look", name, after:
            return (
                [stored async for stored in store.read(name, after)],
                await store.row(name),
                await store.binding(name),
                await store.records_bytes(name),
            )
    raise AssertionError(request)


async def outcome(request: Callable[[], Awaitable[Any]]) -> Any:
    try:
        return await request()
    except PerdureError as error:
        return type(error), str(error)


async def compare(home: Path, requests: list[tuple[Any, ...]]) -> None:
    clock = Clock()
    memory = MemoryStore(clock=clock)
    async with await SqliteStore.open(home, clock=clock) as disk:
        for request in requests:
            if request[0] == "pass":
                clock.now += request[1]
                continue
            said = [await outcome(lambda: ask(store, clock, request)) for store in (memory, disk)]  # noqa: B023
            assert said[0] == said[1], request
        everything = [digest(chunk) for chunk in (SMALL, LARGE, LARGE + b"!")]
        assert await memory.rows() == await disk.rows()
        assert sorted(await memory.due(clock.now), key=str) == sorted(await disk.due(clock.now), key=str)
        assert await memory.blobs.has(everything) == await disk.blobs.has(everything)


@settings(max_examples=60, deadline=None)
@given(st.lists(REQUESTS, min_size=5, max_size=40))
def test_both_stores_answer_alike(requests: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        start: list[tuple[Any, ...]] = [("create", "a", None), ("acquire", "a", 0, 0)]
        asyncio.run(compare(Path(folder), start + requests))
