"""What a home takes on the disk, part by part."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from perdure.engine.collecting import STORE
from perdure.spaced.restore import QUARANTINE


class Usage(Struct, frozen=True):
    """Bytes. `store` by file, `spaces` are the state folders but for what is named apart: outputs, staged chunks and files moved aside."""

    store: dict[str, int]
    folders: int
    spaces: int
    outputs: int
    staged: int
    aside: int
    aside_files: int


def usage(home: Path) -> Usage:
    """Of a home that may be in use: what vanishes meanwhile is not counted."""
    sizes: Counter[str] = Counter()
    aside_files = 0
    folders = [folder for folder in home.glob("spaces/*") if folder.is_dir()]
    for folder in folders:
        for path, size_bytes in _files(folder):
            kind = _kind(path.relative_to(folder).parts)
            sizes[kind] += size_bytes
            aside_files += kind == "aside"
    store = {name: found for name in STORE if (found := _size(home / name)) is not None}
    return Usage(store, len(folders), sizes["rest"], sizes["outputs"], sizes["staged"], sizes["aside"], aside_files)


def _kind(parts: tuple[str, ...]) -> str:
    """By where a file lies in a state folder."""
    if parts[0] == "outputs":
        return "outputs"
    if parts[:2] == ("workspace", QUARANTINE):
        return "aside"
    return "staged" if parts[0] == "workspace" else "rest"


def _files(folder: Path) -> Iterator[tuple[Path, int]]:
    for at, _, names in os.walk(folder):
        for name in names:
            path = Path(at, name)
            if (size_bytes := _size(path)) is not None:
                yield path, size_bytes


def _size(path: Path) -> int | None:
    try:
        return path.lstat().st_size
    except OSError:
        return None
