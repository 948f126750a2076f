"""Files that are old or new and never half, whoever dies meanwhile; and what is to outlast a power cut."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Union


def replace(path: str, *pieces: bytes) -> None:
    """Put the pieces in the place of the file, by way of one beside it. Only one writer at a time."""
    with open(path + ".new", "wb") as file:
        for piece in pieces:
            file.write(piece)
    os.replace(path + ".new", path)


def sync(path: Union[str, os.PathLike[str]]) -> None:
    """A file's content, or the names in a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file_system(fd: int) -> None:
    """Whatever was written to the file system that `fd` lies on (syncfs(2)); elsewhere than on Linux to any."""
    if sys.platform != "linux":
        os.sync()
    elif ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
        code = ctypes.get_errno()
        raise OSError(code, "syncfs: %s" % os.strerror(code))
