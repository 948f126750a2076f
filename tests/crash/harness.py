"""One session in a world of its own, driven by real processes that campaigns kill, and the questions that are asked of it afterwards.

A *point* is the n-th step of a role (`perdure.spaced.steps`). A world is run up to a point, goes on until it has settled, and `check` compares what is left of
it with what the oracle (`tests.crash.story`) and the table of decisions demand: transcript, workspace, image, and the counters outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from perdure.history.compare import compare
from perdure.log.sqlite import SqliteStore
from perdure.record import records as r
from perdure.record.records import Stored
from perdure.space import death, launch, sandbox
from perdure.spaced.tree import DIRECTORY
from perdure.state.state import fold_all
from perdure.state.threads import Answered, Entry, Returned, Said
from tests.crash import driver, story
from tests.crash.story import Files

CHECKOUT = Path(__file__).parents[2]
ASKED = os.environ.get("PERDURE_CRASH", "")
"""Which points, if not a selection of them (`tests.crash.campaign`)."""

Ledger = dict[str, str]
"""By key: `open`, or the cause of its end."""

RUN_S = 60.0
RESUMES = 5


class Point(NamedTuple):
    """The n-th step of a driver or a supervisor, and what happens there."""

    role: str
    n: int
    action: str = "kill"

    def setting(self, file: Path) -> str:
        return f"{self.role}:{self.n}:{self.action}:{file}"


class Exit(NamedTuple):
    """How a driver ended: the text that it had shown, piece by piece, and what it said at its end, if it came to one."""

    code: int
    shown: list[str]
    said: str
    error: str


class World:
    """`folder` holds everything: the home, the workspace `root`, the counters, and the trace of steps."""

    def __init__(self, folder: Path, script: Path | None = None, *, more: Files = {}) -> None:  # noqa: B006
        self.folder = folder
        self.home, self.root, self.effects = folder / "home", folder / "root", folder / "effects"
        for path in (self.root, self.effects, self.state_folder):
            path.mkdir(parents=True, mode=0o700)
        for name, content in {**story.BEFORE, **more}.items():
            if content is None:
                (self.root / name).mkdir()
            else:
                (self.root / name).write_text(content)
        self.script = script or story.script(folder / "script.json")
        self.runs = 0
        self.boots = 0

    # ---- running -----------------------------------------------------------------------------------------------------------

    def start(self, *flags: str, at: Point | None = None) -> subprocess.Popen[str]:
        """A driver, in the background. Its steps, and those of a supervisor that it starts, go to `steps-<run>`."""
        self.runs += 1
        file = self.trace(self.runs)
        files = {"driver": file, "spaced": Path(sandbox.STATE, file.name) if story.HERMETIC else file}
        settings = {role: Point(role, 0, "trace").setting(file) for role, file in files.items()}
        if at is not None:
            settings[at.role] = at.setting(files[at.role])
        if self.boots:
            flags = (*flags, f"--boot={self.folder / 'boot_id'}")
        return subprocess.Popen(
            [sys.executable, "-m", "tests.crash.driver", str(self.home), str(self.root), str(self.script), *flags],
            cwd=CHECKOUT,
            env={
                **os.environ,
                "EFFECTS": str(self.effects),
                "PERDURE_STEPS": settings["driver"],
                "SPACED_STEPS": settings["spaced"],
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *flags: str, at: Point | None = None) -> Exit:
        """A driver from start to end."""
        return finish(self.start(*flags, at=at))

    def settle(self, *flags: str) -> int:
        """Resume until it has settled; how many drivers that took. Files that changed after a crash are kept."""
        for n in range(1, RESUMES + 1):
            ended = self.run(*flags)
            if ended.said == "settled":
                return n
            assert ended.said == "changed_after_crash", f"a driver that nobody killed ended with {ended}"
            flags = (*flags, "--answer=changed_after_crash=keep")
        raise AssertionError(f"not settled after {RESUMES} drivers")

    def trace(self, run: int) -> Path:
        """Where the steps of a run are told; a sandbox sees the state folder alone, at a place of its own."""
        return (self.state_folder if story.HERMETIC else self.folder) / f"steps-{run}"

    def steps(self, run: int, role: str) -> list[str]:
        """The names of the steps that one run's processes of a role took, in order."""
        return [name for who, name in self.both_roles_steps(run) if who == role]

    def both_roles_steps(self, run: int) -> list[tuple[str, str]]:
        """The steps of one run, as (role, name)."""
        if not self.trace(run).exists():
            return []
        lines = (line.split(" ", 2) for line in self.trace(run).read_text().splitlines())
        return [(role, name) for role, _, name in lines]

    def fired(self, run: int) -> bool:
        """Whether the run came to its point."""
        return self.trace(run).with_name(f"steps-{run}.fired").exists()

    # ---- the supervisor ----------------------------------------------------------------------------------------------------

    @property
    def state_folder(self) -> Path:
        return self.home / "spaces" / driver.SESSION

    def supervisor(self) -> int | None:
        """The pid of its living supervisor."""
        try:
            known = json.loads((self.state_folder / "init.json").read_text())
        except FileNotFoundError:
            return death.lock_holder(self.state_folder / "lock") if (self.state_folder / "lock").exists() else None
        alive = death.identify(known["init"]["pid"]) == r.Init(**known["init"])
        return int(known["init"]["pid"]) if alive else None

    def kill_supervisor(self) -> None:
        """Kill it with all it has; returns when it is dead."""
        pid = self.supervisor()
        if pid is not None:
            os.kill(pid, signal.SIGKILL)
            wait_for(lambda: self.supervisor() is None, "the supervisor's death")

    def reboot(self) -> None:
        """Everything dies; drivers and supervisors from now on live in another boot of the kernel."""
        self.kill_supervisor()
        self.boots += 1
        (self.folder / "boot_id").write_text(f"boot-{self.boots}\n")

    def close(self) -> None:
        """Nothing of this world runs on, and nothing of it stays."""
        if not self.folder.exists():
            return
        self.kill_supervisor()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder)

    def processes(self) -> list[int]:
        """Everything that runs on behalf of this world, by its environment."""
        mark = f"EFFECTS={self.effects}\0".encode()
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                    found.append(int(entry.name))
        return found

    # ---- what is left ------------------------------------------------------------------------------------------------------

    def files(self) -> Files:
        """The workspace as it lies on the disk."""
        paths = sorted(self.root.rglob("*"))
        return {str(path.relative_to(self.root)): None if path.is_dir() else path.read_text() for path in paths}

    def scanned(self) -> str:
        """The digest of the workspace's tree, by a scan that takes no cache, as `perdure verify` does it."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            done = subprocess.run(launch.spaced_command("--scan", str(self.root), folder), capture_output=True, check=True)
        return str(json.loads(done.stdout)["image"]["tree"])

    def counts(self) -> dict[str, list[str]]:
        """The keys that each counter outside was raised with."""
        return {path.name: path.read_text().split() for path in self.effects.iterdir()}

    def read(self) -> Log:
        return asyncio.run(self._read())

    async def _read(self) -> Log:
        store = await SqliteStore.open(self.home)
        try:
            records = [stored async for stored in store.read(driver.SESSION)]
            images = [b.image for b in (s.body for s in records) if isinstance(b, IMAGED) and b.image is not None]
            restored = [s.body.to_image for s in records if isinstance(s.body, r.SpaceRestored)]
            newest = max((*images, *restored), key=lambda image: image.clock_ns)
            files = await _image(store, newest.tree)
            return Log(records, newest, files)
        finally:
            await store.close()

    async def image(self, root: str) -> Files:
        """The files of an image in the store."""
        store = await SqliteStore.open(self.home)
        try:
            return await _image(store, root)
        finally:
            await store.close()

    def ledger(self) -> Ledger:
        """What the supervisors' ledger says now."""
        found: Ledger = {}
        for line in self._ledger_lines():
            if "begin" in line:
                found[line["begin"]] = "open"
            elif "end" in line:
                found[line["end"]] = line["cause"]
        return found

    def last_sign_of_life(self) -> int | None:
        """The wall clock in ns at which the newest operation that has not ended was last known to run; None if there is none."""
        begun = [line for line in self._ledger_lines() if "begin" in line and self.ledger()[line["begin"]] == "open"]
        if not begun:
            return None
        stamped_ns = int((self.state_folder / "stamp").read_text().split()[1])
        return max(stamped_ns, *(int(line["started_ns"]) for line in begun))

    def _ledger_lines(self) -> list[dict[str, Any]]:
        file = self.state_folder / "ledger"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


async def _image(store: SqliteStore, root: str) -> Files:
    files: Files = {}
    for item in await compare(None, root, store.blobs.get):
        assert item.after is not None
        if item.after.kind == DIRECTORY:
            files[os.fsdecode(item.path)] = None
        else:
            digest = item.after.digest.hex()
            files[os.fsdecode(item.path)] = (await store.blobs.get([digest]))[digest].decode()
    return files


IMAGED = (r.CallFinished, r.WorkspaceChanged)


class Log(NamedTuple):
    """The records, the newest image, and the files that it holds."""

    records: list[Stored]
    image: r.Image
    files: Files

    def bodies(self, *kinds: type[r._Body]) -> list[r.Body]:
        return [stored.body for stored in self.records if isinstance(stored.body, kinds)]

    @property
    def finished(self) -> dict[str, r.CallFinished]:
        return {body.call: body for body in self.bodies(r.CallFinished)}

    def transcript(self, *, notes: bool = True) -> list[object]:
        """What was said and done, as the model reads it; a call that was cut off is named only. `notes` tell of other people's changes."""
        entries = fold_all(self.records).threads["main"].entries
        return [_normalised(entry) for entry in entries if notes or not (isinstance(entry, Said) and entry.note)]

    def changed_by_others(self) -> set[str]:
        """The paths that the log says other people changed."""
        return {path for body in self.bodies(r.WorkspaceChanged) for path in body.paths}  # type: ignore[union-attr]

    def changed(self) -> dict[str, tuple[str, ...]]:
        """The paths that each call changed, where it was not cut off."""
        return {id: body.changed for id, body in self.finished.items() if body.outcome == "ok"}


def _normalised(entry: Entry) -> object:
    match entry:
        case Returned(outcome="ok"):
            return replace(entry, text=re.sub(r"pid \d+", "pid", entry.text))
        case Returned():
            return entry.call
        case Answered():
            return replace(entry, model="")
        case _:
            return entry


# ---- judging ---------------------------------------------------------------------------------------------------------------


def check(world: World, expected: Log, *, kills: int, theirs: Files | None = None, ledger: Ledger | None = None) -> None:
    """Whatever was killed: nothing acknowledged is lost, nothing outside happened twice, and the files are what the log says.

    `theirs` is what people have made beside; `ledger` is what it said before a reboot made it void.
    """
    log = world.read()
    outcomes = {id: body.outcome for id, body in log.finished.items()}
    assert len(log.bodies(r.CallFinished)) == len(outcomes), "a call finished twice"
    cut_off = {id for id, outcome in outcomes.items() if outcome != "ok"}
    assert len(cut_off) <= kills, f"{kills} kill(s) cut off {cut_off}"
    ledger, counts = ledger or world.ledger(), world.counts()
    for id, step in story.calls().items():
        judge(id, step, ledger, log)
        counted = counts.get(step.counter, [])
        if step.effect == "external" and step.counter:
            assert len(counted) <= 1, f"{id} took effect {len(counted)} times"
        if step.counter and outcomes[id] == "ok" and not step.args.get("background"):
            assert counted, f"{id} took no effect"
        assert len(set(counted)) <= 1, f"{id} was repeated with another key: {counted}"
    assert world.files() == {**story.after(outcomes), **(theirs or {})}, "the workspace is not the effect of the calls"
    assert log.files == world.files(), "the newest image is not the workspace"
    assert log.image.tree == world.scanned(), "the newest image is not what a scan of every byte and mode finds"
    demanded = [e.call if isinstance(e, Returned) and e.call in cut_off else e for e in expected.transcript()]
    notes = theirs is None and not story.HERMETIC  # scratch files that are gone with a sandbox are told of
    for got, wanted in zip_longest(log.transcript(notes=notes)[: len(demanded)], demanded):
        assert got == wanted
    if theirs is None:
        assert not log.changed_by_others(), "a call's changes are taken for somebody else's"
        assert log.changed() == {id: paths for id, paths in expected.changed().items() if id not in cut_off}
        assert cut_off or log.image.tree == expected.image.tree, "the image differs from that of an uninterrupted run"


def judge(id: str, step: story.Step, ledger: Ledger, log: Log) -> None:
    """The table of decisions, from the ledger's evidence: which attempts there may be, and how the last one ends."""
    attempts = [body for body in log.bodies(r.CallStarted) if body.call == id]  # type: ignore[union-attr]
    outcome = log.finished[id].outcome
    lost = [ledger.get(body.key, "none") in ("open", "fenced", "shutdown") for body in attempts]  # type: ignore[union-attr]

    def kept(attempt: r.Body) -> bool:
        """Whether its undo left as it was what others had changed: a command of a sandbox is not run again then."""
        undone = (body for body in log.bodies(r.Recovered) if (body.call, body.attempt) == (id, attempt.attempt))  # type: ignore[union-attr]
        return any(body.kept for body in undone)  # type: ignore[union-attr]

    if step.tool in ("charge", "publish"):
        cut = any(isinstance(body, r.Recovered) and body.call == id for body in log.bodies(r.Recovered))
        assert outcome == ("unknown" if cut and step.effect == "external" else "ok"), f"{id} ended {outcome}"
        assert step.effect == "idempotent" or len(attempts) == 1, f"{id} was run again"
        return
    for body, was_lost in zip(attempts[:-1], lost[:-1], strict=True):
        state = ledger.get(body.key, "none")  # type: ignore[union-attr]
        assert state == "none" or was_lost, f"{id} was run again though it had ended: {state}"
        assert state == "none" or step.effect != "external", f"{id} was run again though it had begun"
        assert step.tool != "bash" or not kept(body), f"{id} was run again beside what people had made of its files"
    if lost[-1]:
        may = step.effect == "external" or (step.tool == "bash" and kept(attempts[-1]))
        assert may and outcome == "interrupted", f"{id} was lost and ended {outcome}"
    else:
        assert outcome == "ok", f"{id} ended {outcome}: {log.finished[id].result.text}"


# ---- small things ----------------------------------------------------------------------------------------------------------


def finish(process: subprocess.Popen[str], timeout_s: float = RUN_S) -> Exit:
    """Wait for a driver. One that hangs is killed, and that is a failure."""
    try:
        said, error = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        said, error = process.communicate()
        raise AssertionError(f"a driver hung for {timeout_s:g} s; it said {said!r} {error!r}") from None
    lines = said.splitlines()
    shown = [json.loads(line) for line in lines if line.startswith('"')]
    return Exit(process.returncode, shown, lines[-1] if lines[len(shown) :] else "", error.strip())


def wait_for(fact: object, what: str, timeout_s: float = RUN_S) -> None:
    """Until the callable is true."""
    assert callable(fact)
    deadline = time.monotonic() + timeout_s
    while not fact():
        assert time.monotonic() < deadline, f"{what} did not come within {timeout_s:g} s"
        time.sleep(0.002)
