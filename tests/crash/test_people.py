"""Whatever dies, and whenever a person works in the same directory: every byte of hers stays, and becomes `workspace_changed`."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from perdure.record import records as r
from tests.crash import people, story
from tests.crash.campaign import Kill, Undisturbed, carry_out, for_each, kills
from tests.crash.conftest import NewWorld
from tests.crash.harness import ASKED, Log, Point, World, check
from tests.crash.story import Files

pytestmark = [pytest.mark.crash, *([pytest.mark.slow] if ASKED else [])]

SHARDS = 4
BEFORE, BETWEEN, LATER = TIMES = ("before", "between", "later")
"""Before the crash; between crash and resume; between settlement and a reboot."""


def hers(*worked: str) -> Files:
    """Her folders: those in which she has worked, and the others."""
    files: Files = {}
    for time in TIMES:
        files.update(people.after(time) if time in worked else people.before(time))
    return files


def expected(world: World, *worked: str) -> Files:
    """The workspace, from the calls' outcomes and from when she has worked."""
    outcomes = {id: body.outcome for id, body in world.read().finished.items()}
    return {**story.after(outcomes), **hers(*worked)}


@pytest.mark.parametrize("shard", range(SHARDS))
def test_what_a_person_does_at_any_time_stays(undisturbed: Undisturbed, shard: int, new_world: NewWorld) -> None:
    def survive(kill: Kill, world: World) -> None:
        world.run(at=Point("driver", undisturbed.steps["driver"].index("ask.before") + 1))
        world.kill_supervisor()
        people.work(world.root, BEFORE)
        carry_out(kill, world)
        people.work(world.root, BETWEEN)
        world.settle()
        assert world.files() == expected(world, BEFORE, BETWEEN)
        people.work(world.root, LATER)
        world.reboot()
        world.settle("--say=again")
        assert world.files() == {**expected(world, *TIMES), story.AGAIN: "again\n"} == world.read().files
        check(world, undisturbed.log, kills=1, theirs={**hers(*TIMES), story.AGAIN: "again\n"})
        assert_told(world.read(), BEFORE, (r.WorkspaceChanged,))
        assert_told(world.read(), BETWEEN, (r.WorkspaceChanged,) if kill.both else (r.WorkspaceChanged, r.CallFinished))
        assert_told(world.read(), LATER, (r.WorkspaceChanged,))

    for_each(kills(undisturbed.steps, part=3)[shard::SHARDS], survive, lambda: new_world(more=hers()), undisturbed.steps)


def assert_told(log: Log, time: str, kinds: tuple[type, ...]) -> None:
    """Each path of hers is named by a record of these kinds."""
    told = {path for body in log.bodies(*kinds) for path in paths(body)}
    assert {f"{time}/{name}" for name in people.PATHS} <= told


def paths(body: r.Body) -> Iterable[str]:
    return body.paths if isinstance(body, r.WorkspaceChanged) else body.changed  # type: ignore[union-attr]
