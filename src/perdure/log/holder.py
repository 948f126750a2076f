"""Who holds a lock that keeps everybody waiting, and the only case in which that is ended by force."""

from __future__ import annotations

import time
from pathlib import Path

import apsw

from perdure.record.errors import StoreLockedError


class Holder:
    def __init__(self, shm: Path) -> None:
        self._shm = shm

    def patience(self, busy_s: float) -> Patience:
        return Patience(self, busy_s)


class Patience:
    """One request's waiting: after each busy timeout it decides whether to go on."""

    def __init__(self, holder: Holder, busy_s: float) -> None:
        self._holder, self._until = holder, time.monotonic() + 5 * busy_s

    def wait_or_raise(self, error: apsw.BusyError) -> None:
        if time.monotonic() >= self._until:
            raise StoreLockedError("the store is locked") from error
