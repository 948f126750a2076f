"""A real supervisor's watch, as a driver sees it."""

from __future__ import annotations

import asyncio
import sys

import pytest

from tests.space.conftest import Place, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


def test_it_says_how_it_captures(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        assert space.traits.capture == "watch"

    asyncio.run(main())


def test_it_can_be_told_to_scan(place: Place) -> None:
    async def main() -> None:
        space = await place.open(capture="scan")
        assert space.traits.capture == "scan (asked for)"
        base = (await space.capture(None)).image
        assert (await run(space, "l:c:1", "echo x > a", base)).capture.changed == ("a",)  # type: ignore[union-attr]

    asyncio.run(main())


def test_commands_one_after_another_and_people_between_are_told_apart(place: Place) -> None:
    async def main() -> None:
        (place.root / "dir").mkdir()
        (place.root / "dir" / "old").write_text("x")
        space = await place.open()
        image = (await space.capture(None)).image
        commands = {
            "mkdir -p n/m && echo x > n/m/f": ("n", "n/m", "n/m/f"),
            "echo y > n/m/f; mv dir moved": ("dir", "dir/old", "moved", "moved/old", "n/m/f"),
            "echo z >> moved/old": ("moved/old",),
            "(sleep 0.05; echo late >> n/m/f) & wait": ("n/m/f",),
            "ln moved/old hard; echo w >> hard": ("hard", "moved/old"),
            "python3 -c 'import os, pathlib; [pathlib.Path(f\"many/{i}\").mkdir(parents=True) for i in range(300)]'": None,
            "for i in $(seq 0 299); do echo x > many/$i/f; done": None,
            "rm -r many": None,
            "true": (),
        }
        for number, (command, paths) in enumerate(commands.items()):
            status = await run(space, f"l:{number}:1", command, image)
            assert status.capture is not None and status.result is not None and status.result.ok, status
            assert paths is None or status.capture.changed == paths
            image = status.capture.image
            (place.root / "mine").write_text(str(number))
            between = await space.capture(image)
            assert between.changed == ("mine",)
            image = between.image
            audited = await space.capture(image, audit=True)
            assert audited.image.same(image), command
            await space.settle(image)

    asyncio.run(main())


def test_what_a_background_process_goes_on_to_write_is_captured_with_the_next_call(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        image = (await space.capture(None)).image
        loop = "exec 3>>log; while [ ! -e stop ]; do echo x >&3; sleep 0.005; done; echo end >&3"
        status = await run(space, "l:b:1", loop, image, background=True)
        assert status.capture is not None
        image = status.capture.image
        for number in range(5):
            status = await run(space, f"l:{number}:1", "sleep 0.02", image)
            assert status.capture is not None
            assert "log" in status.capture.changed
            image = status.capture.image
        status = await run(space, "l:s:1", "touch stop; while pgrep -f 'exec [3]>>log' > /dev/null; do sleep 0.01; done", image)
        assert status.capture is not None
        audited = await space.capture(status.capture.image, audit=True)
        assert not audited.changed

    asyncio.run(main())
