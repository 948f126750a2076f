"""Another process at the same home, told what to do line by line: `python peer.py HOME [TRACE]`.

    commit SESSION ID TEXT        → the last sequence number
    burst SESSION COUNT           → commits COUNT notes one by one, each acknowledged in the trace, then "done"
    admit SESSION REQUEST TEXT    → the sequence number
    notes SESSION                 → the notes' texts, joined by commas
    stop BEGIN                    → "inside", then SIGSTOP in the middle of a transaction
    hold BEGIN                    → "inside", and stays in a transaction until its end
    die KIND N SESSION ID TEXT    → a commit that ends in SIGKILL before the N-th write or sync

A PerdureError is answered by its name.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import apsw

from perdure.log.conformance import OWNER, note, notes
from perdure.log.faults import Disk
from perdure.log.sqlite import SqliteStore
from perdure.log.store import Admission, Grant
from perdure.record.errors import PerdureError

DISK = Disk("peer", Path(sys.argv[2]) if len(sys.argv) > 2 else None)


async def serve(home: Path) -> None:
    async with await SqliteStore.open(home, vfs=DISK.name) as store:
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            verb, *words = line.split()
            try:
                print(await answer(store, verb, words), flush=True)
            except PerdureError as error:
                print(type(error).__name__, flush=True)


async def answer(store: SqliteStore, verb: str, words: list[str]) -> str:
    match verb, words:
        case "commit", [session, id, text]:
            return str((await store.commit(await grant(store, session), id, [note(text)])).last)
        case "burst", [session, count]:
            right = await grant(store, session)
            for n in range(int(count)):
                await store.commit(right, f"burst{n}", [note(f"{n}")])
                DISK.ack(f"{session} {n}")
            return "done"
        case "admit", [session, request, text]:
            return str((await store.admit(session, Admission(request, note(text)))).seq)
        case "notes", [session]:
            return ",".join(await notes(store, session))
        case "die", [kind, n, session, id, text]:
            right = await grant(store, session)
            DISK.fail = Killer(kind, int(n))
            return str((await store.commit(right, id, [note(text)])).last)
        case "stop" | "hold", _:
            await store._log.read(lambda connection: stay_inside(connection, " ".join(words), stop=verb == "stop"))
            return "left"
    raise ValueError(verb)


async def grant(store: SqliteStore, session: str) -> Grant:
    return Grant(session, (await store.row(session)).epoch, OWNER)


def stay_inside(connection: apsw.Connection, begin: str, *, stop: bool) -> None:
    connection.execute(begin)
    connection.execute("SELECT count(*) FROM record").fetchall()
    print("inside", flush=True)
    if stop:
        os.kill(os.getpid(), signal.SIGSTOP)
        time.sleep(0.2)  # the signal may reach another thread of the process first
    else:
        signal.pause()
    connection.execute("ROLLBACK")


class Killer:
    def __init__(self, kind: str, at: int) -> None:
        self.kind, self.left = kind, at

    def __call__(self, kind: str, file: str) -> None:
        if kind == self.kind:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1])))
