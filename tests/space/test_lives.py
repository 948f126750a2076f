"""A supervisor killed at every step of its protocol: what the next life says is what happened."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

import pytest

from perdure.record.errors import SpaceGoneError
from perdure.space import death, supervisor
from perdure.space.client import HostSpace
from perdure.space.space import Exec
from tests.space.conftest import Place, step_numbers, until_async

COMMAND = "echo x >> effects"


async def _story(space: HostSpace) -> None:
    base = (await space.capture(None)).image
    await space.start("l:c:1", Exec(COMMAND), base=base)
    status = await space.wait("l:c:1")
    assert status.capture is not None
    await space.settle(status.capture.image)


@pytest.mark.crash
@pytest.mark.parametrize("custody", ["pidns", "unproven"])
def test_a_supervisor_may_die_at_any_step(custody: str, proven: Place, tmp_path: Path) -> None:
    proven.custody = custody  # type: ignore[assignment]
    order = step_numbers(proven, tmp_path / "trace", _story)
    last = max(number for numbers in order.values() for number in numbers)
    assert last > 20
    for number in range(1, last + 1):
        asyncio.run(_killed_at(proven, number, tmp_path))


async def _killed_at(place: Place, number: int, folder: Path) -> None:
    place.session = f"n{number}"
    place.root = folder / place.session
    place.root.mkdir()
    steps = folder / f"steps.{number}"
    environment = {**os.environ, "PERDURE_STEPS": f"spaced:{number}:kill:{steps}"}
    with contextlib.suppress(SpaceGoneError):
        space = await place.open(1, env=environment)
        await _story(space)
    await until_async(Path(f"{steps}.fired").exists)
    space = await place.open(2, env=environment)
    status = (await space.status({"l:c:1"}))["l:c:1"]
    await until_async(lambda: not place.running("l:c:1"))
    effects = place.root / "effects"
    text = effects.read_text() if effects.exists() else ""
    match status.state:
        case "none":
            assert text == ""
        case "lost":
            assert text in ("", "x\n")
        case "ended":
            assert (status.cause, text) == ("self", "x\n")
            assert status.capture is not None
            assert status.capture.changed == ("effects",)
            assert (await space.capture(None)).image.same_files(status.capture.image)
        case state:
            raise AssertionError(f"{state} after step {number}")
    await space.close()
    place.kill()


def test_a_supervisor_whose_folder_was_deleted_lets_go_of_the_directory(place: Place) -> None:
    """It was never asked for anything, so neither the home nor a log could name it; the next one gets the directory all the same."""

    async def main() -> None:
        folder = place.folder
        await (await place.find(1)).space.close()
        known = supervisor.recorded(folder)
        assert known is not None
        shutil.rmtree(folder)
        await until_async(lambda: death.dead(known.init, known.boot_id))
        assert (await place.find(2)).fresh

    asyncio.run(main())
