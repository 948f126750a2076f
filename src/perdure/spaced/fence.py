"""The floor: the epoch below which nothing is served any more.

Every request is admitted under the gate's lock and leaves when it is answered; every operation belongs to an epoch. Raising the floor is one
assignment under that lock, after the file was replaced: from then on nothing older is admitted, and whatever older is still at work finds itself
cancelled. `drain` waits for it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import Iterator, NamedTuple

from perdure.spaced import durable
from perdure.spaced.errors import ProtocolError, StaleError
from perdure.spaced.steps import step
from perdure.spaced.wire import Lane

PATIENCE_S = 1.0
_FILE = "floor"


def read_floor(folder: str) -> int:
    """The floor as the file has it; 0 where there is none that can be read: the log has every epoch too."""
    try:
        with open(os.path.join(folder, _FILE), "rb") as file:
            return int(file.read())
    except (FileNotFoundError, ValueError):
        return 0


class Ticket(NamedTuple):
    """A request inside: its epoch, and the lane that it came by."""

    epoch: int
    lane: Lane


class Gate:
    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.lock = threading.RLock()
        self._left = threading.Condition(self.lock)
        self._inside: list[Ticket] = []
        self.floor = read_floor(folder)

    def check(self, epoch: int, *, exactly: bool = False) -> None:
        """StaleError below the floor. `exactly`: what acts on the Space must have fenced it first."""
        if epoch < self.floor:
            raise StaleError("epoch %d is below the floor %d: a newer driver holds the Space" % (epoch, self.floor))
        if exactly and epoch > self.floor:
            raise ProtocolError("epoch %d has not fenced the Space yet, whose floor is %d" % (epoch, self.floor))

    @contextlib.contextmanager
    def admitted(self, epoch: int, lane: Lane, *, exactly: bool = False) -> Iterator[None]:
        ticket = Ticket(epoch, lane)
        with self.lock:
            self.check(epoch, exactly=exactly)
            self._inside.append(ticket)
        try:
            yield
        finally:
            with self.lock:
                self._inside.remove(ticket)
                self._left.notify_all()

    def raise_to(self, epoch: int) -> None:
        """Persist the floor, then let it hold. Called with the lock held."""
        path = os.path.join(self._folder, _FILE)
        step("floor write")
        durable.replace(path, b"%d\n" % epoch)
        step("floor written")
        self.floor = epoch

    def drain(self) -> None:
        """Returns when every request admitted below the floor has been left, answered or not.

        A request finds out by itself that it is stale, unless its client is frozen in the middle of a frame: then the lane is cut.
        """
        with self.lock:
            if not self._left.wait_for(lambda: not self._stale(), PATIENCE_S):
                for ticket in self._stale():
                    ticket.lane.stop()
            self._left.wait_for(lambda: not self._stale())

    def _stale(self) -> list[Ticket]:
        return [ticket for ticket in self._inside if ticket.epoch < self.floor]
