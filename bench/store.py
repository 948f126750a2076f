"""What the store costs: commits a second, sessions that wait, long logs, files that grow, and what a large change in one session costs another."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import apsw

from bench.figure import Figure, median, percentile
from perdure.api import open
from perdure.engine.home import Home
from perdure.log.sqlite import SqliteStore
from perdure.log.store import Grant, Header, Rest
from perdure.record import records as r
from perdure.record.parts import Text
from perdure.record.records import Draft, Owner

OWNER = Owner("bench", "bench", 1, 1, 1)
COMMIT_S = 3.0
PROCESSES = 4
WAITING = 1000
RECORDS = 10_000
APPENDS = 200
FILE_BYTES = 50_000_000
FILES = 10_000


def measure(folder: Path) -> Iterator[Figure]:
    yield from _commits(folder)
    yield from _idle(folder)
    yield from _reopening(folder)
    yield from _appending(folder)
    yield from _checkout(folder)


# ---- commits a second --------------------------------------------------------------------------------------------------------


def _commits(folder: Path) -> Iterator[Figure]:
    for sessions in (1, 64):
        rate, waits_ms = asyncio.run(_committing(folder / f"commits-{sessions}", sessions, COMMIT_S))
        yield Figure("store", f"commits a second, {sessions} session{'' if sessions == 1 else 's'} of one process", rate, "/s")
        yield Figure("store", f"  a commit's wait there, p99 of {len(waits_ms):,}", percentile(waits_ms, 0.99), "ms")
    home = folder / "commits-processes"
    asyncio.run(_committing(home, 0, 0.0))
    command = [sys.executable, "-m", "bench.store", "commit", str(home)]
    here = Path(__file__).parent.parent
    each = [
        subprocess.Popen([*command, f"p{n}", str(64 // PROCESSES)], cwd=here, stdout=subprocess.PIPE, text=True)
        for n in range(PROCESSES)
    ]
    told = [json.loads(process.communicate()[0]) for process in each]
    yield Figure("store", f"commits a second, 64 sessions of {PROCESSES} processes", sum(rate for rate, _ in told), "/s")
    yield Figure("store", "  a commit's wait there, the worst p99", max(worst for _, worst in told), "ms")


async def _committing(home: Path, sessions: int, seconds: float, prefix: str = "s") -> tuple[float, list[float]]:
    """Each session commits a record of 500 bytes, and the next when that is durable: commits a second, and how long each took."""
    async with await SqliteStore.open(home) as store:
        grants = [await _session(store, f"{prefix}-{n}") for n in range(sessions)]
        until, waits_ms = time.monotonic() + seconds, list[float]()

        async def work(grant: Grant) -> None:
            n = 0
            while (began := time.monotonic()) < until:
                await store.commit(grant, f"c{n}", [Draft(r.NoteAdded("x" * 450))])
                waits_ms.append((time.monotonic() - began) * 1000)
                n += 1

        await asyncio.gather(*map(work, grants))
        return len(waits_ms) / seconds if seconds else 0.0, waits_ms


async def _session(store: SqliteStore, name: str) -> Grant:
    created = r.SessionCreated(f"log-{name}", "coding", "conversation", 1, "scripted:none")
    await store.create(Header(name, f"log-{name}", (Draft(created), Draft(r.ThreadOpened("main"), "main", -1))))
    grant, _ = await store.acquire(name, OWNER, expected=0)
    return grant


# ---- sessions that wait ------------------------------------------------------------------------------------------------------


def _idle(folder: Path) -> Iterator[Figure]:
    home = folder / "idle"
    asyncio.run(_waiting(home))
    none = _watcher(folder / "nobody")
    many = _watcher(home)
    yield Figure("store", f"processes of {WAITING:,} sessions that wait, besides the watcher", many[1], "", "0")
    yield Figure("store", f"memory of a watcher of {WAITING:,} waiting sessions", many[0] / 1e6, "MB")
    yield Figure("store", "  more than that of a watcher of none", (many[0] - none[0]) / 1e6, "MB")
    yield Figure("store", "  its processor time", many[2], "% of one")


async def _waiting(home: Path) -> None:
    async with await SqliteStore.open(home) as store:
        for n in range(WAITING):
            grant = await _session(store, f"idle-{n}")
            await store.release(grant, inbox_seen=9, rest=Rest("waiting", "changed_after_crash", busy=True))


def _watcher(home: Path) -> tuple[float, int, float]:
    """Resident bytes of `resume --watch` once it has looked around, its children, and what it takes of a processor."""
    command = [sys.executable, "-m", "perdure.cli.main", "--home", str(home), "resume", "--watch"]
    watching = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(3.0)
        before = _cpu_s(watching.pid)
        time.sleep(5.0)
        took_s = _cpu_s(watching.pid) - before
        status = Path(f"/proc/{watching.pid}/status").read_text()
        resident = int(status.split("VmRSS:")[1].split()[0]) * 1024
        children = Path(f"/proc/{watching.pid}/task/{watching.pid}/children").read_text().split()
        return resident, len(children), took_s / 5.0 * 100
    finally:
        watching.kill()
        watching.wait()


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- a long log --------------------------------------------------------------------------------------------------------------


def _reopening(folder: Path) -> Iterator[Figure]:
    home = folder / "long"
    asyncio.run(_long_log(home))
    took_ms = [asyncio.run(_time_to_state(home)) for _ in range(5)]
    yield Figure(
        "store", f"a session of {RECORDS:,} records: home opened, state known", median(took_ms), "ms", samples=tuple(took_ms)
    )


async def _long_log(home: Path) -> None:
    digest = "ab" * 32
    async with await SqliteStore.open(home) as store:
        grant = await _session(store, "long")
        for turn in range(1, RECORDS // 5 + 1):
            call = f"main.{turn}.0"
            bodies: list[r.Body] = [
                r.TurnStarted(turn, "q", "scripted:none"),
                r.ModelResponded(turn, 1, (Text("words " * 20),)),
                r.CallProposed(call, "bash", {"command": "true " * 10}, turn),
                r.CallStarted(call, 1, f"log-long:{call}:1", "workspace", base=r.Image(digest, digest, turn)),
                r.CallFinished(call, "ok", r.Result("output " * 30), image=r.Image(digest, digest, turn)),
            ]
            await store.commit(grant, f"t{turn}", [Draft(body, "main") for body in bodies])


async def _time_to_state(home: Path) -> float:
    began = time.perf_counter()
    opened = await Home.open(home)
    try:
        state = await opened.state("long")
        assert state.seq >= RECORDS
        return (time.perf_counter() - began) * 1000
    finally:
        await opened.close()


# ---- a file that grows -------------------------------------------------------------------------------------------------------


def _appending(folder: Path) -> Iterator[Figure]:
    root = folder / "grows"
    root.mkdir()
    (root / "log.txt").write_bytes(random.Random(1).randbytes(FILE_BYTES))
    home = folder / "growing"
    grown = asyncio.run(_appends(home, root, folder / "grows.json"))
    yield Figure(
        "store", f"{APPENDS} calls append 1 KB each to a file of {FILE_BYTES // 10**6} MB: the log grows by", grown / 1e6, "MB"
    )
    yield Figure("store", "  an append", grown / APPENDS / 1e3, "kB")


async def _appends(home: Path, root: Path, script: Path) -> float:
    """Bytes that the store grew by over the appends, the first image not counted."""
    command = "head -c 750 /dev/urandom | base64 -w 0 >> log.txt"
    calls = [{"calls": [{"tool": "bash", "args": {"command": command}}]}] * APPENDS
    script.write_text(json.dumps({"turns": [{"text": "ready"}, *calls, {"text": "done"}]}))
    async with open(home) as opened:
        session = await opened.session("grows", directory=root, model=f"scripted:{script}")
        await session.run("capture")
        first = await session.submit("append")
        before = _size_bytes(home)
        await session.drive()
        assert (await session.wait(first)).outcome == "answered"
        return _size_bytes(home) - before


def _size_bytes(home: Path) -> float:
    """What the store's rows take, WALs written back."""
    total = 0
    for name in ("log.db", "chunks.db"):
        connection = apsw.Connection(str(home / name))
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        pages, free = connection.pragma("page_count"), connection.pragma("freelist_count")
        total += (pages - free) * connection.pragma("page_size")
        connection.close()
    return float(total)


# ---- a large change beside another session -----------------------------------------------------------------------------------


def _checkout(folder: Path) -> Iterator[Figure]:
    for what, processes in (("another process", True), ("the same process", False)):
        place = folder / f"checkout-{processes}"
        place.mkdir()
        took_s, waits_ms = asyncio.run(_beside(place, own_process=processes))
        yield Figure("store", f"git checkout of {FILES:,} changed files, with its capture", took_s, "s")
        yield Figure(
            "store",
            f"  longest wait of a commit meanwhile, in {what}",
            max(waits_ms),
            "ms",
            "< 50",
            tuple(waits_ms),
        )
        yield Figure("store", f"  p99 of {len(waits_ms):,} of them", percentile(waits_ms, 0.99), "ms")


async def _beside(folder: Path, *, own_process: bool) -> tuple[float, list[float]]:
    root, home, script = folder / "repository", folder / "home", folder / "checkout.json"
    _repository(root)
    calls = [{"calls": [{"tool": "bash", "args": {"command": "git checkout -q other"}}]}]
    script.write_text(json.dumps({"turns": [{"text": "ready"}, *calls, {"text": "done"}]}))
    async with open(home) as opened:
        session = await opened.session("checkout", directory=root, model=f"scripted:{script}")
        await session.run("capture")
        store = opened.home.store
        done = asyncio.Event()
        waits_ms: list[float] = []
        if own_process:
            command = [sys.executable, "-m", "bench.store", "beside", str(home)]
            other = await asyncio.create_subprocess_exec(
                *command, cwd=Path(__file__).parent.parent, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            assert other.stdout is not None and await other.stdout.readline()
        else:
            beside = asyncio.create_task(_commit_until(store, done, waits_ms))
        began = time.monotonic()
        answer = await session.run("check out")
        took_s = time.monotonic() - began
        assert answer.outcome == "answered"
        done.set()
        if own_process:
            waits_ms = json.loads((await other.communicate(b"end\n"))[0])
        else:
            await beside
    return took_s, waits_ms


async def _commit_until(store: SqliteStore, done: asyncio.Event, waits_ms: list[float]) -> None:
    grant, n = await _session(store, "beside"), 0
    while not done.is_set():
        began = time.monotonic()
        await store.commit(grant, f"c{n}", [Draft(r.NoteAdded("x" * 450))])
        waits_ms.append((time.monotonic() - began) * 1000)
        n += 1
        await asyncio.sleep(0.005)


def _repository(root: Path) -> None:
    """Two branches whose files all differ, `main` checked out."""
    root.mkdir()
    git = ["git", "-C", str(root), "-c", "user.name=bench", "-c", "user.email=bench@example.org", "-c", "gc.auto=0"]
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    for branch in ("main", "other"):
        if branch == "other":
            subprocess.run([*git, "checkout", "-q", "-b", branch], check=True)
        for n in range(FILES):
            path = root / f"d{n % 100:02}" / f"f{n}"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"{branch} {n}\n" * 100)
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", branch], check=True)
    subprocess.run([*git, "checkout", "-q", "main"], check=True)


# ---- other processes ---------------------------------------------------------------------------------------------------------


async def _other_beside(home: Path) -> None:
    async with await SqliteStore.open(home) as store:
        done, waits_ms = asyncio.Event(), list[float]()
        committing = asyncio.create_task(_commit_until(store, done, waits_ms))
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        done.set()
        await committing
        print(json.dumps(waits_ms))


async def _other_commits(home: Path, prefix: str, sessions: int) -> None:
    rate, waits_ms = await _committing(home, sessions, COMMIT_S, prefix)
    print(json.dumps([rate, percentile(waits_ms, 0.99)]))


if __name__ == "__main__":
    if sys.argv[1] == "beside":
        asyncio.run(_other_beside(Path(sys.argv[2])))
    else:
        asyncio.run(_other_commits(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
