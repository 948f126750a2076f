"""What another driver finds, what it may keep, and what an older one can still do: nothing."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from perdure.record.errors import SpaceGoneError, StaleEpochError, UsageError
from perdure.space.client import HostSpace
from perdure.space.space import Exec, Plan, Status, Write
from tests.space.conftest import WAIT_S, Place, run, step_numbers, until, until_async

LOOP = "while :; do echo . >> beat; sleep 0.01; done"


BOMB = """
import os, time
end = time.monotonic() + 20
for n in range(250):
    if os.fork() == 0:
        os.setsid()
        while n < 4 and time.monotonic() < end:
            if os.fork():
                os._exit(0)
        time.sleep(300)
open('armed', 'w').close()
time.sleep(300)
"""


async def _nothing(_: object) -> dict[str, bytes]:
    return {}


def _drive(place: Place, key: str, command: str) -> None:
    async def main() -> None:
        space = await place.open()
        await space.start(key, Exec(command), base=(await space.capture(None)).image)
        (place.root / "started").touch()
        await space.wait(key)

    asyncio.run(main())


def test_the_next_driver_adopts_a_command_whose_driver_was_killed(place: Place) -> None:
    command = "echo first; touch began; until [ -e go ]; do sleep 0.02; done; echo x >> effects; echo last; exit 7"
    driver = multiprocessing.get_context("spawn").Process(target=_drive, args=(place, "l:c:1", command))
    driver.start()
    until((place.root / "began").exists)
    os.kill(driver.pid or 0, signal.SIGKILL)
    driver.join()

    async def main() -> None:
        found = await place.find(2)
        assert (found.started, found.fresh, found.previous) == (False, False, None)
        space = found.space
        assert (await space.status({"l:c:1"}))["l:c:1"].state == "running"
        fenced = await space.fence(2, {"l:c:1"})
        assert (fenced.adopted, fenced.killed, fenced.survivors) == (("l:c:1",), 0, ())
        await space.start("l:c:1", Exec(command))
        (place.root / "go").touch()
        output = b"".join([piece async for piece in space.output("l:c:1")])
        status = await space.wait("l:c:1")
        assert output == b"first\nlast\n"
        assert (status.cause, status.result and status.result.exit_code) == ("self", 7)
        assert status.capture is not None
        assert "effects" in status.capture.changed
        assert (place.root / "effects").read_text() == "x\n"

    asyncio.run(main())


def test_a_command_that_nobody_adopts_dies_at_the_fence_with_all_it_started(place: Place) -> None:
    async def main() -> None:
        old = await place.open(1)
        await old.start("l:c:1", Exec(f"(env -i setsid bash -c '(setsid bash -c \"{LOOP}\" &)' &) ; sleep 300"))
        await until_async((place.root / "beat").exists)
        new = (await place.find(2)).space
        fenced = await new.fence(2, set())
        size = (place.root / "beat").stat().st_size
        assert fenced.adopted == ()
        assert fenced.killed >= 2
        status = (await new.status({"l:c:1"}))["l:c:1"]
        assert (status.state, status.cause, status.capture) == ("ended", "fenced", None)
        assert await new.processes() == []
        assert (await new.capture(None)).left == ()
        assert (place.root / "beat").stat().st_size == size

    asyncio.run(main())


def test_adoption_is_whole(place: Place) -> None:
    async def main() -> None:
        old = await place.open(1)
        await run(old, "l:server:1", "exec sleep 300", background=True)
        await asyncio.gather(*(old.start(f"l:{n}:1", Exec("sleep 300", mutating=False)) for n in (1, 2)))
        new = (await place.find(2)).space
        kept = await new.fence(2, {"l:1:1", "l:2:1"})
        assert sorted(kept.adopted) == ["l:1:1", "l:2:1"]
        assert [process.call for process in await new.processes()] == ["server"]
        newer = (await place.find(3)).space
        killed = await newer.fence(3, {"l:1:1"})
        assert killed.adopted == ()
        assert {status.cause for status in (await newer.status({"l:1:1", "l:2:1"})).values()} == {"fenced"}
        assert await newer.processes() == []

    asyncio.run(main())


def test_a_fork_bomb_dies_at_the_fence(place: Place) -> None:
    async def main() -> None:
        old = await place.open(1)
        (place.root / "bomb.py").write_text(BOMB)
        await old.start("l:c:1", Exec("python3 bomb.py"))
        await until_async((place.root / "armed").exists)
        new = (await place.find(2)).space
        fenced = await new.fence(2, set())
        assert fenced.killed >= 200
        assert place.running("l:c:1") == []

    asyncio.run(main())


def test_a_stale_driver_is_refused_whatever_it_asks(place: Place) -> None:
    async def main() -> None:
        old = await place.open(1)
        image = (await old.capture(None)).image
        await run(old, "l:c:1", "echo mine", image)
        await place.open(2)
        await old.close()
        asked = [
            old.fence(1, set()),
            old.start("l:new:1", Exec("touch never")),
            old.start("l:c:1", Exec("echo mine")),
            old.status({"l:c:1"}),
            old.wait("l:c:1"),
            old.stop("l:c:1"),
            old.capture(None),
            old.settle(image),
            old.plan(image, _nothing, None),
            old.restore(image, _nothing, Plan()),
            old.processes(),
            old.sync(),
            _all(old.output("l:c:1")),
            _all(old.chunks({image.tree})),
            place.find(1),
        ]
        for request in asked:
            with pytest.raises(StaleEpochError):
                await request
        assert not (place.root / "never").exists()

    asyncio.run(main())


async def _all(parts: Any) -> list[Any]:
    return [part async for part in parts]


def test_a_driver_that_has_not_fenced_yet_may_look_and_not_act(place: Place) -> None:
    async def main() -> None:
        await place.open(1)
        space = (await place.find(2)).space
        assert (await space.status({"l:c:1"}))["l:c:1"].state == "none"
        with pytest.raises(UsageError, match="not fenced"):
            await space.start("l:c:1", Exec("true"))
        with pytest.raises(UsageError, match="not fenced"):
            await space.capture(None)

    asyncio.run(main())


def test_a_driver_that_waits_is_told_at_once_that_it_was_overtaken(place: Place) -> None:
    async def main() -> None:
        old = await place.open(1)
        await old.start("l:c:1", Exec("sleep 300"))
        waiting = asyncio.create_task(old.wait("l:c:1"))
        watching = asyncio.create_task(_all(old.output("l:c:1")))
        await asyncio.sleep(0)
        await (await place.find(2)).space.fence(2, {"l:c:1"})
        for task in (waiting, watching):
            with pytest.raises(StaleEpochError):
                await task

    asyncio.run(main())


def test_a_write_that_is_under_way_ends_before_its_fence_does(unproven: Place, tmp_path: Path) -> None:
    """The supervisor is frozen between the new content and its rename, overtaken, and thawed (a PID 1 can't freeze itself)."""
    order = step_numbers(unproven, tmp_path / "trace", _write)
    unproven.session = "s2"

    async def main() -> None:
        stop = f"spaced:{order['file written'][0]}:stop:{tmp_path / 'stopped'}"
        old = await unproven.open(1, env={**os.environ, "PERDURE_STEPS": stop})
        writing = asyncio.create_task(_write(old))
        await until_async(lambda: _state(old.init.pid) == "T")
        fencing = asyncio.create_task(unproven.find(2))
        await asyncio.sleep(0)
        os.kill(old.init.pid, signal.SIGCONT)
        space = (await fencing).space
        await space.fence(2, set())
        status = (await space.status({"l:w:1"}))["l:w:1"]
        there = (unproven.root / "written").exists()
        assert (status.state, status.cause, status.capture is not None) in (("ended", "fenced", False), ("ended", "self", True))
        assert there or status.cause == "fenced"
        assert [path.name for path in unproven.root.iterdir()] == ["written"][:there]
        await asyncio.gather(writing, return_exceptions=True)

    asyncio.run(main())


async def _write(space: HostSpace) -> None:
    base = (await space.capture(None)).image
    await space.start("l:w:1", Write("written", "text"), base=base)
    await space.wait("l:w:1")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def test_a_frozen_driver_holds_up_nobody(place: Place) -> None:
    """One that stopped reading its answer is overtaken like any other."""

    async def main() -> None:
        old = await place.open(1)
        await run(old, "l:c:1", "head -c 8000000 /dev/zero; touch done", (await old.capture(None)).image)
        parts = old.output("l:c:1")
        await anext(parts)
        new = (await place.find(2)).space
        async with asyncio.timeout(15):
            await new.fence(2, set())
        assert (await new.capture(None)).left == ()
        await parts.aclose()

    asyncio.run(main())


# ---- lives -------------------------------------------------------------------------------------------------------------------


def test_what_a_killed_supervisor_ran_is_lost_under_the_next_one(place: Place) -> None:
    async def main() -> None:
        old = await place.open(1)
        await run(old, "l:done:1", "echo kept; touch kept")
        await old.start("l:c:1", Exec("touch began; sleep 300"))
        await until_async((place.root / "began").exists)
        waiting = asyncio.create_task(old.wait("l:c:1"))
        await asyncio.sleep(0)
        await asyncio.to_thread(place.kill)
        with pytest.raises(SpaceGoneError):
            await waiting
        found = await place.find(2)
        space = found.space
        assert (found.started, found.fresh) == (True, False)
        assert found.previous is not None
        assert found.previous.proven == (place.custody == "pidns")
        assert found.dead_at_ns is not None
        assert (space.incarnation, space.instance) == (old.incarnation, old.instance + 1)
        statuses = await space.status({"l:c:1", "l:done:1"})
        lost = statuses["l:c:1"]
        assert (lost.state, lost.cause, lost.instance) == ("lost", None, old.instance)
        assert lost.started_ns <= lost.seen_ns <= found.dead_at_ns
        ended = statuses["l:done:1"]
        assert (ended.state, ended.cause) == ("ended", "self")
        assert ended.result is not None
        assert ended.result.text == "kept\n"
        assert space.position >= ended.position
        fenced = await space.fence(2, set())
        assert [process.call for process in fenced.survivors] == ([] if place.custody == "pidns" else ["c"])
        assert place.running("l:c:1") == []
        with pytest.raises(UsageError):
            await space.start("l:c:1", Exec("another"))

    asyncio.run(main())


def test_the_instant_of_a_death_that_nobody_saw_is_not_made_up(proven: Place) -> None:
    async def main() -> None:
        await (await proven.open(1)).close()
        proven.kill()
        found = await proven.find(2)
        assert found.previous is not None
        assert (found.previous.proven, found.dead_at_ns) == (True, None)

    asyncio.run(main())


def test_an_orderly_end_leaves_nothing_to_prove(unproven: Place) -> None:
    unproven.spaces = type(unproven.spaces)(unproven.home, idle_s=0.0)

    async def main() -> None:
        space = await unproven.open(1)
        await run(space, "l:c:1", "true")
        await space.close()
        await space.watch_death()
        found = await unproven.find(2)
        assert found.previous is not None
        assert found.previous.proven
        assert (await found.space.fence(2, set())).survivors == ()
        assert (await found.space.status({"l:c:1"}))["l:c:1"].cause == "self"

    asyncio.run(main())


def test_a_running_operation_is_stamped_so_that_its_end_is_known_to_two_seconds(proven: Place) -> None:
    async def main() -> None:
        space = await proven.open(1)
        first = await space.start("l:c:1", Exec("sleep 300"))
        latest: Status = first
        async with asyncio.timeout(WAIT_S):
            while latest.seen_ns <= first.started_ns + 1_000_000_000:
                latest = (await space.status({"l:c:1"}))["l:c:1"]
                await asyncio.sleep(0.05)
        proven.kill()
        lost = (await (await proven.find(2)).space.status({"l:c:1"}))["l:c:1"]
        assert lost.state == "lost"
        assert lost.seen_ns >= latest.seen_ns

    asyncio.run(main())


def test_another_root_is_another_generation(proven: Place) -> None:
    async def main() -> None:
        space = await proven.open(1)
        await run(space, "l:c:1", "true")
        proven.kill()
        proven.root = proven.root.parent / "elsewhere"
        proven.root.mkdir()
        found = await proven.find(2)
        assert found.fresh
        assert found.space.incarnation.ledger_id != space.incarnation.ledger_id
        assert found.space.instance > space.instance
        assert (await found.space.status({"l:c:1"}))["l:c:1"].state == "none"

    asyncio.run(main())
