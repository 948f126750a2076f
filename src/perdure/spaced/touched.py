"""The set of paths that events told of, as a scan takes it: a tree of spots from the root down."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Optional


class Spot:
    """A directory on the way: names in it to be looked at, directories to pass through, or everything below.

    `written` are names whose file must have got a new key if the event was about the file that they lead to.
    """

    __slots__ = ("below", "names", "whole", "written")

    def __init__(self, *, whole: bool = False) -> None:
        self.names: set[str] = set()
        self.written: set[str] = set()
        self.below: dict[str, Spot] = {}
        self.whole = whole


WHOLE = Spot(whole=True)


def below(spot: Optional[Spot], name: str) -> Optional[Spot]:
    return spot if spot is None or spot.whole else spot.below.get(name)


class Touched:
    """Paths are relative to the root. `whole` are directories with everything below, `inodes` files with several names that events
    of their own told of, `restated` paths that lead to another file than before. `doubt` says why only a scan can tell, if so."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.whole: set[str] = set()
        self.written: set[str] = set()
        self.restated: set[str] = set()
        self.inodes: set[int] = set()
        self.doubt = ""

    def spots(self) -> Spot:
        top = Spot()
        made = {"": top}
        for path in self.paths:
            above, _, name = path.rpartition("/")
            spot = _spot(made, above)
            spot.names.add(name)
            if path in self.written and path not in self.restated:
                spot.written.add(name)
        for path in self.whole:
            above, _, name = path.rpartition("/")
            _spot(made, above).names.add(name)
        for path in self.whole:
            above, _, name = path.rpartition("/")
            made[above].below[name] = WHOLE
        return top


def spots_of(paths: Iterable[str]) -> Spot:
    touched = Touched()
    touched.paths.update(paths)
    return touched.spots()


def _spot(made: dict[str, Spot], path: str) -> Spot:
    """The spot of a directory, with those above it; without recursion, since trees may be deep."""
    missing = []
    while path not in made:
        missing.append(path)
        path = os.path.dirname(path)
    spot = made[path]
    for path in reversed(missing):
        spot = made[path] = spot.below.setdefault(os.path.basename(path), Spot())
    return spot
