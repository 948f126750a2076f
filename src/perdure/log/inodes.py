"""Whether the files that SQLite has open are still those at their paths.

A file that is removed or replaced while it is open goes on to take commits, which nobody will find again; where it was the WAL or its index, two processes may
from then on write past each other. In WAL mode SQLite does not look. Nobody but us may touch these files, but a command can.
"""

from __future__ import annotations

import os
from pathlib import Path

BESIDE = ("", "-wal", "-shm")


class Inodes:
    """Those of one open database. A file that is not there at the beginning is not looked for."""

    def __init__(self, path: Path) -> None:
        seen = {f"{path}{beside}": _identity(f"{path}{beside}") for beside in BESIDE}
        self._known = {file: identity for file, identity in seen.items() if identity is not None}

    def lost(self) -> str | None:
        """The first that is not at its path any more. A few microseconds."""
        return next((file for file, identity in self._known.items() if _identity(file) != identity), None)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116 — at every request
    except OSError:
        return None
    return found.st_dev, found.st_ino
