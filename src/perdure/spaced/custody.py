"""The means to kill every process of a Space, and to know that they are dead.

`pidns`: this supervisor is PID 1 of a namespace of its own. Nothing can leave it, `kill(-1)` reaches everything in it, and the kernel
kills the rest when PID 1 dies. `unproven`: a subreaper (Linux) or nothing but process groups (elsewhere); it does as well while the supervisor
lives, but a violent death of the supervisor proves nothing about its children.

The reaper is the only one who waits for this process's children, and takes a dead child's pid away only under `reaping`: whoever holds that
lock may signal a child by pid. Exit codes do not come this way: a keeper reports them through its pipe.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from typing import Mapping, Sequence

from perdure.spaced import processes
from perdure.spaced.keeper import Keeper, subreaper
from perdure.spaced.processes import Row
from perdure.spaced.steps import step

KILL_PAUSE_S = 0.002
GIVE_UP_S = 30.0


class Custody:
    """`keepers` has every keeper's pid with the key of the command that it keeps, empty while it waits for one."""

    def __init__(self) -> None:
        self.proven = os.getpid() == 1
        self.generation = ""
        self.reaping = threading.Lock()
        self.life, self._alive = os.pipe()
        self.keepers: dict[int, str] = {}
        self.groups: dict[int, str] = {}
        self._waiting: list[Keeper] = []
        self._orphans = False
        if not self.proven:
            subreaper()

    def prepare(self) -> None:
        """Fork the first keeper while this process is still small: a fork holds on to the pages that it began with."""
        with self.reaping:
            self._waiting.append(self._fork())

    def keep(self, key: str, arguments: Sequence[str], environment: Mapping[str, str], output_fd: int) -> Keeper:
        """Have the program run by a keeper. To be called under `reaping`."""
        while True:
            keeper = self._waiting.pop() if self._waiting else self._fork()
            self._wake(keeper)
            try:
                keeper.run(arguments, environment, output_fd)
            except ConnectionError:  # it was killed while it waited
                keeper.channel.close()
                continue
            self.keepers[keeper.pid] = key
            return keeper

    def wake(self, keeper: Keeper) -> None:
        """It goes on, if a command has stopped it: `kill -STOP -1` means everything."""
        with self.reaping:
            self._wake(keeper)

    def _wake(self, keeper: Keeper) -> None:
        if keeper.pid in self.keepers:
            os.kill(keeper.pid, signal.SIGCONT)

    def release(self, keeper: Keeper, *, again: bool) -> None:
        """Its command is over for the supervisor; `again`: so it is for the keeper."""
        with self.reaping:
            if again and not self._waiting and keeper.pid in self.keepers:
                self.keepers[keeper.pid] = ""
                self._waiting.append(keeper)
                return
        keeper.channel.close()

    def _fork(self) -> Keeper:
        keeper = Keeper(self.life)
        self.keepers[keeper.pid] = ""
        return keeper

    def reap(self) -> bool:
        """Bury every dead child, adopted orphans included. True when there is none left, dead or alive: on Linux then no descendant is either."""
        while True:
            try:
                with self.reaping:
                    pid, _ = os.waitpid(-1, os.WNOHANG)
                    if pid and self.keepers.pop(pid, None) != "":
                        self._orphans = True  # this one was such, or was a keeper and may have left some
            except ChildProcessError:
                return True
            if pid == 0:
                return False

    def living(self) -> dict[int, tuple[Row, str | None]]:
        """Every process of the Space but this one and the keepers, with the key of the operation that started it.

        Where a command killed its own keeper, the environment that its orphans started with is all that tells. Nothing is read while every keeper
        waits: each had no child any more.
        """
        own = os.getpid()
        with self.reaping:
            keepers = dict(self.keepers)
            if processes.LINUX and not self._orphans and not any(keepers.values()):
                return {}
            self._orphans = False
        rows = processes.table()
        found: dict[int, tuple[Row, str | None]] = {}
        for row in processes.descendants(rows, [own]):
            orphan = row.parent == own and row.pid not in keepers
            self._orphans = self._orphans or orphan
            found[row.pid] = (row, processes.marked(row.pid, self.generation) if orphan else None)
        for keeper, key in keepers.items():
            for row in processes.descendants(rows, [keeper]):
                found[row.pid] = (row, key)
        if not processes.LINUX:
            found.update((row.pid, (row, self.groups[row.group])) for row in rows.values() if row.group in self.groups)
        return {pid: one for pid, one in found.items() if pid not in keepers and pid != own}

    def of(self, key: str) -> list[Row]:
        return [row for row, owner in self.living().values() if owner == key]

    def kill_all(self) -> int:
        """Every other process of the Space dies, keepers included; returns when none is left, how many there were at first."""
        count = len(self.living())
        deadline = time.monotonic() + GIVE_UP_S
        step("kill all")
        while not self._strike():
            if time.monotonic() > deadline:
                raise TimeoutError("processes of the Space do not die: %s" % sorted(self.living()))
            time.sleep(KILL_PAUSE_S)
        step("killed all")
        return count

    def _strike(self) -> bool:
        """One blow at everything; True when nothing is left, by the kernel's word and not by a list that is old when it is read."""
        if self.proven:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
            return self.reap()
        with self.reaping:
            keepers = dict(self.keepers)
            for pid in keepers:
                # A keeper goes first: its children come to the supervisor instead of being started anew below it.
                os.kill(pid, signal.SIGKILL)
        rows = [row for row, _ in self.living().values()]
        processes.kill(rows)
        return self.reap() and (processes.LINUX or not rows)
