"""Another boot of the machine, as far as a driver and its supervisors can see: the kernel's boot id is read from another file.

As a program (`boot.py FILE SPACED …`) it is a supervisor in that boot.
"""

from __future__ import annotations

import builtins
import io
import os
import runpy
import sys

KERNELS = "/proc/sys/kernel/random/boot_id"


def pretend(file: str) -> None:
    """From now on this process reads the boot id from `file`."""
    real = io.open

    def opened(path, *args, **kwargs):  # type: ignore[no-untyped-def]
        found = path if isinstance(path, int) else os.fspath(path)
        return real(file if found == KERNELS else path, *args, **kwargs)

    builtins.open = io.open = opened  # type: ignore[assignment]


if __name__ == "__main__":
    _, boot, folder, *arguments = sys.argv
    pretend(boot)
    sys.argv = [folder, *arguments]
    runpy.run_path(folder, run_name="__main__")
