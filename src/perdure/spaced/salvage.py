"""What is about to be taken back, kept: an image of the content that is stored nowhere else.

Too much for the log, or no room to stage it: then the files themselves are moved aside, into a quarantine folder on the same file system.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from typing import Optional

from perdure.spaced.compare import Difference
from perdure.spaced.content import Keep, NotHeld, Opaque, read_content
from perdure.spaced.descent import Descent
from perdure.spaced.index import SIZE, Folder
from perdure.spaced.staging import Batch
from perdure.spaced.tree import CHUNK, LINK, ROWS, TREE_LEAF, Payload, directory_payload
from perdure.spaced.trie import encode_directory

LARGEST_BYTES = 256 << 20


def content_of(payload: Optional[Payload]) -> bytes:
    """What identifies a file's content whatever its mode; empty for anything else."""
    return payload[-32:] if payload and payload[:1] in (CHUNK, ROWS) else b""


def to_be_lost(differences: Iterable[Difference], root: Folder, known: set[str]) -> list[Difference]:
    """The differences whose content would be gone: not in the target, under whatever name, and not in `known`."""
    differences = list(differences)
    suspects = [d for d in differences if d.held and d.key is not None and _lost_here(d)]
    if not suspects:
        return []
    paths = {difference.path for difference in differences}
    kept = {content_of(difference.want) for difference in differences} | _contents(root, paths)
    return [
        d for d in suspects if d.held[:1] == LINK or (content_of(d.held) not in kept and content_of(d.held).hex() not in known)
    ]


def _lost_here(difference: Difference) -> bool:
    if difference.held[:1] == LINK:
        return difference.held != difference.want
    assert difference.key is not None
    return difference.key[SIZE] > 0 and content_of(difference.held) != content_of(difference.want)


def _contents(root: Folder, but: set[str]) -> set[bytes]:
    out: set[bytes] = set()
    stack = [("", root)]
    while stack:
        prefix, folder = stack.pop()
        out.update(content_of(payload) for name, payload in folder.held.items() if prefix + name not in but)
        stack += ((prefix + name + "/", below) for name, below in folder.folders.items())
    return out


def split(lost: list[Difference]) -> tuple[list[Difference], list[Difference]]:
    """(what goes into the image, what must be moved aside): the largest are moved until the rest is small enough."""
    total = sum(difference.key[SIZE] for difference in lost if difference.key)
    aside: list[Difference] = []
    for difference in sorted(lost, key=lambda d: -(d.key[SIZE] if d.key else 0)):
        if total <= LARGEST_BYTES:
            break
        aside.append(difference)
        total -= difference.key[SIZE] if difference.key else 0
    moved = {difference.path for difference in aside}
    return [difference for difference in lost if difference.path not in moved], aside


def stage(root_fd: int, lost: list[Difference], batch: Batch, known: set[str], max_file_bytes: int) -> Optional[bytes]:
    """The root of an image of the lost content, its chunks in the batch; None for nothing. Raises OSError (ENOSPC, EDQUOT) where there is no room.

    What changed meanwhile may be left out: the restore will not touch it.
    """

    def keep(digest: bytes, data: bytes) -> None:
        if digest.hex() not in known:
            batch.add(digest, data)

    directories: dict[str, dict[bytes, Payload]] = {"": {}}
    with Descent(root_fd) as descent:
        for difference in lost:
            try:
                fd, name = descent.parent(difference.path)
                content = read_content(fd, name, max_file_bytes, keep)
            except OSError as error:
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                continue
            except (Opaque, NotHeld):
                continue
            directory = difference.path.rpartition("/")[0]
            directories.setdefault(directory, {})[os.fsencode(name)] = content.payload
    return _nodes(directories, keep)


def _nodes(directories: dict[str, dict[bytes, Payload]], keep: Keep) -> Optional[bytes]:
    if not any(directories.values()):
        return None
    for path in list(directories):
        while path:
            path = path.rpartition("/")[0]
            directories.setdefault(path, {})
    digest = b""
    for path in sorted(directories, key=lambda p: -(p.count("/") + bool(p))):
        digest = encode_directory(TREE_LEAF, directories[path].items(), keep)
        if path:
            above, _, name = path.rpartition("/")
            directories[above][os.fsencode(name)] = directory_payload(0o755, digest)
    return digest
