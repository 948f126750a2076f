"""Trees of files as the oracle compares them: on the disk, in an image of the log, and as they have to be."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from perdure.record.parts import Digest
from perdure.space import image
from perdure.space.space import ChunkSource
from perdure.spaced import tree

FILE, FOLDER, LINK, OTHER = "file", "folder", "link", "other"
FILE_MODE, FOLDER_MODE = 0o644, 0o755
GIT = ".git"


class Node(Struct, frozen=True):
    """What lies at a path. `data` is a file's content or where a link leads; a link has no mode."""

    kind: str
    data: bytes = b""
    mode: int = 0


Files = dict[str, Node]
"""By path below the root."""


def text(content: str) -> Node:
    return Node(FILE, content.encode(), FILE_MODE)


def folder() -> Node:
    return Node(FOLDER, b"", FOLDER_MODE)


def make(root: Path, files: Files) -> None:
    """Put them on the disk, in a directory that has none of them."""
    for path, node in sorted(files.items()):
        where = root / path
        if node.kind == FOLDER:
            where.mkdir(mode=node.mode)
        elif node.kind == LINK:
            where.symlink_to(os.fsdecode(node.data))
        else:
            where.write_bytes(node.data)
            where.chmod(node.mode)


def on_disk(root: Path) -> Files:
    """Everything below it but git's own folder."""
    return {os.fsdecode(path.relative_to(root)): _node(path) for path in _walk(root)}


def _walk(root: Path) -> Iterator[Path]:
    for at, folders, names in os.walk(root):
        if Path(at) == root and GIT in folders:
            folders.remove(GIT)
        yield from (Path(at, name) for name in (*folders, *names))


def _node(path: Path) -> Node:
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return Node(LINK, os.fsencode(path.readlink()))
    if stat.S_ISDIR(status.st_mode):
        return Node(FOLDER, b"", mode)
    return Node(FILE, path.read_bytes(), mode) if stat.S_ISREG(status.st_mode) else Node(OTHER)


async def in_image(root: Digest, source: ChunkSource) -> Files:
    """What an image of the log holds, from its chunks alone. Raises BlobGoneError where one is not stored."""
    return {os.fsdecode(path): await _entry(entry, source) async for path, entry in image.walk(root, source)}


async def _entry(entry: tree.Entry, source: ChunkSource) -> Node:
    if entry.kind == tree.DIRECTORY:
        return Node(FOLDER, b"", entry.mode)
    data = await image.content(entry, source)
    return Node(LINK, data) if entry.kind == tree.LINK else Node(FILE, data, entry.mode)


def below(files: Files, path: str) -> Files:
    """The path itself and everything in it."""
    return {name: node for name, node in files.items() if name == path or name.startswith(path + "/")}


def differences(found: Files, wanted: Files) -> list[str]:
    """In words, by path; empty where they are equal."""
    told = []
    for path in sorted(found.keys() | wanted.keys()):
        has, wants = found.get(path), wanted.get(path)
        if has != wants:
            told.append(f"{path} is {_told(has)} and has to be {_told(wants)}")
    return told


def _told(node: Node | None) -> str:
    if node is None:
        return "not there"
    shown = "" if node.kind == FOLDER else f" {node.data[:40]!r}{f' ({len(node.data)} bytes)' if len(node.data) > 40 else ''}"
    return f"a {node.kind}{shown}{f' {node.mode:o}' if node.mode else ''}"
