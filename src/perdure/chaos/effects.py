"""What a scripted command does to files: each effect as shell text and as a change to a tree, so that the oracle can tell which part of a command took place.

Effects are atomic but for the bytes of a file being written; `partial` says what that may look like in between.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from perdure.chaos.files import FILE, FILE_MODE, LINK, Files, Node, below, folder


class Put(Struct, frozen=True, tag=True):
    """Write a file: `text`, `times` times over."""

    path: str
    text: str
    times: int = 1

    @property
    def data(self) -> bytes:
        return (self.text * self.times).encode()

    def shell(self) -> str:
        if self.times > 1:
            return f"head -c {self.times} /dev/zero | tr '\\0' {self.text} > {self.path}"
        return f"printf %s {shlex.quote(self.text)} > {self.path}"

    def apply(self, files: Files) -> None:
        before = files.get(self.path)
        files[self.path] = Node(FILE, self.data, before.mode if before else FILE_MODE)

    def partial(self, found: Node) -> bool:
        return found.kind == FILE and self.data.startswith(found.data)


class Folder(Struct, frozen=True, tag=True):
    path: str

    def shell(self) -> str:
        return f"mkdir {self.path}"

    def apply(self, files: Files) -> None:
        files[self.path] = folder()

    def partial(self, found: Node) -> bool:
        return False


class Move(Struct, frozen=True, tag=True):
    path: str
    to: str

    def shell(self) -> str:
        return f"mv {self.path} {self.to}"

    def apply(self, files: Files) -> None:
        for name, node in below(files, self.path).items():
            del files[name]
            files[self.to + name.removeprefix(self.path)] = node

    def partial(self, found: Node) -> bool:
        return False


class Remove(Struct, frozen=True, tag=True):
    path: str

    def shell(self) -> str:
        return f"rm {self.path}"

    def apply(self, files: Files) -> None:
        files.pop(self.path, None)

    def partial(self, found: Node) -> bool:
        return False


class Link(Struct, frozen=True, tag=True):
    path: str
    to: str

    def shell(self) -> str:
        return f"ln -s {self.to} {self.path}"

    def apply(self, files: Files) -> None:
        files[self.path] = Node(LINK, self.to.encode())

    def partial(self, found: Node) -> bool:
        return False


class Mode(Struct, frozen=True, tag=True):
    path: str
    mode: int

    def shell(self) -> str:
        return f"chmod {self.mode:o} {self.path}"

    def apply(self, files: Files) -> None:
        files[self.path] = replace(files[self.path], mode=self.mode)

    def partial(self, found: Node) -> bool:
        return False


class Many(Struct, frozen=True, tag=True):
    """`count` small files in a folder that is there."""

    path: str
    count: int

    def shell(self) -> str:
        return f"k=0; while [ $k -lt {self.count} ]; do k=$((k + 1)); printf $k > {self.path}/$k; done"

    def each(self) -> list[Put]:
        return [Put(f"{self.path}/{k}", f"{k}") for k in range(1, self.count + 1)]


Effect = Put | Folder | Move | Remove | Link | Mode | Many
Extent = Literal["none", "part", "all"]


def fits(before: Files, effects: Sequence[Effect], found: Files, extent: Extent) -> bool:
    """Whether `found` is what these effects make of `before`, as far as they may have come. `before` is used up."""
    if extent == "none":
        return found == before
    steps = list(_single(effects))
    for step in steps:
        if extent == "part" and (found == before or _in_between(before, step, found)):
            return True
        step.apply(before)
    return found == before


def after(before: Files, effects: Sequence[Effect]) -> Files:
    """The whole of them."""
    files = dict(before)
    for step in _single(effects):
        step.apply(files)
    return files


def _single(effects: Sequence[Effect]) -> Iterator[Put | Folder | Move | Remove | Link | Mode]:
    for effect in effects:
        if isinstance(effect, Many):
            yield from effect.each()
        else:
            yield effect


def _in_between(before: Files, step: Put | Folder | Move | Remove | Link | Mode, found: Files) -> bool:
    node = found.get(step.path)
    if node is None or not step.partial(node):
        return False
    return {**found, step.path: node} == {**before, step.path: node}
