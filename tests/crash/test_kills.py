"""A session killed at every commit and protocol step, and again during its recovery: it ends as if nothing had happened, or says what did."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.crash.campaign import Kill, Undisturbed, asked_for, carry_out, for_each, kills
from tests.crash.conftest import NewWorld
from tests.crash.harness import ASKED, World, check, finish, wait_for

pytestmark = [pytest.mark.crash, *([pytest.mark.slow] if ASKED else [])]

SHARDS = 8
AFTERWARDS = 8
"""Steps that are still killed at when the recovery is over."""


def test_there_are_points_enough(undisturbed: Undisturbed) -> None:
    assert sum(map(len, undisturbed.steps.values())) >= 150


@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_session_killed_at_any_step_ends_as_if_it_had_not_been(
    undisturbed: Undisturbed, shard: int, new_world: NewWorld
) -> None:
    def survive(kill: Kill, world: World) -> None:
        carry_out(kill, world)
        world.settle()
        check(world, undisturbed.log, kills=1)

    for_each(kills(undisturbed.steps)[shard::SHARDS], survive, new_world, undisturbed.steps)


# ---- again, during the recovery ----------------------------------------------------------------------------------------------

Cut = Callable[[World, Undisturbed], None]


def at(role: str, name: str, nth: int) -> Cut:
    """Everything dies at the role's nth step of that name."""

    def cut(world: World, undisturbed: Undisturbed) -> None:
        numbers = [n for n, taken in enumerate(undisturbed.steps[role], 1) if taken == name]
        carry_out(Kill(role, numbers[nth - 1], both=True), world)

    return cut


def in_the_slow_command(world: World, undisturbed: Undisturbed) -> None:
    driver = world.start()
    wait_for((world.root / "slow.txt").exists, "the slow command's first line")
    driver.kill()
    finish(driver)
    world.kill_supervisor()


CUTS: dict[str, Cut] = {
    "slow command": in_the_slow_command,
    "write": at("spaced", "file renamed", 1),
    "edit": at("spaced", "file written", 2),
    "moving command": at("spaced", "command ended", 5),
    "reads": at("driver", "op.started:search", 1),
    "charge": at("driver", "op.ended:charge", 1),
    "publish": at("driver", "op.ended:publish", 1),
}
"""What the first crash cuts off, in every class of effect."""


def recovery(cut: Cut, undisturbed: Undisturbed, new_world: NewWorld) -> list[Kill]:
    """The points of the driver that recovers, and of its supervisor, until the recovery is over."""
    world = new_world()
    cut(world, undisturbed)
    world.settle()
    taken = world.both_roles_steps(2)
    over = taken.index(("driver", "recover.end")) + AFTERWARDS
    counts = Counter(role for role, _ in taken[:over])
    alone = [Kill(role, n) for role, count in counts.items() for n in range(1, count + 1)]
    return [*alone, *(kill._replace(both=True) for kill in alone if kill.role == "driver")]


@pytest.mark.parametrize("cut", CUTS.values() if ASKED else [in_the_slow_command], ids=CUTS if ASKED else ["slow command"])
@pytest.mark.parametrize("shard", range(2))
def test_a_recovery_killed_at_any_step_is_recovered(cut: Cut, shard: int, undisturbed: Undisturbed, new_world: NewWorld) -> None:
    def survive(kill: Kill, world: World) -> None:
        cut(world, undisturbed)
        carry_out(kill, world)
        world.settle()
        check(world, undisturbed.log, kills=2)

    points = asked_for() or recovery(cut, undisturbed, new_world)[:: 1 if ASKED else 7]
    for_each(points[shard::2], survive, new_world, {})
