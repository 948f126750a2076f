"""A driver's death is proven and told at once; a living driver is never taken for dead."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from perdure.engine.lease import DriverLock, holder, lapse
from perdure.engine.process import alive, identify, stopped, wait_death
from perdure.record.errors import SessionBusyError
from perdure.record.records import Init, Owner
from perdure.space import death

DRIVER = """
import sys
from pathlib import Path
from perdure.engine.lease import DriverLock
lock = DriverLock(Path(sys.argv[1]))
for line in sys.stdin:
    verb, epoch = line.split()
    try:
        getattr(lock, verb)(int(epoch))
        print("done", flush=True)
    except Exception as error:
        print(type(error).__name__, error, flush=True)
"""


class Driver:
    """Another process with a DriverLock of its own."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def do(self, verb: str, epoch: int) -> str:
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(f"{verb} {epoch}\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    @property
    def owner(self) -> Owner:
        return owner_of(self.process.pid)


def owner_of(pid: int) -> Owner:
    init = death.identify(pid)
    assert init is not None
    return msgspec.structs.replace(identify(), pid=pid, start_time=init.start_time)


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


@contextmanager
def sleepers(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    started = [subprocess.Popen(["sleep", "600"]) for _ in range(count)]
    try:
        yield started
    finally:
        for child in started:
            child.kill()
            child.wait()


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    driver = Driver(tmp_path / "driver.lock")
    try:
        yield driver
    finally:
        driver.process.kill()
        driver.process.communicate()


# ---- the lock --------------------------------------------------------------------------------------------------------------


def test_a_held_epoch_names_its_holder_and_refuses_another_driver(tmp_path: Path, driver: Driver) -> None:
    path = tmp_path / "driver.lock"
    assert holder(path, 7) is None
    assert driver.do("hold", 7) == "done"
    assert holder(path, 7) == driver.process.pid
    assert holder(path, 8) is None
    with pytest.raises(SessionBusyError, match=str(driver.process.pid)):
        DriverLock(path).hold(7)
    DriverLock(path).hold(8)
    assert driver.do("hold", 8) == f"SessionBusyError epoch 8 is driven by process {os.getpid()}"
    DriverLock(path).drop(8)
    assert driver.do("hold", 8) == "done"


def test_a_process_knows_its_own_epochs_which_the_kernel_does_not_report_to_it(tmp_path: Path) -> None:
    lock = DriverLock(tmp_path / "driver.lock")
    lock.hold(1)
    assert holder(lock.path, 1) == os.getpid()
    with pytest.raises(SessionBusyError, match="this process"):
        DriverLock(lock.path).hold(1)
    lock.drop(1)
    assert holder(lock.path, 1) is None
    lock.drop(1)


def test_looking_or_dropping_one_epoch_never_drops_another(tmp_path: Path, driver: Driver) -> None:
    """POSIX: closing any descriptor of the file would drop them all. The look comes by another name of the file, too."""
    lock = DriverLock(tmp_path / "driver.lock")
    lock.hold(1)
    lock.hold(2)
    alias = tmp_path / "alias"
    alias.hardlink_to(lock.path)
    assert holder(alias, 1) == os.getpid()
    assert holder(alias, 5) is None
    DriverLock(alias).drop(2)
    assert driver.do("hold", 2) == "done"
    assert driver.do("hold", 1).startswith("SessionBusyError")
    lock.drop(1)


def test_the_largest_epoch_can_be_held(tmp_path: Path, driver: Driver) -> None:
    assert driver.do("hold", 2**62) == "done"
    assert holder(tmp_path / "driver.lock", 2**62) == driver.process.pid


def test_looking_at_many_sessions_keeps_no_descriptors(tmp_path: Path) -> None:
    for n in range(50):
        lock = DriverLock(tmp_path / f"{n}.lock")
        lock.hold(1)
        lock.drop(1)
    before = descriptors()
    assert all(holder(tmp_path / f"{n}.lock", 1) is None for n in range(50))
    assert descriptors() == before


# ---- life and death --------------------------------------------------------------------------------------------------------


def test_this_process_is_alive_and_not_stopped() -> None:
    me = identify("token")
    assert me.pid == os.getpid() and me.token == "token" and me.start_time > 0 and me.boot_id
    assert alive(me) is True
    assert stopped(me) is False


def test_another_start_time_is_another_process() -> None:
    me = identify()
    assert alive(msgspec.structs.replace(me, start_time=me.start_time - 1)) is False


def test_what_cannot_be_seen_is_not_known() -> None:
    me = identify()
    assert alive(msgspec.structs.replace(me, host="elsewhere", boot_id="another")) is None
    assert alive(msgspec.structs.replace(me, namespace=1)) is None
    assert stopped(msgspec.structs.replace(me, namespace=1)) is None
    with pytest.raises(LookupError):
        asyncio.run(wait_death(msgspec.structs.replace(me, namespace=1)))


def test_processes_of_an_earlier_boot_are_dead() -> None:
    assert alive(msgspec.structs.replace(identify(), boot_id="another")) is False


def test_what_there_is_no_descriptor_left_to_look_with_is_not_dead() -> None:
    me = identify()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        assert alive(me) is None
        assert stopped(me) is None
        assert alive(msgspec.structs.replace(me, pid=2**22 - 1)) is False
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert alive(me) is True


def test_a_zombie_is_dead() -> None:
    with sleepers(1) as [child]:
        owner = owner_of(child.pid)
        assert alive(owner) is True
        child.kill()
        asyncio.run(asyncio.wait_for(wait_death(owner), 5))
        assert child.returncode is None, "not reaped yet"
        assert alive(owner) is False


def test_a_stopped_process_is_alive_and_seen_as_stopped() -> None:
    with sleepers(1) as [child]:
        owner = owner_of(child.pid)
        os.kill(child.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert alive(owner) is True and stopped(owner) is True
        os.kill(child.pid, signal.SIGCONT)
        os.waitid(os.P_PID, child.pid, os.WCONTINUED | os.WNOWAIT)
        assert stopped(owner) is False


def test_ps_says_the_same_as_proc() -> None:
    """The way of systems without /proc, tried on this one."""
    with sleepers(1) as [child]:
        first, again = death._look_ps(child.pid), death._look_ps(child.pid)
        assert first == again and first is not None
        assert first.state in "SR" and abs(first.start_time - time.time()) < 60
    assert death._look_ps(child.pid) is None


def test_two_hundred_deaths_are_told_without_looking() -> None:
    async def watch(children: list[subprocess.Popen[bytes]]) -> float:
        owners = [owner_of(child.pid) for child in children]
        looks = 0
        see = death._see

        def counted(init: Init, boot_id: str) -> object:
            nonlocal looks
            looks += 1
            return see(init, boot_id)

        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            waits = [group.create_task(wait_death(owner)) for owner in owners]
            await asyncio.sleep(0)
            death._see, looks = counted, 0  # type: ignore[assignment]
            try:
                killed_at = time.monotonic()
                for child in children:
                    child.kill()
                await asyncio.wait(waits)
            finally:
                death._see = see
        assert looks == len(children), "one look at each, after its descriptor told"
        return time.monotonic() - killed_at

    with sleepers(200) as children:
        assert asyncio.run(watch(children)) < 10


def test_many_sessions_of_one_driver_share_one_descriptor() -> None:
    """A process that drives a thousand sessions must not cost its watcher a thousand descriptors."""

    async def watch(child: subprocess.Popen[bytes]) -> None:
        owner = owner_of(child.pid)
        before = descriptors()
        waits = [asyncio.create_task(wait_death(owner)) for _ in range(1000)]
        await asyncio.sleep(0)
        assert descriptors() <= before + 1
        waits[0].cancel()
        child.kill()
        async with asyncio.timeout(10):
            await asyncio.gather(*waits[1:])
        assert descriptors() == before

    with sleepers(1) as [child]:
        asyncio.run(watch(child))


# ---- when a driver may be overtaken ----------------------------------------------------------------------------------------


def lapsed(path: Path, epoch: int, owner: Owner, *, stopped_s: float = 10.0, within_s: float = 10.0) -> str:
    return asyncio.run(asyncio.wait_for(lapse(path, epoch, owner, stopped_s=stopped_s), within_s))


def test_a_living_driver_is_not_overtaken(tmp_path: Path, driver: Driver) -> None:
    driver.do("hold", 1)
    with pytest.raises(TimeoutError):
        lapsed(tmp_path / "driver.lock", 1, driver.owner, stopped_s=0.2, within_s=0.5)


def test_a_killed_driver_is_overtaken_at_once(tmp_path: Path, driver: Driver) -> None:
    driver.do("hold", 1)

    async def kill_while_watched() -> tuple[str, float]:
        watch = asyncio.create_task(lapse(tmp_path / "driver.lock", 1, driver.owner))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        killed_at = time.monotonic()
        driver.process.kill()
        return await asyncio.wait_for(watch, 10), time.monotonic() - killed_at

    reason, took_s = asyncio.run(kill_while_watched())
    assert reason == "dead" and took_s < 1.5, "told, not found at the next look after 2 s"


def test_a_dropped_epoch_is_free(tmp_path: Path, driver: Driver) -> None:
    driver.do("hold", 1)
    driver.do("drop", 1)
    assert lapsed(tmp_path / "driver.lock", 1, driver.owner) == "free"


def test_a_frozen_driver_is_overtaken_after_its_time(tmp_path: Path, driver: Driver) -> None:
    driver.do("hold", 1)
    driver.process.send_signal(signal.SIGSTOP)
    started_at = time.monotonic()
    assert lapsed(tmp_path / "driver.lock", 1, driver.owner, stopped_s=0.8) == "stopped"
    assert time.monotonic() - started_at >= 0.8


def test_a_driver_of_another_namespace_is_watched_through_its_lock(tmp_path: Path, driver: Driver) -> None:
    driver.do("hold", 1)
    elsewhere = msgspec.structs.replace(driver.owner, namespace=1)
    with pytest.raises(TimeoutError):
        lapsed(tmp_path / "driver.lock", 1, elsewhere, within_s=0.6)
    driver.process.kill()
    assert lapsed(tmp_path / "driver.lock", 1, elsewhere) == "free"
