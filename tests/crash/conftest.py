"""Worlds that end with the test, whatever became of it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("tests.crash.harness")

from tests.crash.campaign import Undisturbed  # noqa: E402
from tests.crash.harness import World, check  # noqa: E402

NewWorld = Callable[..., World]


@pytest.fixture
def new_world(tmp_path: Path) -> Iterator[NewWorld]:
    """Makes one of what World is made of; nothing of any of them runs on after the test."""
    worlds: list[World] = []
    numbers = itertools.count(1)

    def make(*given: Any, **named: Any) -> World:
        worlds.append(World(tmp_path / f"world-{next(numbers)}", *given, **named))
        return worlds[-1]

    yield make
    for world in worlds:
        world.close()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Undisturbed]:
    world = World(tmp_path_factory.mktemp("undisturbed") / "world")
    try:
        ended = world.run()
        assert ended.said == "settled", ended
        log = world.read()
        check(world, log, kills=0)
        yield Undisturbed(log, {role: world.steps(1, role) for role in ("driver", "spaced")})
    finally:
        world.close()
