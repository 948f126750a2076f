"""How fine the clock is that a file system stamps with (R3).

Since Linux 6.13 most file systems give a file a new stamp for every change that somebody could have seen; before, and elsewhere, two changes
within one tick of a coarse clock look the same. The probe writes to a file without a name, so that nobody's directory is touched.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

_PAIRS = 8
_PATIENCE_S = 0.05
COARSEST_NS = 2_000_000_000
"""FAT's two seconds: assumed where no tick was seen in time, or where nothing could be probed."""


def grain_ns(root_fd: int, state_dir: str) -> int:
    """0 where every change gets a stamp of its own, else the length of a tick in nanoseconds."""
    with _probe(root_fd, state_dir) as fd:
        if fd is None:
            return COARSEST_NS
        try:
            stamps = []
            for _ in range(_PAIRS):
                os.pwrite(fd, b"x", 0)
                stamps.append(os.fstat(fd).st_ctime_ns)
            return 0 if len(set(stamps)) == _PAIRS else _tick(fd)
        except OSError:  # A full disk: an undo that would make room must not need any.
            return COARSEST_NS


def _tick(fd: int) -> int:
    deadline = time.monotonic() + _PATIENCE_S
    changes: list[int] = []
    while len(changes) < 3:
        if time.monotonic() > deadline:
            return COARSEST_NS
        os.pwrite(fd, b"x", 0)
        stamp = os.fstat(fd).st_ctime_ns
        if not changes or stamp != changes[-1]:
            changes.append(stamp)
    return max(changes[2] - changes[1], 1_000_000)


@contextlib.contextmanager
def _probe(root_fd: int, state_dir: str) -> Iterator[int | None]:
    """A file without a name on the root's file system, or None."""
    fd = None
    with contextlib.suppress(OSError, AttributeError):
        fd = os.open(".", os.O_TMPFILE | os.O_RDWR, 0o600, dir_fd=root_fd)
    if fd is None and os.stat(state_dir).st_dev == os.fstat(root_fd).st_dev:
        with contextlib.suppress(OSError):
            path = os.path.join(state_dir, "probe")
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            os.unlink(path)
    try:
        yield fd
    finally:
        if fd is not None:
            os.close(fd)
