"""Whatever a call did, an undo brings back what was there: random calls, taken back, compared path by path."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.test_scan_fuzz import SEEDS, Caller
from tests.spaced.world import World, window

CALLS = int(os.environ.get("PERDURE_FUZZ_CALLS", "30"))


@pytest.mark.parametrize("engine", ["scan", "watch"])
@pytest.mark.parametrize("own", [True, False], ids=["own workspace", "in place"])
@pytest.mark.parametrize("seed", SEEDS[:4])
def test_an_undo_brings_everything_back(tmp_path: Path, seed: int, own: bool, engine: str) -> None:
    print(f"PERDURE_FUZZ_SEED={seed}")
    world = World(tmp_path, own=own, capture=engine)
    caller = Caller(world.root, random.Random(seed))
    for number in range(CALLS):
        caller.call()
        world.commit()
        before = held(world)
        with window() as lost:
            caller.call()
        told = None if own else lost
        plan = world.plan(told)
        after = held(world)
        stored = set(world.store.values())
        restored = world.restore(plan)
        assert held(world) == before, f"seed {seed}, call {number}"
        assert restored["plan"]["kept"] == [], f"seed {seed}, call {number}"
        for content, *_ in after.values():
            small = isinstance(content, bytes) and 0 < len(content) <= 65536
            assert not small or not content.strip(b"\0") or content in stored, "taken back, and stored nowhere"
        image = world.workspace.capture(world.base)["image"]
        audited = world.workspace.capture(world.base, audit=True)["image"]
        assert (image["tree"], image["times"]) == (audited["tree"], audited["times"]), f"seed {seed}, call {number}"
    world.workspace.engine.close()


def held(world: World) -> dict[str, Any]:
    """What images hold; a FIFO in a directory that was there before stays, since nobody knows whose it is."""
    return {path: found for path, found in world.content().items() if not is_fifo(world.root / path)}


def is_fifo(path: Path) -> bool:
    return path.is_fifo() and not path.is_symlink()
