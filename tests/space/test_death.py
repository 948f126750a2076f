"""A process is dead when its last thread is: the first one may be a zombie for as long as the others live."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from perdure.space import death
from perdure.spaced import processes
from perdure.spaced.boot import boot_id
from tests.space.conftest import until

EXIT = {"x86_64": 60, "aarch64": 93}.get(platform.machine())
"""The system call that ends one thread."""

FIRST_THREAD_ENDS = f"""
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall({EXIT}, 0)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux") or EXIT is None, reason="how a single thread ends is Linux's own")
def test_a_zombie_with_threads_left_is_alive() -> None:
    child = subprocess.Popen([sys.executable, "-c", FIRST_THREAD_ENDS])
    init = death.identify(child.pid)
    assert init is not None
    until(lambda: death._look(child.pid).state == "Z")  # type: ignore[union-attr]
    assert death.dead(init, boot_id()) is False and death.identify(child.pid) == init
    assert not processes.table()[child.pid].zombie
    child.kill()
    until(lambda: death.dead(init, boot_id()) is True)
    assert processes.table()[child.pid].zombie
    child.wait()
