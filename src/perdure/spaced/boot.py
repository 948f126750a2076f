"""Which start of the kernel this is: what a ledger or a file's key proves ends with it."""

from __future__ import annotations

import functools
import sys


@functools.cache
def boot_id() -> str:
    """Another one after each start of the machine; no process outlives one."""
    if sys.platform == "linux":
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    import subprocess

    asked = ["sysctl", "-n", "kern.bootsessionuuid"]
    return subprocess.run(asked, stdout=subprocess.PIPE, check=True).stdout.decode().strip()
