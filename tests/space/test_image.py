"""An image can be read from its chunks alone: nothing of the workspace, the index or the supervisor is needed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from perdure.record.errors import BlobGoneError
from perdure.space import image
from perdure.spaced.tree import DIRECTORY, LINK
from tests.spaced.world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path, own=True)
    world.put("small", "content")
    world.put("dir/sub/large", os.urandom(3 << 20) + b"\0" * (2 << 20) + b"end")
    world.put("dir/empty", "")
    world.put("dir/zeros", b"\0" * 100)
    world.put(os.fsdecode(b"caf\xe9"), "latin")
    (world.root / "link").symlink_to("dir/sub")
    (world.root / "nothing").mkdir(mode=0o700)
    for number in range(700):
        world.put(f"many/{number}", str(number))
    world.commit()
    return world


class Source:
    """Counts the requests that a reader makes."""

    def __init__(self, store: Mapping[str, bytes]) -> None:
        self.store, self.requests = store, 0

    async def __call__(self, digests: Iterable[str]) -> dict[str, bytes]:
        self.requests += 1
        return {digest: self.store[digest] for digest in digests if digest in self.store}


def test_everything_that_the_workspace_held_is_read_back(world: World) -> None:
    assert world.base is not None
    source, root = Source(world.store), world.base["tree"]

    async def read() -> dict[str, tuple[object, int]]:
        found: dict[str, tuple[object, int]] = {}
        async for path, entry in image.walk(root, source):
            held: object = "directory" if entry.kind == DIRECTORY else await image.content(entry, source)
            found[os.fsdecode(path)] = (os.fsdecode(held) if entry.kind == LINK and isinstance(held, bytes) else held, entry.mode)
        return found

    assert asyncio.run(read()) == {path: (held, mode) for path, (held, mode, _) in world.content().items()}


def test_a_path_is_read_without_reading_the_rest(world: World) -> None:
    assert world.base is not None
    source, root = Source(world.store), world.base["tree"]
    assert asyncio.run(image.read(root, "dir/zeros", source)) == b"\0" * 100
    assert source.requests <= 4
    assert asyncio.run(image.read(root, os.fsdecode(b"caf\xe9"), source)) == b"latin"
    assert asyncio.run(image.read(root, "many/699", source)) == b"699"
    assert asyncio.run(image.read(root, "link", source)) == b"dir/sub"
    for path in ("missing", "dir", "small/below", "many/700"):
        assert asyncio.run(image.read(root, path, source)) is None


def test_a_level_costs_one_request_however_wide_it_is(world: World) -> None:
    assert world.base is not None
    for number in range(200):
        world.put(f"wide/{number}/file", str(number))
    world.commit()
    source = Source(world.store)

    async def count() -> int:
        return len([path async for path, _ in image.walk(world.base["tree"], source)])  # type: ignore[index]

    assert asyncio.run(count()) == len(world.content())
    assert source.requests < 10


def test_a_missing_chunk_is_named(world: World) -> None:
    assert world.base is not None
    root = world.base["tree"]
    with pytest.raises(BlobGoneError) as error:
        asyncio.run(image.read(root, "small", Source({})))
    assert error.value.digests == (root,)
