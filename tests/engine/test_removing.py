"""Removal: a settled session goes with everything the home keeps of it, in an order that a crash can't spoil, and its directory stays."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.engine import collecting, removing
from perdure.engine.home import Home
from perdure.engine.lease import DriverLock
from perdure.engine.places import driver_lock
from perdure.log.conformance import note
from perdure.log.store import Cut, Header
from perdure.record import records as r
from perdure.record.errors import ConflictError, SessionBusyError, UsageError
from perdure.spaced import steps
from tests.stage import Stage, bash, gone, home_at, play, stage, turn, write_script

ROOT = Path(__file__).parents[2]
WORK = (turn("", bash("head -c 200000 /dev/urandom > big; echo 1 > small")), "done")


def left_of(home: Home, session: str) -> list[str]:
    """What the home's folder still says of it."""
    return [str(path.relative_to(home.path)) for path in home.path.glob(f"*/{session}")]


async def supervisor_of(it: Stage) -> r.Init:
    space = (await it.session.state()).workspace.space
    assert space is not None
    return space.init


def test_a_settled_session_goes_and_its_directory_stays(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, *WORK, name="one") as it:
            await it.run("go")
            supervisor = await supervisor_of(it)
            files = {path.name: path.read_bytes() for path in it.root.iterdir()}
            await it.opened.remove("one")
            assert await it.opened.sessions() == []
            assert left_of(it.home, "one") == []
            await gone(supervisor.pid)
            assert (await it.opened.collect()).chunks > 3
            assert await it.home.store._log.read(lambda c: c.execute("SELECT count(*) FROM chunk").get) == 0
            assert {path.name: path.read_bytes() for path in it.root.iterdir()} == files
            with pytest.raises(UsageError, match="there is no session"):
                await it.opened.remove("one")

    play(story())


def test_its_name_is_free_also_for_who_remembers_it(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, *WORK, name="one") as it, home_at(it.home.path) as other:
            await it.run("go")
            await other.remove("one")
            again = await other.session("one", directory=it.root, model=write_script(tmp_path / "again.json", "anew"))
            assert (await it.session.state()).seq == 2
            assert (await again.run("hello")).text == "anew"
            assert (await it.session.state()).session.outcome == "answered"

    play(story())


def test_what_is_open_is_refused_and_given_up_by_force(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("touch begun; sleep 60")), name="one") as it:
            running = asyncio.create_task(it.run("go"))
            await it.file("begun")
            with pytest.raises(SessionBusyError, match=f"is driven by process {os.getpid()}"):
                await it.opened.remove("one")
            supervisor = await supervisor_of(it)
            await it.opened.remove("one", force=True)
            await asyncio.gather(running, return_exceptions=True)
            await gone(supervisor.pid)
            assert await it.opened.sessions() == [] and left_of(it.home, "one") == []

    play(story())


def test_a_session_that_waits_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, *WORK, name="one") as it:
            await it.session.submit("go")
            with pytest.raises(SessionBusyError, match=r"has work open; .*--force"):
                await it.opened.remove("one")
            it.root.rename(tmp_path / "elsewhere")
            await it.session.drive()
            with pytest.raises(SessionBusyError, match="waits for root_replaced"):
                await it.opened.remove("one")
            await it.opened.remove("one", force=True)
            assert await it.opened.sessions() == []

    play(story())


def test_files_that_exist_nowhere_else_are_not_removed_unasked(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, *WORK, name="one") as it:
            await it.run("go")
            aside = it.home.spaces.folder("one") / "workspace" / "quarantine" / "1" / "large"
            aside.parent.mkdir(parents=True)
            aside.write_text("kept")
            aside.parent.chmod(0o500)
            assert await collecting.old(it.home, older_s=-1) == []
            with pytest.raises(SessionBusyError, match="keeps files that recovery moved out"):
                await it.opened.remove("one")
            assert aside.read_text() == "kept"
            await it.opened.remove("one", force=True)
            assert not aside.exists()

    play(story())


def test_a_submission_that_came_in_meanwhile_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with stage(tmp_path, *WORK, "more", name="one") as it:
            await it.run("go")
            dismantle = removing._dismantle

            async def slowly(home: Home, session: str, epoch: int) -> None:
                await dismantle(home, session, epoch)
                await it.session.submit("more work", request_id="late")

            monkeypatch.setattr(removing, "_dismantle", slowly)
            with pytest.raises(ConflictError):
                await it.opened.remove("one")
            await it.session.drive(take=True)
            assert (await it.session.wait("late", 10)).text == "more"

    play(story())


def test_what_a_fork_begins_with_stays_with_the_fork(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, *WORK, name="one") as it:
            await it.run("go")
            before = await it.records()
            cut = next(s.seq for s in before if isinstance(s.body, r.CallFinished))
            store = it.home.store
            await store.create(Header("fork", "log-fork", (note("forked"),)), parent=Cut("one", cut))
            await it.opened.remove("one")
            await it.opened.collect()
            assert [s async for s in store.read("fork")][:cut] == before[:cut]
            finished = before[cut - 1].body
            assert isinstance(finished, r.CallFinished) and finished.image is not None
            assert len(await store.blobs.has([finished.image.tree])) == 1
            assert await store._log.read(lambda c: c.execute("SELECT count(*) FROM record").get) == cut + 1
            await it.opened.remove("fork")
            assert (await it.opened.collect()).chunks > 3
            assert await store._log.read(lambda c: c.execute("SELECT count(*) FROM session").get) == 0

    play(story())


# ---- old sessions ------------------------------------------------------------------------------------------------------------


def test_old_sessions_go_oldest_first_and_never_one_with_open_work(tmp_path: Path) -> None:
    now = [1_000_000.0]

    async def story() -> None:
        async with home_at(tmp_path / "home", clock=lambda: now[0]) as opened:
            for n, name in enumerate(("a", "b", "c", "open")):
                (tmp_path / name).mkdir()
                script = write_script(tmp_path / f"{name}.json", turn("", bash("head -c 100000 /dev/urandom > f")), "done")
                session = await opened.session(name, directory=tmp_path / name, model=script)
                now[0] += 86400
                await session.run("go")
                if name == "open":
                    await session.submit("more")
                assert n == len(await opened.sessions()) - 1

            async def old(**limits: float) -> list[str]:
                return [each.row.session for each in await collecting.old(opened.home, **limits)]  # type: ignore[arg-type]

            assert await old() == []
            assert await old(older_s=2.5 * 86400) == ["a"]
            assert await old(older_s=-1) == ["a", "b", "c"]
            assert await old(keep_bytes=10_000_000) == []
            assert await old(keep_bytes=250_000) == ["a", "b"]
            assert await old(keep_bytes=0) == ["a", "b", "c"]
            assert await old(keep_bytes=350_000, older_s=2.5 * 86400) == ["a"]
            (weighed, *_) = await collecting.old(opened.home, keep_bytes=0)
            assert weighed.bytes is not None and 100_000 < weighed.bytes < 110_000

    play(story())


# ---- deaths ------------------------------------------------------------------------------------------------------------------


@pytest.mark.crash
def test_a_removal_that_is_killed_at_any_step_can_be_repeated(tmp_path: Path) -> None:
    async def prepare() -> r.Init:
        async with stage(tmp_path, *WORK, name="one") as it:
            await it.run("go")
            return await supervisor_of(it)

    async def repeat() -> None:
        async with home_at(tmp_path / "home") as opened:
            if await opened.sessions():
                await opened.remove("one", force=True)
            await opened.collect()
            assert left_of(opened.home, "one") == list(opened.home.path.glob("spaces/*")) == []
            for table in ("session", "record", "committed", "request", "binding", "chunk", "delta"):
                database = opened.home.live._database if table == "delta" else opened.home.store._log
                assert await database.read(lambda c, t=table: c.execute(f"SELECT count(*) FROM {t}").get) == 0, table  # type: ignore[misc]

    seen = []
    for at in range(1, 30):
        supervisor = play(prepare())
        trace = tmp_path / f"trace-{at}"
        environment = {**os.environ, steps.ENVIRONMENT: f"driver:{at}:kill:{trace}"}
        died = subprocess.run([sys.executable, "-m", __name__, str(tmp_path / "home")], cwd=ROOT, env=environment, check=False)
        play(repeat())
        play(gone(supervisor.pid))
        assert (tmp_path / "root-one" / "small").read_text() == "1\n"
        if died.returncode == 0:
            break
        assert died.returncode == -signal.SIGKILL
        seen.append(trace.read_text().splitlines()[-1].split(" ", 2)[2])
    assert {"remove.acquire", "remove.space", "remove.live", "remove.log", "remove.purge", "collect.sweep"} <= set(seen)


def test_a_removed_lock_is_let_go_and_its_descriptor_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    lock = DriverLock(driver_lock(tmp_path, "s"))
    lock.hold(3)
    lock.remove(3)
    lock.drop(3)
    assert not (tmp_path / "sessions" / "s").exists()
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


async def _remove(home: str) -> None:
    async with home_at(Path(home)) as opened:
        await opened.remove("one")
        await opened.collect()


if __name__ == "__main__":
    steps.listen("driver")
    asyncio.run(_remove(sys.argv[1]))
