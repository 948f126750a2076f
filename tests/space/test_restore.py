"""An undo through the socket: chunks come from the driver, processes die first, stale drivers change nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from perdure.record.errors import StaleEpochError, StoreFullError
from perdure.record.records import Image, Window
from perdure.space.client import HostSpace
from perdure.space.space import Capture, Exec
from tests.space.conftest import Place, run, until_async


class Store(dict[str, bytes]):
    """The log's chunks, as far as these tests need them."""

    async def take(self, space: HostSpace, capture: Capture) -> Image:
        async for digest, data in space.chunks(capture.chunks):
            self[digest] = data
        await space.settle(capture.image)
        return capture.image

    async def source(self, digests: Iterable[str]) -> Mapping[str, bytes]:
        return {digest: self[digest] for digest in digests}


def files(place: Place) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(place.root.iterdir())}


async def _lost_call(place: Place, store: Store) -> tuple[HostSpace, Image, Window]:
    """A command that changed files and was fenced in the middle."""
    (place.root / "kept").write_text("kept")
    (place.root / "big").write_bytes(b"0123456789abcdef" * (1 << 16) * 3)
    old = await place.open(1)
    base = await store.take(old, await old.capture(None))
    await old.start("l:c:1", Exec("echo torn > kept; rm big; touch stray; sleep 300"), base=base)
    await until_async((place.root / "stray").exists)
    space = await place.open(2)
    status = (await space.status({"l:c:1"}))["l:c:1"]
    assert status.cause == "fenced"
    return space, base, Window(status.started_ns, status.ended_ns)


def test_a_lost_call_is_taken_back_from_the_drivers_chunks(place: Place) -> None:
    async def main() -> None:
        store = Store()
        space, base, window = await _lost_call(place, store)
        plan = await space.plan(base, store.source, window)
        assert plan.blocked is None
        assert set(plan.take_back) == {"kept", "big", "stray"}
        assert plan.salvage is not None
        async for digest, data in space.chunks(plan.chunks):
            store[digest] = data
        restored = await space.restore(base, store.source, plan)
        assert restored.capture.image.same_files(base)
        assert sorted(files(place)) == ["big", "kept"]
        assert files(place)["kept"] == "kept"

    asyncio.run(main())


def test_every_process_dies_before_the_first_file_is_put_back(place: Place) -> None:
    async def main() -> None:
        store = Store()
        space, base, window = await _lost_call(place, store)
        await run(space, "l:server:1", "while :; do echo . >> beat; sleep 0.01; done", background=True)
        await until_async((place.root / "beat").exists)
        plan = await space.plan(base, store.source, window)
        restored = await space.restore(base, store.source, plan)
        assert restored.processes_killed >= 1
        assert restored.capture.left == ()
        assert await space.processes() == []
        assert place.running("l:server:1") == []

    asyncio.run(main())


def test_a_driver_that_freezes_in_the_middle_of_a_restore_is_overtaken_and_changes_nothing_more(place: Place) -> None:
    async def main() -> None:
        store = Store()
        space, base, window = await _lost_call(place, store)
        plan = await space.plan(base, store.source, window)
        asked, thaw = asyncio.Event(), asyncio.Event()

        async def frozen(digests: Iterable[str]) -> Mapping[str, bytes]:
            asked.set()
            await thaw.wait()
            return await store.source(digests)

        restoring = asyncio.create_task(space.restore(base, frozen, plan))
        await asked.wait()
        async with asyncio.timeout(15):
            new = await place.open(3)
        before = files(place)
        thaw.set()
        with pytest.raises(StaleEpochError):
            await restoring
        assert files(place) == before
        again = await new.plan(base, store.source, window)
        restored = await new.restore(base, store.source, again)
        assert restored.capture.image.same_files(base)

    asyncio.run(main())


def test_a_plan_changes_nothing(place: Place) -> None:
    async def main() -> None:
        store = Store()
        space, base, window = await _lost_call(place, store)
        before: dict[str, Any] = files(place)
        await space.plan(base, store.source, window)
        assert files(place) == before

    asyncio.run(main())


def test_a_log_that_fails_in_the_middle_of_a_plan_is_asked_again_and_nothing_is_mixed_up(place: Place) -> None:
    async def main() -> None:
        store = Store()
        space, base, window = await _lost_call(place, store)

        async def full(digests: Iterable[str]) -> Mapping[str, bytes]:
            raise StoreFullError("no room")

        with pytest.raises(StoreFullError):
            await space.plan(base, full, window)
        assert (await space.status({"l:c:1"}))["l:c:1"].cause == "fenced"
        assert set((await space.plan(base, store.source, window)).take_back) == {"kept", "big", "stray"}

    asyncio.run(main())
