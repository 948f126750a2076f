"""What commands of a sandbox can do and see, and that the tests of it fail where what they test for is not so."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import stat
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from perdure import spaced
from perdure.record.errors import UsageError
from perdure.space import sandbox as box
from perdure.space.client import HostSpace
from perdure.space.host import Opened
from perdure.space.launch import bubblewrap
from perdure.space.sandbox import Sandbox
from perdure.spaced.selftest import TESTS
from tests.space.conftest import Place, run, until_async


@pytest.fixture
def boxed(proven: Place) -> Place:
    """A place whose Spaces can be opened as sandboxes."""
    if problem := box.problem(bubblewrap()):
        pytest.skip(f"no sandbox here: {problem}")
    return proven


def play(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


async def opened(place: Place, sandbox: Sandbox = Sandbox(), epoch: int = 1, **options: Any) -> Opened:  # noqa: B008
    found = await place.find(epoch, sandbox=sandbox, **options)
    await found.space.fence(epoch, frozenset())
    return found


async def said(space: HostSpace, command: str, key: str = "l:c:1") -> str:
    """What it printed; every command has a key of its own."""
    status = await run(space, key, command)
    assert status.result is not None
    return status.result.text


# ---- what a command can't use up ---------------------------------------------------------------------------------------------


def test_a_command_that_fills_the_scratch_places_fails_and_the_session_goes_on(
    boxed: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box, "SCRATCH_BYTES", 4 << 20)

    async def story() -> None:
        space = (await opened(boxed)).space
        for n, place in enumerate(("/tmp", "/dev/shm", "$HOME")):
            told = await said(
                space, f"head -c 100M /dev/zero > {place}/big; du -k {place}/big | cut -f1; rm {place}/big", f"l:c{n}:1"
            )
            assert "No space left" in told and int(told.split()[-1]) <= 4 << 10
        assert await said(space, "echo on", "l:d:1") == "on\n"

    play(story())


def test_scratch_places_are_bounded_by_this_machines_memory() -> None:
    assert 1 << 26 < box.SCRATCH_BYTES < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 3


def test_a_command_that_forks_without_end_is_ended_and_the_session_goes_on(boxed: Place) -> None:
    hop = "import os\nfor _ in range(40000):\n    if os.fork():\n        os._exit(0)\n    os.setsid()\n"
    (boxed.root / "hop.py").write_text(hop)

    async def story() -> None:
        space = (await opened(boxed)).space
        status = await run(space, "l:c:1", "for i in 1 2 3 4; do python3 hop.py & done; sleep 100", timeout_s=1.0)
        assert status.cause == "timeout" and boxed.running("l:c:1") == []
        assert await said(space, "echo on", "l:d:1") == "on\n"

    play(story())


def test_a_bubblewrap_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = tmp_path / "bwrap"
    old.write_text("#!/bin/sh\necho 'bwrap: Unknown option --size' >&2; exit 1\n")
    old.chmod(0o755)
    assert "too old" in (box.problem(str(old)) or "") and "0.7" in (box.problem(str(old)) or "")


@pytest.mark.parametrize(
    "said",
    [
        "No permissions to create new namespace, likely because the kernel does not allow non-privileged user namespaces.",
        "setting up uid map: Permission denied",
        "loopback: Failed RTM_NEWADDR: Operation not permitted",
    ],
)
def test_where_user_namespaces_are_forbidden_it_is_said_what_to_do(tmp_path: Path, said: str) -> None:
    forbidden = tmp_path / "bwrap"
    forbidden.write_text(f"#!/bin/sh\necho 'bwrap: {said}' >&2; exit 1\n")
    forbidden.chmod(0o755)
    with pytest.raises(UsageError, match=r"sysctl kernel\.unprivileged_userns_clone=1.*--space host") as refused:
        box.check(str(forbidden), Sandbox(), tmp_path, tmp_path / "home")
    assert said in str(refused.value)


# ---- what is there -----------------------------------------------------------------------------------------------------------


def test_a_sandbox_passes_its_own_tests_and_is_hermetic(boxed: Place) -> None:
    async def story() -> None:
        found = await opened(boxed)
        assert found.self_test == dict.fromkeys(TESTS, True)
        assert found.space.traits.hermetic and found.space.traits.custody == "pidns"

    play(story())


def test_the_workspace_is_writable_at_its_own_path_and_files_are_this_users(boxed: Place) -> None:
    async def story() -> None:
        (boxed.root / "mine").write_text("old\n")
        space = (await opened(boxed)).space
        assert await said(space, "pwd; cat mine; echo new > mine; mkdir d; touch d/f") == f"{boxed.root}\nold\n"
        assert (boxed.root / "mine").read_text() == "new\n"
        made = (boxed.root / "d" / "f").stat()
        assert (made.st_uid, made.st_gid) == (os.getuid(), os.getgid())

    play(story())


@pytest.mark.parametrize("place", ["/tmp", "$HOME", "/dev/shm"])
def test_scratch_files_are_private_outlast_a_command_and_end_with_their_supervisor(boxed: Place, place: str) -> None:
    async def story() -> None:
        space = (await opened(boxed)).space
        await said(space, f"echo kept > {place}/perdure-scratch")
        assert await said(space, f"cat {place}/perdure-scratch", "l:d:1") == "kept\n"
        outside = Path(os.path.expandvars(place)) / "perdure-scratch"
        assert not outside.exists()
        boxed.kill()
        space = (await opened(boxed, epoch=2)).space
        assert "No such file" in await said(space, f"cat {place}/perdure-scratch", "l:e:1")

    play(story())


def test_a_background_process_goes_on_in_the_sandbox_and_is_found_there(boxed: Place) -> None:
    async def story() -> None:
        space = (await opened(boxed)).space
        await run(space, "l:c:1", "echo up > /tmp/up; exec sleep 300", background=True)
        async with asyncio.timeout(20):
            while "up" not in await said(space, "cat /tmp/up; echo", f"l:d{os.urandom(4).hex()}:1"):
                pass
        assert [process.call for process in await space.processes()] == ["c"]
        assert boxed.running("l:c:1") != []
        boxed.kill()
        assert boxed.running("l:c:1") == []

    play(story())


def test_toolchains_are_readable_and_not_writable(boxed: Place, tmp_path: Path) -> None:
    async def story() -> None:
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "hello").write_text("#!/bin/sh\necho hello\n")
        (tools / "hello").chmod(0o755)
        found = await opened(boxed, Sandbox(binds=(str(tools),)))
        assert found.space.traits.hermetic
        assert await said(found.space, f"{tools}/hello") == "hello\n"
        assert "Read-only" in await said(found.space, f"echo >> {tools}/hello", "l:d:1")
        assert "Read-only" in await said(found.space, f"rm {tools}/hello", "l:e:1")

    play(story())


# ---- what is not -------------------------------------------------------------------------------------------------------------


def test_no_secret_can_be_reached(boxed: Place, tmp_path: Path) -> None:
    async def story() -> None:
        secret = tmp_path / "secret"
        secret.write_text("mine alone\n")
        space = (await opened(boxed)).space
        token = (boxed.folder / "token").read_text()
        for n, path in enumerate([secret, boxed.folder / "token", boxed.home, "/run", "/var", "/proc/1/root", "/proc/1/environ"]):
            text = await said(space, f"cat {path}; ls {path}/", f"l:a{n}:1")
            assert all(
                any(no in line for no in ("No such file", "Permission denied", "Not a directory")) for line in text.splitlines()
            ), text
        assert await said(space, "ls -A /perdure/state", "l:b:1") == ""
        everywhere = (
            f"grep -rsl {token} / --exclude-dir=usr --exclude-dir=sys --exclude-dir=proc; cat /proc/1/cmdline | grep -c {token}"
        )
        assert await said(space, everywhere, "l:c:1") == "0\n"
        assert "wrong" not in await said(
            space, "for fd in /proc/1/fd/*; do cat $fd > /dev/null 2>&1 && echo wrong; done", "l:d:1"
        )

    play(story())


def test_passwords_of_the_system_are_not_readable_even_to_root(boxed: Place) -> None:
    async def story() -> None:
        space = (await opened(boxed)).space
        for n, path in enumerate(path for path in ("/etc/shadow", "/etc/gshadow") if Path(path).exists()):
            assert "Permission denied" in await said(space, f"cat {path}", f"l:a{n}:1")
        assert "root" in await said(space, "cat /etc/passwd", "l:b:1")

    play(story())


@pytest.mark.parametrize(
    "attempt",
    [
        "echo x > /usr/perdure-x",
        "echo x > /perdure-x",
        "echo x > /perdure/state/x",
        "mv /perdure/state /perdure/other",
        "mount -o remount,rw /usr",
        "umount /usr",
        "unshare -Ur mount -o remount,rw,bind /usr",
        "unshare -Ur umount -l /etc",
        "umount /perdure/state",
        "unshare -Urm umount /perdure/state",
        "nsenter -t 1 -m true",
        "chroot / true",
        "mknod disk b 254 0",
        "kill -9 1; sleep 0.2; kill -0 1 && false",
        "su -c 'touch /etc/perdure-x' nobody",
        "exec 3<>/dev/tcp/192.0.2.1/9",
        "echo 1 > /proc/sys/kernel/panic",
        "echo h > /proc/sysrq-trigger",
        "dd if=/dev/zero of=/proc/1/mem bs=1 count=1",
    ],
)
def test_what_a_command_must_not_do_fails(boxed: Place, attempt: str) -> None:
    async def story() -> None:
        space = (await opened(boxed)).space
        status = await run(space, "l:c:1", f"{attempt} && echo did it")
        assert status.result is not None and "did it" not in status.result.text, status.result.text
        assert not status.result.ok
        assert await said(space, "echo alive", "l:d:1") == "alive\n"

    play(story())


def test_setuid_programs_give_nothing(boxed: Place) -> None:
    async def story() -> None:
        space = (await opened(boxed)).space
        command = "cp /usr/bin/grep mine; chmod 4755 mine; ./mine -E 'CapPrm|CapEff|CapBnd|NoNewPrivs' /proc/self/status"
        lines = dict(line.split(":\t") for line in (await said(space, command)).splitlines())
        assert lines == {"CapPrm": "0" * 16, "CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1"}
        assert stat.S_ISREG((boxed.root / "mine").stat().st_mode)

    play(story())


def test_what_runs_in_it_dies_with_its_supervisor(boxed: Place) -> None:
    async def story() -> None:
        space = (await opened(boxed)).space
        await run(space, "l:c:1", "(setsid sh -c 'while :; do echo . >> beat; done' &)", background=True)
        await until_async((boxed.root / "beat").exists)
        watching = asyncio.create_task(space.watch_death())
        await asyncio.sleep(0)
        os.kill(space.init.pid, signal.SIGKILL)
        await watching
        size = (boxed.root / "beat").stat().st_size
        assert boxed.running("l:c:1") == []
        assert (boxed.root / "beat").stat().st_size == size

    play(story())


# ---- each test seen failing --------------------------------------------------------------------------------------------------


async def failing(place: Place, sandbox: Sandbox = Sandbox(), **options: Any) -> set[str]:  # noqa: B008
    found = await opened(place, sandbox, **options)
    assert found.space.traits.hermetic is all(found.self_test.values())
    return {name for name, passed in found.self_test.items() if not passed}


def test_the_network_takes_the_label_away(boxed: Place) -> None:
    async def story() -> None:
        assert await failing(boxed, Sandbox(network=True)) == {"network"}

    play(story())


@pytest.mark.parametrize("kind", ["FIFO", "socket"])
def test_a_fifo_or_a_socket_in_what_is_bound_takes_the_label_away(boxed: Place, tmp_path: Path, kind: str) -> None:
    async def story() -> None:
        tools = tmp_path / "t"
        (tools / "deep").mkdir(parents=True)
        if kind == "FIFO":
            os.mkfifo(tools / "deep" / "way-out")
        else:
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(os.path.relpath(tools / "deep" / "way-out"))
        assert await failing(boxed, Sandbox(binds=(str(tools),))) == {"sockets"}

    play(story())


_BROKEN = {
    "capabilities": "confine._CAPBSET_DROP = confine._CAPBSET_READ",
    "namespaces": "asked['outside']['ipc'] = __import__('os').readlink('/proc/self/ns/ipc')",
    "remount": "asked['read_only'].append('/tmp'); confine.remount_writable = lambda path: None",
    "writes": "asked['read_only'].append('/tmp')",
    "hidden": "confine._hidden = (asked['hidden'], asked['hidden'])",
}
"""By test: what makes its condition untrue, in the supervisor."""


@pytest.mark.parametrize("name", _BROKEN)
def test_what_does_not_hold_is_found(boxed: Place, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The supervisor runs from a copy whose means are broken in one place."""
    package = tmp_path / "spaced"
    shutil.copytree(Path(spaced.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    source = (package / "selftest.py").read_text()
    hook = f"def run(asked):\n    {_BROKEN[name]}\n    return _run(asked)\n"
    (package / "selftest.py").write_text(source.replace("def run(", "def _run(") + "\n\n" + hook)
    ours = box.command
    monkeypatch.setattr(box, "command", lambda *a: ours(*a, package=package))

    async def story() -> None:
        assert name in await failing(boxed)

    play(story())


# ---- what can be asked for ---------------------------------------------------------------------------------------------------


def test_a_bind_that_can_not_be_is_refused_with_what_to_do(tmp_path: Path) -> None:
    root, home, tools = (tmp_path / name for name in ("root", "home", "tools"))
    for path in (root / "in", home / "spaces", tools):
        path.mkdir(parents=True)
    (tmp_path / "link").symlink_to(root)
    for bind, remedy in {
        tmp_path / "absent": "does not exist",
        root: "already",
        root / "in": "already",
        tmp_path / "link": "already",
        home: "home",
        home / "spaces": "home",
        tmp_path: "home",
        Path("/"): "name the directories",
        Path("/proc/self"): "leave that --bind",
        Path("/run"): "leave that --bind",
    }.items():
        with pytest.raises(UsageError, match=remedy):
            box.check_binds([bind], root, home)
    assert box.check_binds([tools, f"{tools}/", str(tools / "..") + "/tools"], root, home) == (str(tools),)


def test_a_home_that_lies_in_what_is_shown_is_covered(boxed: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one in /usr would be: what a person names may not hold it."""
    monkeypatch.setattr(box, "_check_bind", lambda given, *_: given)

    async def story() -> None:
        boxed.home.mkdir(exist_ok=True)
        (boxed.home / "log.db").write_text("private")
        (boxed.home.parent / "shown").write_text("shown")
        space = (await opened(boxed, Sandbox(binds=(str(boxed.home.parent),)))).space
        assert await said(space, f"ls -A {boxed.home}; ls {boxed.home.parent}") == "home\nroot\nshown\n"

    play(story())
