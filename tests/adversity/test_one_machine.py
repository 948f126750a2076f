"""What users of other long-lived agents lost work or money to, on one machine. docs/adversity.md names each case, and where the others are tested."""

from __future__ import annotations

import asyncio
import base64
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from perdure.record import records as r
from perdure.record.errors import StaleEpochError
from perdure.space import death, supervisor
from tests.cli.desk import Desk, until
from tests.cli.desk import bash as desk_bash
from tests.cli.desk import turn as desk_turn
from tests.stage import Stage, bash, call, play, stage, turn

# ---- errors of the model do not repeat effects -------------------------------------------------------------------------------


@pytest.mark.parametrize("times", [2, 3])
def test_a_model_that_fails_after_a_finished_tool_does_not_make_it_run_again(tmp_path: Path, times: int) -> None:
    async def story() -> None:
        error = {"status": 500, "times": times, "after_s": 0.0}
        async with stage(tmp_path, turn("", bash("echo x >> ../count")), turn("done", error=error), "and done") as s:
            first = await s.run()
            assert first.outcome == ("answered" if times < 3 else "failed")
            await s.run("go on")
            assert (tmp_path / "count").read_text() == "x\n"

    play(story())


@pytest.mark.parametrize("reply", [{"text": ""}, {"refused": True}, {"overflow": True}], ids=["blank", "refused", "too long"])
def test_a_reply_that_is_none_repeats_the_request_at_most(tmp_path: Path, reply: dict[str, object]) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo x >> ../count")), {**turn(), **reply}, "never") as s:
            await s.run()
            assert (tmp_path / "count").read_text() == "x\n"

    play(story())


# ---- processes ---------------------------------------------------------------------------------------------------------------


def test_background_jobs_of_many_calls_are_listed_and_die_with_their_space(tmp_path: Path) -> None:
    count = 25
    leave = bash("sleep 1000 & disown; (setsid sleep 1001 &); true")

    async def story() -> None:
        async with stage(tmp_path, *[turn("", leave)] * count, "done") as s:
            await s.run()
            left = (await s.session.state()).workspace.left
            assert len(left) == 2 * count
            assert len({process.pid for process in left}) == 2 * count
            known = supervisor.recorded(s.home.spaces.folder("s"))
            assert known is not None
            inside = members(known.init.pid)
            assert len(inside) > 2 * count
            os.kill(known.init.pid, signal.SIGKILL)
            await death.watch_death(known.init, known.boot_id)
            assert not [pid for pid in inside if Path(f"/proc/{pid}/stat").exists() and state_of(pid) not in "ZX"]

    play(story())


def members(init: int) -> list[int]:
    """Every process below this one, as seen from here."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            children.setdefault(int(fields[1]), []).append(int(entry.name))
    found, queue = [], [init]
    while queue:
        found.append(pid := queue.pop())
        queue += children.get(pid, [])
    return found


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


# ---- disk --------------------------------------------------------------------------------------------------------------------


def test_outputs_are_stored_once_and_the_disk_holds_little_more_than_they(tmp_path: Path) -> None:
    count, size = 12, 1_000_000
    noise = tmp_path / "noise"
    noise.write_bytes(base64.b85encode(random.Random(1).randbytes(size * 4 // 5)))

    async def story() -> None:
        shown = [turn("", bash(f"echo {n}; cat ../noise")) for n in range(count)]
        async with stage(
            tmp_path, *shown, turn("", *[call("read", path=f"output:main.{n + 1}.0") for n in range(count)]), "done"
        ) as s:
            await s.run()
            records = len(await s.records())
        stored = sum(path.stat().st_size for path in (tmp_path / "home").glob("*.db*"))
        assert stored < 1.2 * size * 0.83 + count * 80_000 + records * 2048 + 4 * 2**20, f"{stored:,} bytes"

    play(story())


def test_the_log_grows_by_the_same_with_every_turn(tmp_path: Path) -> None:
    """A copy of the whole state with each step would grow it by ever more."""

    async def story() -> None:
        async with stage(
            tmp_path, *[turn("Working.", call("write", path="a", content=f"{n}\n")) for n in range(90)], "done"
        ) as s:
            await s.run()
            sizes = [len(msgspec.json.encode(stored.body)) for stored in await s.records()]
        third = len(sizes) // 3
        assert sum(sizes[2 * third : 3 * third]) < 1.1 * sum(sizes[third : 2 * third])

    play(story())


def test_five_megabytes_of_output_go_by_reference(tmp_path: Path) -> None:
    async def story() -> None:
        again = call("read", path="output:main.1.0", offset=100_000, limit=2)
        async with stage(tmp_path, turn("", bash("yes 0123456789 | head -c 5000000")), turn("", again), "done") as s:
            assert (await s.run()).text == "done"
            assert max(len(msgspec.json.encode(stored.body)) for stored in await s.records()) < 64 * 1024
            assert "0123456789\n0123456789" in (await s.finished())["main.2.0"].result.text

    play(story())


def test_no_record_knows_where_the_directory_lies(tmp_path: Path) -> None:
    """The log goes to another machine and another path as it is."""

    async def story(s: Stage) -> bytes:
        await s.run()
        return b"".join([msgspec.json.encode(stored.body) for stored in await s.records()])

    async def log() -> bytes:
        async with stage(tmp_path, turn("", call("write", path="a", content="x"), bash("echo y >> a")), "done") as s:
            return await story(s)

    text = play(log()).decode()
    assert "root-s" not in text.replace(str(tmp_path / "s.json"), "")


# ---- who drives --------------------------------------------------------------------------------------------------------------


@pytest.mark.crash
def test_five_watchers_that_are_killed_and_started_again_run_each_step_once(desk: Desk) -> None:
    steps = 12
    turns = [desk_turn("", desk_bash(f"echo {n} >> ../effects; sleep 0.2")) for n in range(steps)]
    session = desk.perdure("run", "go", "--session", "s", "--model", desk.script(*turns, "done"), "--detach")
    assert session.returncode == 0
    chance = random.Random(5)
    watchers = [desk.start("resume", "--watch") for _ in range(5)]
    try:
        deadline = time.monotonic() + 60
        while "submission_settled" not in (kinds := desk.kinds("s")):
            assert time.monotonic() < deadline, kinds
            n = chance.randrange(5)
            watchers[n].kill()
            watchers[n].communicate()
            watchers[n] = desk.start("resume", "--watch")
            time.sleep(0.1)
    finally:
        for watcher in watchers:
            watcher.kill()
            watcher.communicate()
    log = desk.log("s")
    raised = Counter(record["epoch"] for record in log if record["kind"] == "epoch_raised")
    assert max(raised.values()) == 1
    effects = (desk.folder / "effects").read_text().split()
    assert effects == [str(n) for n in range(steps)], "each once, in order"
    assert Counter(record["outcome"] for record in log if record["kind"] == "call_finished") == {"ok": steps}


def test_a_process_that_held_a_session_long_ago_can_not_write_its_old_view(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "one", "two", "three") as s:
            await s.run("first")
            row = await s.session.row()
            old = await s.home.store.acquire("s", s.home.owner, expected=row.epoch, at_least=row.epoch + 1)
            grant = old[0]
            await s.session.drive(take=True)
            await s.run("second")
            before = await s.records()
            with pytest.raises(StaleEpochError):
                await s.home.store.commit(grant, "stale", [r.Draft(r.NoteAdded("an old view"))])
            assert await s.records() == before

    play(story())


def test_a_killed_session_is_listed_at_once_and_taken_over_within_two_seconds(desk: Desk) -> None:
    model = desk.script(desk_turn("", desk_bash("touch begun; sleep 0.5")), "done")
    driver = desk.start("run", "go", "--session", "s", "--model", model)
    until((desk.project / "begun").exists)
    driver.kill()
    driver.communicate()
    listed = desk.json("ls", "--json")
    assert (listed[0]["session"], listed[0]["status"], listed[0]["waiting_for"]) == ("s", "waiting", "needs_driver")
    began = time.time()
    assert desk.perdure("resume", "s").returncode == 0
    taken = [record["at"] for record in desk.log("s") if record["kind"] == "epoch_raised"][-1]
    assert taken - began < 2


# ---- money -------------------------------------------------------------------------------------------------------------------


def test_a_call_that_is_refused_each_time_ends_the_work_after_ten(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(
            tmp_path, *[turn("", call("edit", path="a", edits=[{"old_text": "x", "new_text": "y"}]))] * 50, "done"
        ) as s:
            (s.root / "a").write_text("nothing to find\n")
            answer = await s.run()
            assert (answer.outcome, "failures" in answer.reason) == ("failed", True)
            assert len(await s.bodies(r.CallFinished)) == 10

    play(story())


def test_asking_again_over_restarts_counts_on(tmp_path: Path) -> None:
    """What a restart forgets it pays for again."""

    async def story() -> None:
        async with stage(tmp_path, turn("", error={"status": 503, "times": 99, "after_s": 0.3})) as s:
            submission = await s.session.submit("go")
            for _ in range(6):
                driving = asyncio.create_task(s.session.drive())
                await asyncio.wait((driving,), timeout=0.25)
                driving.cancel()
                await asyncio.gather(driving, return_exceptions=True)
            await s.session.drive()
            assert (await s.session.wait(submission)).outcome == "failed"
            assert len(await s.bodies(r.ModelFailed)) == 3

    play(story())
