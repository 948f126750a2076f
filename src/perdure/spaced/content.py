"""A file's content, read once: cut into chunks, hashed, and handed to whoever keeps them before anything can change it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from typing import NamedTuple

from perdure.spaced.index import MODE, SIZE, StatKey, stat_key
from perdure.spaced.tree import (
    BLOCK_BYTES,
    Payload,
    Row,
    chunk_payload,
    cuts,
    encode_file,
    is_hole,
    is_single,
    link_payload,
    rows_payload,
    sha256,
)

Keep = Callable[[bytes, bytes], None]
"""Takes (digest, bytes) of a chunk or file node."""

READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
_ATTEMPTS = 3


class Content(NamedTuple):
    """A file or symlink as it was read. `unstable`: it changed under every attempt."""

    payload: Payload
    rows: tuple[Row, ...]
    key: StatKey
    unstable: bool = False


class Opaque(Exception):
    """Too large or unreadable: named, but outside the digest."""


class NotHeld(Exception):
    """Neither file nor symlink nor directory."""


class Torn(Exception):
    """The file got shorter while it was read."""


def read_content(directory: int, name: str, max_bytes: int, keep: Keep) -> Content:
    """Read `name` in the directory. Raises FileNotFoundError, Opaque, NotHeld; IsADirectoryError where it became one."""
    for _ in range(_ATTEMPTS):
        key = stat_key(os.stat(name, dir_fd=directory, follow_symlinks=False))
        if stat.S_ISLNK(key[MODE]):
            return Content(link_payload(os.fsencode(os.readlink(name, dir_fd=directory))), (), key)
        if stat.S_ISDIR(key[MODE]):
            raise IsADirectoryError(name)
        if not stat.S_ISREG(key[MODE]):
            raise NotHeld
        if key[SIZE] > max_bytes:
            raise Opaque
        content = _read_file(directory, name, key, keep)
        if content is not None:
            return content
    return _read_unstable(directory, name, keep)


def _read_file(directory: int, name: str, key: StatKey, keep: Keep) -> Content | None:
    """None where it changed while it was read."""
    try:
        fd = os.open(name, READ_FLAGS, dir_fd=directory)
    except PermissionError:
        raise Opaque from None
    except FileNotFoundError:
        raise
    except OSError:  # it became a symlink (ELOOP) or a socket (ENXIO)
        return None
    try:
        rows = read_rows(fd, key[SIZE], keep)
        if stat_key(os.fstat(fd)) != key:
            return None
        return Content(file_payload(key, rows, keep), rows, key)
    except Torn:
        return None
    finally:
        os.close(fd)


def _read_unstable(directory: int, name: str, keep: Keep) -> Content:
    """Content of one pass over a file that never holds still, by way of a private copy, so that it is at least one content."""
    try:
        fd = os.open(name, READ_FLAGS, dir_fd=directory)
    except FileNotFoundError:
        raise
    except OSError:
        raise Opaque from None
    try:
        key = stat_key(os.fstat(fd))
        if not stat.S_ISREG(key[MODE]):
            raise NotHeld
        import tempfile  # drags in a sixth of a supervisor's start

        with tempfile.TemporaryFile() as copy:
            size = 0
            while size < key[SIZE]:
                data = os.pread(fd, min(BLOCK_BYTES, key[SIZE] - size), size)
                if not data:
                    break
                copy.write(data)
                size += len(data)
            copy.flush()
            rows = read_rows(copy.fileno(), size, keep)
        key = (key[0], size, *key[2:])
        return Content(file_payload(key, rows, keep), rows, key, unstable=True)
    finally:
        os.close(fd)


def read_rows(fd: int, size: int, keep: Keep) -> tuple[Row, ...]:
    """Chunks of the first `size` bytes. Raises Torn where the file is shorter, Opaque where it can't be read; what `keep` raises goes on."""
    rows = []
    for offset, length in cuts(size):
        data = _read(fd, offset, length)
        if not is_hole(data):
            digest = sha256(data)
            keep(digest, data)
            rows.append(Row(offset, length, digest))
    return tuple(rows)


def _read(fd: int, offset: int, length: int) -> bytes:
    try:
        data = os.pread(fd, length, offset)
        while len(data) < length:
            more = os.pread(fd, length - len(data), offset + len(data))
            if not more:
                raise Torn
            data += more
    except OSError:
        raise Opaque from None
    return data


def file_payload(key: StatKey, rows: tuple[Row, ...], keep: Keep) -> Payload:
    mode = key[MODE] & 0o7777
    if is_single(key[SIZE], rows):
        return chunk_payload(mode, key[SIZE], rows[0].digest)
    node = encode_file(key[SIZE], rows)
    digest = sha256(node)
    keep(digest, node)
    return rows_payload(mode, digest)
