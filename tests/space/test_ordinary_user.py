"""Custody needs no privileges: a user namespace gives it to everybody."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure.spaced
from perdure.space import sandbox
from perdure.space.launch import bubblewrap
from perdure.space.sandbox import Sandbox
from perdure.space.space import Exec
from tests.space.conftest import Place, run, until, until_async

PYTHON = Path("/usr/bin/python3")


@pytest.fixture(params=["host", "sandbox"])
def nobodys(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A place that belongs to an ordinary user, whose supervisor is started by him and reached by us."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("only root can become another user; for an ordinary user every other test is this one")
    setpriv = shutil.which("setpriv")
    if setpriv is None or bubblewrap() is None or not PYTHON.exists():
        pytest.skip("needs setpriv, bubblewrap and a python in /usr/bin")
    user = pwd.getpwnam("nobody")
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    shutil.copytree(Path(perdure.spaced.__file__).parent, folder / "spaced", ignore=shutil.ignore_patterns("__pycache__"))
    place = Place(folder, "pidns")
    place.folder.mkdir(parents=True)
    (place.folder / "token").write_text("told")
    for path in (place.root, place.folder, place.folder / "token"):
        os.chown(path, user.pw_uid, user.pw_gid)
    become = [setpriv, f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]
    wrap = [bubblewrap() or "", "--dev-bind", "/", "/", "--proc", "/proc", "--unshare-pid", "--as-pid-1", "--"]
    spaced = [str(PYTHON), "-I", "-S", str(folder / "spaced"), str(place.folder), str(place.root), "--epoch", "1"]
    line = [*wrap, *spaced]
    if request.param == "sandbox":
        package = folder / "spaced"
        line = sandbox.command(
            wrap[0], Sandbox(), place.folder, place.root, ["--epoch", "1"], python=str(PYTHON), package=package
        )
    starter = subprocess.Popen([*become, *line], stdin=subprocess.DEVNULL)
    until(lambda: (place.folder / "s-1").exists() or starter.poll() is not None)
    yield place
    place.kill()
    starter.wait()
    shutil.rmtree(folder)


def test_an_ordinary_users_commands_die_with_his_supervisor(nobodys: Place, request: pytest.FixtureRequest) -> None:
    confined = request.node.callspec.params["nobodys"] == "sandbox"

    async def main() -> None:
        space = await nobodys.open(1)
        assert space.traits.custody == "pidns"
        assert space.traits.hermetic is confined
        status = await run(space, "l:c:1", "id -un; echo mine > made; cat /proc/1/comm")
        assert status.result is not None
        assert status.result.text == "nobody\nspaced\n"
        assert (nobodys.root / "made").stat().st_uid == pwd.getpwnam("nobody").pw_uid
        await space.start("l:d:1", Exec("(setsid bash -c 'while :; do echo . >> beat; done' &) ; sleep 300"))
        await until_async((nobodys.root / "beat").exists)
        watching = asyncio.create_task(space.watch_death())
        await asyncio.sleep(0)
        os.kill(space.init.pid, signal.SIGKILL)
        await watching
        size = (nobodys.root / "beat").stat().st_size
        assert nobodys.running("l:d:1") == []
        assert (nobodys.root / "beat").stat().st_size == size

    asyncio.run(main())
