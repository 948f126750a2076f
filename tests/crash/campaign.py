"""Campaigns: the points of a session that nobody disturbed, kills at them, and a world for each.

Each role's steps are traced once. Then every step is a point to kill at, in two ways a role: alone, so that the other one lives on, or with everything else
right after. `PERDURE_CRASH=all` takes every point, `PERDURE_CRASH=driver:30,spaced:44:both` those; otherwise each kind of step is taken once.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable
from typing import NamedTuple

from perdure.record import records as r
from tests.crash.harness import ASKED, Log, Point, World, finish, wait_for


class Undisturbed(NamedTuple):
    """A run that nobody killed: its log, and its steps by role."""

    log: Log
    steps: dict[str, list[str]]


class Kill(NamedTuple):
    """Kill a role at its n-th step; `both`: and right after it the other one, with every command."""

    role: str
    n: int
    both: bool = False

    @classmethod
    def parse(cls, text: str) -> Kill:
        role, n, *both = text.split(":")
        return cls(role, int(n), bool(both))

    def __str__(self) -> str:
        return f"{self.role}:{self.n}{':both' if self.both else ''}"


def kills(steps: dict[str, list[str]], part: int = 1) -> list[Kill]:
    """The ones that were asked for, or every `part`-th of a selection."""
    every = [Kill(role, n, both) for role, names in steps.items() for both in (False, True) for n in range(1, len(names) + 1)]
    if ASKED:
        return asked_for() or every
    return one_of_each(every, lambda kill: (kill.role, steps[kill.role][kill.n - 1]))[::part]


def asked_for() -> list[Kill]:
    """The points that were asked for by their numbers."""
    return [Kill.parse(text) for text in ASKED.split(",") if text not in ("", "all")]


def one_of_each(every: list[Kill], kind: Callable[[Kill], object]) -> list[Kill]:
    """For every kind of step one kill: the kinds take turns in how, and in which of their steps."""
    kinds: dict[object, list[Kill]] = {}
    for kill in every:
        kinds.setdefault(kind(kill), []).append(kill)
    return [found[i * 7 % len(found)] for i, found in enumerate(kinds.values())]


def carry_out(kill: Kill, world: World, *flags: str) -> None:
    """Run a driver until the kill is done, and what it spared has ended too."""
    process = world.start(*flags, at=Point(kill.role, kill.n))
    if kill.both and kill.role == "spaced":
        wait_for(lambda: world.fired(world.runs) or process.poll() is not None, "the kill")
        process.kill()
    ended = finish(process)
    if kill.both:
        world.kill_supervisor()
    if kill.role == "spaced" and not kill.both:
        assert ended.said == "settled", f"the driver did not get over its supervisor's death: {ended}"
    elif world.fired(world.runs):
        assert ended.code == -signal.SIGKILL


def for_each(
    kills: Iterable[Kill], survive: Callable[[Kill, World], None], make: Callable[[], World], steps: dict[str, list[str]]
) -> None:
    """A world for each; all failures are told, not the first alone."""
    failures = []
    for kill in kills:
        world = make()
        try:
            survive(kill, world)
        except Exception as error:
            names = steps.get(kill.role, [])
            name = names[kill.n - 1] if kill.n <= len(names) else "?"
            failures.append(f"{kill} ({name}): {type(error).__name__}: {error}\n{repaired(world)}")
        finally:
            world.close()
    assert not failures, "\n\n".join(failures)


def repaired(world: World) -> str:
    """What recovery did there, by the log, for whoever reads a failure."""
    try:
        bodies = world.read().bodies(r.SpaceLost, r.Recovered, r.WorkspaceChanged, r.SpaceRestored, r.RecoveryAnswered)
    except Exception as error:
        return f"no log can be read: {error}"
    return "\n".join(f"  {body}" for body in bodies)
