"""Dead means dead: with custody, one death of the supervisor is the death of everything it ran."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from perdure.record.errors import RootRefusedError, StaleEpochError, SurvivorsError, UsageError
from perdure.record.records import Init
from perdure.space import death, launch, supervisor
from perdure.space.client import HostSpace
from perdure.space.host import HostSpaces
from perdure.space.launch import spaced_command
from perdure.space.space import Exec
from perdure.spaced.boot import boot_id
from tests.space.conftest import Place, run, step_numbers, until, until_async

ESCAPE = "(env -i setsid bash -c '(env -i setsid bash -c \"while :; do echo . >> beat; done\" &)' &) ; sleep 300"


def test_a_child_that_left_its_session_and_its_environment_dies_with_the_init(proven: Place) -> None:
    async def main() -> None:
        space = await proven.open()
        await space.start("l:c:1", Exec(ESCAPE))
        await until_async((proven.root / "beat").exists)
        watching = asyncio.create_task(space.watch_death())
        await asyncio.sleep(0)
        before_ns = time.time_ns()
        os.kill(space.init.pid, signal.SIGKILL)
        dead_at_ns = await watching
        size = (proven.root / "beat").stat().st_size
        assert before_ns <= dead_at_ns <= time.time_ns()
        assert death.dead(space.init, space.incarnation.boot_id) is True
        assert (await proven.find(2)).space is not None
        assert (proven.root / "beat").stat().st_size == size

    asyncio.run(main())


def test_without_custody_the_keepers_end_what_a_killed_supervisor_ran(unproven: Place) -> None:
    async def main() -> None:
        space = await unproven.open()
        await space.start("l:c:1", Exec(ESCAPE + " # here"))
        await until_async((unproven.root / "beat").exists)
        marked = unproven.running("l:c:1")
        assert marked
        unproven.kill()
        await until_async(lambda: not unproven.running("l:c:1"))
        await until_async(lambda: not _writers(unproven))

    asyncio.run(main())


def _writers(place: Place) -> list[str]:
    """Processes that have the workspace as their current directory."""
    found = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and Path(f"/proc/{name}/cwd").readlink() == place.root:
                found.append(name)
        except OSError:
            continue
    return found


def test_the_driver_can_be_killed_with_its_whole_group_and_commands_run_on(place: Place) -> None:
    script = f"""
import asyncio
from pathlib import Path
from tests.space.conftest import Place
from perdure.space.space import Exec
async def main():
    place = Place.__new__(Place)
    place.root, place.home, place.custody = Path({str(place.root)!r}), Path({str(place.home)!r}), {place.custody!r}
    from perdure.space.host import HostSpaces
    place.spaces = HostSpaces(place.home)
    space = await place.open()
    await space.start("l:c:1", Exec("until [ -e go ]; do sleep 0.02; done; touch went"))
    (place.root / "started").touch()
    await asyncio.sleep(300)
asyncio.run(main())
"""
    driver = subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
    until((place.root / "started").exists)
    os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()
    (place.root / "go").touch()
    until((place.root / "went").exists)


def test_nothing_is_left_of_the_starter(proven: Place) -> None:
    async def main() -> None:
        space = await proven.open()
        children = (await asyncio.to_thread(_children, os.getpid())) & {space.init.pid}
        assert not children
        assert death.identify(space.init.pid) == space.init
        known = supervisor.recorded(proven.folder)
        assert known is not None
        assert (known.init, known.instance, known.custody) == (space.init, 1, "pidns")

    asyncio.run(main())


def _children(pid: int) -> set[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return {int(line) for line in found.stdout.split()}


def test_orphans_are_reaped(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        await run(space, "l:c:1", "for i in 1 2 3 4 5; do (setsid sleep 0.05 &); done")
        await until_async(lambda: not place.running("l:c:1"))
        status = await run(space, "l:z:1", "ps -eo stat=,comm= | grep '^Z' | grep -c sleep", mutating=False)
        assert status.result is not None
        assert place.custody == "unproven" or status.result.text == "0\n"

    asyncio.run(main())


def test_a_supervisor_that_says_nothing_is_killed_and_followed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.spaced.wire.SILENCE_S", 0.5)

    async def main() -> None:
        old = await place.open()
        os.kill(old.init.pid, signal.SIGSTOP)
        found = await place.find(2)
        assert found.previous is not None
        assert found.dead_at_ns is not None
        assert death.dead(old.init, old.incarnation.boot_id) is True
        assert found.space.instance == old.instance + 1

    asyncio.run(main())


def test_a_supervisor_that_is_silent_from_its_first_breath_is_killed_and_followed(
    unproven: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has recorded it yet: it is known by the lock that it holds."""
    order = step_numbers(unproven, tmp_path / "trace", _nothing)
    stop = f"spaced:{order['life begins'][0]}:stop:{tmp_path / 'stopped'}"

    async def main() -> None:
        monkeypatch.setattr("perdure.space.host.START_S", 2.0)
        monkeypatch.setattr("perdure.space.launch.START_S", 2.0)
        space = await unproven.open(1, env={**os.environ, "PERDURE_STEPS": stop})
        assert (tmp_path / "stopped.fired").exists()
        assert (await run(space, "l:c:1", "echo on")).cause == "self"

    asyncio.run(main())


async def _nothing(_: HostSpace) -> None:
    pass


def test_a_long_request_is_not_silence(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.spaced.wire.SILENCE_S", 3.5)

    async def main() -> None:
        space = await place.open()
        await space.start("l:c:1", Exec("sleep 5", mutating=False))
        assert (await space.wait("l:c:1")).cause == "self"

    asyncio.run(main())


def test_only_one_supervisor_lives_in_a_state_folder(proven: Place) -> None:
    async def main() -> None:
        first, *others = await asyncio.gather(*(proven.find(1) for _ in range(4)))
        assert {opened.space.instance for opened in others} == {first.space.instance}
        second = subprocess.run(
            spaced_command(str(proven.folder), str(proven.root), "--epoch", "9"), capture_output=True, timeout=20, check=False
        )
        assert second.returncode == 3
        assert proven.spaces.floor(proven.session) == 1

    asyncio.run(main())


def test_a_root_belongs_to_one_supervisor_for_as_long_as_it_needs_it(place: Place) -> None:
    async def main() -> None:
        async def other() -> HostSpace:
            return (await place.spaces.open("s2", root=place.root, epoch=1, custody=place.custody)).space

        space = await place.open()
        with pytest.raises(RootRefusedError, match="in use by session s1"):
            await other()
        await run(space, "l:c:1", "until [ -e go ]; do sleep 0.02; done", background=True)
        await space.close()
        with pytest.raises(RootRefusedError, match="in use by session s1"):
            await other()
        (place.root / "go").touch()
        await until_async(lambda: not place.running("l:c:1"))
        assert (await other()).instance == 1
        assert death.dead(space.init, space.incarnation.boot_id) is True

    asyncio.run(main())


def test_a_root_of_another_home_is_refused(proven: Place, tmp_path: Path) -> None:
    async def main() -> None:
        await proven.open()
        with pytest.raises(RootRefusedError, match="another home"):
            await HostSpaces(tmp_path / "another").open("s1", root=proven.root, epoch=1)

    asyncio.run(main())


def test_a_supervisor_is_not_started_for_an_epoch_below_the_floor(proven: Place) -> None:
    async def main() -> None:
        await proven.open(5)
        assert proven.spaces.floor(proven.session) == 5
        proven.kill()
        with pytest.raises(StaleEpochError):
            await proven.find(4)
        assert proven.spaces.floor(proven.session) == 5

    asyncio.run(main())


def test_a_wrong_token_is_refused(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        space._token = "guessed"
        with pytest.raises(UsageError, match="token"):
            await space.start("l:c:1", Exec("touch never"))
        assert not (place.root / "never").exists()
        assert (place.folder / "token").stat().st_mode & 0o777 == 0o600
        assert place.folder.stat().st_mode & 0o777 == 0o700

    asyncio.run(main())


def test_the_token_is_in_no_environment_or_argument(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        status = await run(space, "l:c:1", "cat /proc/*/environ /proc/*/cmdline; env", mutating=False)
        assert status.result is not None
        output = b"".join([piece async for piece in space.output("l:c:1")])
        assert (place.folder / "token").read_bytes().strip() not in output

    asyncio.run(main())


def test_a_home_with_a_long_path_works(proven: Place) -> None:
    proven.home = proven.home.parent / ("long" * 40)
    proven.spaces = type(proven.spaces)(proven.home)

    async def main() -> None:
        status = await run(await proven.open(), "l:c:1", "echo here")
        assert status.result is not None
        assert status.result.text == "here\n"

    asyncio.run(main())


def test_another_boot_and_another_start_time_are_deaths(proven: Place) -> None:
    here = death.identify(os.getpid())
    assert here is not None
    assert death.dead(here, boot_id()) is False
    assert death.dead(here, "another boot") is True
    assert death.dead(Init(here.pid, here.start_time + 1, here.namespace), boot_id()) is True
    assert death.dead(Init(here.pid, here.start_time, here.namespace + 1), boot_id()) is None


def test_custody_is_chosen_or_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "namespace_problem", lambda: "not today")
    assert launch.choose("auto") == "unproven"
    with pytest.raises(UsageError, match="not today"):
        launch.choose("pidns")


HOP = """
import os, sys, time
open('hopping', 'w').close()
end = time.monotonic() + 20
while time.monotonic() < end:
    if os.fork():
        os._exit(0)
    open('hops', 'a').write('.')
"""


def test_a_process_that_forks_and_leaves_without_end_is_ended_by_the_timeout(place: Place) -> None:
    async def main() -> None:
        (place.root / "hop.py").write_text(HOP)
        space = await place.open()
        status = await run(space, "l:c:1", "for i in 1 2 3 4; do setsid python3 hop.py & done; sleep 100", timeout_s=1.0)
        assert status.cause == "timeout"
        assert place.running("l:c:1") == []

    asyncio.run(main())


def test_a_command_that_ends_every_python_ends_neither_its_keeper_nor_the_supervisor(proven: Place) -> None:
    async def main() -> None:
        space = await proven.open()
        status = await run(space, "l:c:1", "pkill -9 python; echo alive")
        assert status.result is not None
        assert status.result.text == "alive\n"
        assert (await run(space, "l:d:1", "echo still")).cause == "self"

    asyncio.run(main())


def test_a_command_that_kills_its_keeper_is_ended_all_the_same(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        status = await run(space, "l:c:1", "(setsid sleep 100 &) ; kill -9 $PPID; sleep 100")
        assert status.result is not None
        assert "it killed its keeper" in status.result.text
        assert place.running("l:c:1") == []

    asyncio.run(main())


def test_a_supervisor_that_can_not_be_seen_from_here_is_not_followed_until_somebody_says_so(proven: Place) -> None:
    """It lived in another PID namespace, such as a container's: a pid there says nothing here."""

    async def main() -> None:
        await proven.open(1)
        proven.kill()
        known = supervisor.recorded(proven.folder)
        assert known is not None
        there = Init(known.init.pid, known.init.start_time, known.init.namespace + 1)
        (proven.folder / "init.json").write_bytes(
            msgspec.json.encode(msgspec.structs.replace(known, init=there, dead_at_ns=None))
        )
        with pytest.raises(SurvivorsError, match="can't be seen"):
            await proven.open(2)
        with pytest.raises(SurvivorsError, match="can't be seen"):
            await proven.open(2)
        assert (await proven.open(2, accepted=True)).instance == known.instance + 1

    asyncio.run(main())
