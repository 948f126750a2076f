"""A keeper serves one command after another; what any of them leaves behind or does to it concerns the next one in nothing."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from perdure.space.client import HostSpace
from tests.space.conftest import Place, run, until_async


def keepers(place: Place) -> list[int]:
    """Keepers of this workspace, by the name that the kernel has for them."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text() == "spaced-keeper\n" and (path.parent / "cwd").readlink() == place.root:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


async def text(space: HostSpace, key: str, command: str) -> str:
    status = await run(space, key, command, mutating=False)
    assert status.result is not None
    return status.result.text


def test_a_keeper_whose_command_left_nothing_serves_the_next_one(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        first = await text(space, "l:a:1", "echo $PPID")
        assert await text(space, "l:b:1", "(setsid sleep 0.05 &); echo $PPID") == first
        await until_async(lambda: len(keepers(place)) == 1)

    asyncio.run(main())


def test_a_keeper_of_something_that_was_left_behind_serves_nobody_else(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        await run(space, "l:a:1", "until [ -e go ]; do sleep 0.02; done", background=True)
        await run(space, "l:b:1", "true")
        capture = (await run(space, "l:c:1", "true")).capture
        assert capture is not None
        assert {process.call for process in capture.left} == {"a"}
        (place.root / "go").touch()
        await until_async(lambda: not place.running("l:a:1"))
        assert await text(space, "l:d:1", "echo on") == "on\n"

    asyncio.run(main())


def test_a_keeper_that_is_killed_while_it_waits_is_followed_by_another(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        for n in range(3):
            assert await text(space, f"l:a{n}:1", "echo on") == "on\n"
            (waiting,) = keepers(place)
            os.kill(waiting, signal.SIGKILL)
            await until_async(lambda: not keepers(place))

    asyncio.run(main())


def test_a_keeper_that_is_stopped_while_it_waits_goes_on(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        await run(space, "l:a:1", "true")
        for pid in keepers(place):
            os.kill(pid, signal.SIGSTOP)
        assert await asyncio.wait_for(text(space, "l:b:1", "echo on"), 10) == "on\n"

    asyncio.run(main())


def test_a_command_that_stops_its_keeper_ends_all_the_same(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        assert await asyncio.wait_for(text(space, "l:a:1", "kill -STOP $PPID; echo on"), 10) == "on\n"
        assert await asyncio.wait_for(text(space, "l:b:1", "kill -STOP $PPID; sleep 0.2; echo on"), 10) == "on\n"

    asyncio.run(main())


def test_what_a_killed_keeper_leaves_is_known_by_its_call(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        await run(space, "l:a:1", "sleep 100", background=True)
        for keeper in keepers(place):
            os.kill(keeper, signal.SIGKILL)
        await until_async(lambda: not keepers(place))
        for n in range(2):
            capture = (await run(space, f"l:b{n}:1", "true")).capture
            assert capture is not None
            assert [(process.command, process.call) for process in capture.left] == [("sleep 100", "a")]

    asyncio.run(main())


def test_every_command_has_its_own_output_environment_and_no_other_descriptor(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        for n in range(3):
            assert await text(space, f"l:a{n}:1", "echo $PERDURE_CALL_KEY; ls /proc/self/fd | wc -l") == f"l:a{n}:1\n4\n"

    asyncio.run(main())


def test_a_long_command_and_one_that_can_not_be_run_come_through(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        long = "x" * 120_000
        assert await text(space, "l:a:1", f"printf %s {long} | wc -c") == "120000\n"
        assert "Argument list too long" in await text(space, "l:b:1", f": {long * 20}")
        assert await text(space, "l:c:1", "echo on") == "on\n"

    asyncio.run(main())


def test_no_keeper_outlives_a_supervisor(unproven: Place) -> None:
    async def main() -> None:
        space = await unproven.open()
        await run(space, "l:a:1", "true")
        assert keepers(unproven)
        unproven.kill()
        await until_async(lambda: not keepers(unproven))

    asyncio.run(main())
