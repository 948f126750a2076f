"""A supervisor that lives and can't do what a recovery asks of it: the session waits by name instead of asking for ever."""

from __future__ import annotations

import pytest

from tests.crash.campaign import Undisturbed
from tests.crash.conftest import NewWorld
from tests.crash.harness import check, finish, wait_for

pytestmark = pytest.mark.crash


def test_an_undo_that_fails_again_and_again_waits_until_it_can_be_done(new_world: NewWorld, undisturbed: Undisturbed) -> None:
    world = new_world()
    driver = world.start()
    wait_for((world.root / "slow.txt").exists, "the slow command's first line")
    driver.kill()
    finish(driver)
    world.kill_supervisor()
    in_the_way = world.state_folder / "workspace" / "plan"
    in_the_way.mkdir()
    assert world.run().said == "space_unavailable"
    assert (world.root / "slow.txt").exists()
    in_the_way.rmdir()
    assert world.settle() == 1
    check(world, undisturbed.log, kills=1)
