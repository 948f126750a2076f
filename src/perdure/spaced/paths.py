"""Paths of a workspace: as text for people, and as a directory descriptor and a name for system calls.

`resolve` follows symlinks itself, one name at a time and each with O_NOFOLLOW, so that no link that a command planted leads a tool out of the root.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple, Optional

from perdure.spaced.errors import OpError

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_HOPS = 40


def path_text(path: str) -> str:
    """The path as text that every JSON can carry: bytes that are not UTF-8 are shown as `\\xNN`."""
    if path.isascii():
        return path
    return os.fsencode(path).decode("utf-8", "backslashreplace")


class Place(NamedTuple):
    """Where a path leads: `name` in the open directory `fd` (empty for the root itself), `path` without links from the root.

    `status` is None where nothing is there yet; then `missing` are the directories that would have to be made above it, outermost first.
    """

    fd: int
    name: str
    path: str
    status: Optional[os.stat_result]
    missing: tuple[str, ...] = ()


@contextlib.contextmanager
def resolve(root_fd: int, root_path: str, path: str) -> Iterator[Place]:
    """The place that a model's path means, every symlink followed. Raises OpError where it leads outside or through a file."""
    if not path or "\0" in path:
        raise OpError("not a path: %r" % path)
    stack = _Stack(root_fd)
    try:
        yield _resolve(stack, root_path, path)
    finally:
        stack.close()


class _Stack:
    """Directories from the root down, the root's descriptor borrowed."""

    def __init__(self, root_fd: int) -> None:
        self._fds = [root_fd]
        self.names: list[str] = []

    @property
    def fd(self) -> int:
        return self._fds[-1]

    def push(self, name: str) -> None:
        self._fds.append(os.open(name, DIRECTORY_FLAGS, dir_fd=self.fd))
        self.names.append(name)

    def pop(self) -> None:
        os.close(self._fds.pop())
        self.names.pop()

    def close(self) -> None:
        while self.names:
            self.pop()


def _resolve(stack: _Stack, root_path: str, path: str) -> Place:
    rest = deque(_inside(root_path, path, path).split("/"))
    hops = 0
    while rest:
        name = rest.popleft()
        if name in ("", "."):
            continue
        if name == "..":
            if not stack.names:
                raise OpError("%s is outside the workspace; only paths below %s can be used" % (path, root_path))
            stack.pop()
            continue
        at = "/".join([*stack.names, name])
        try:
            status = os.stat(name, dir_fd=stack.fd, follow_symlinks=False)
        except FileNotFoundError:
            return _missing(stack, name, [part for part in rest if part not in ("", ".")], path)
        if stat.S_ISLNK(status.st_mode):
            hops += 1
            if hops > _HOPS:
                raise OpError("%s: too many symbolic links" % path)
            target = os.readlink(name, dir_fd=stack.fd)
            if target.startswith("/"):
                target = _inside(root_path, target, path)
                stack.close()
            rest.extendleft(reversed(target.split("/")))
        elif not any(part not in ("", ".") for part in rest):
            return Place(stack.fd, name, at, status)
        elif stat.S_ISDIR(status.st_mode):
            stack.push(name)
        else:
            raise OpError("%s: %s is a file, not a directory" % (path, at))
    return _directory_itself(stack)


def _directory_itself(stack: _Stack) -> Place:
    """A path that ends in `..` or `.`, or at the root."""
    if not stack.names:
        return Place(stack.fd, "", ".", os.fstat(stack.fd))
    path, name = "/".join(stack.names), stack.names[-1]
    status = os.fstat(stack.fd)
    stack.pop()
    return Place(stack.fd, name, path, status)


def _missing(stack: _Stack, name: str, rest: list[str], path: str) -> Place:
    if ".." in rest:
        raise OpError("%s: there is no directory %s" % (path, "/".join([*stack.names, name])))
    names = [name, *rest]
    return Place(stack.fd, names[-1], "/".join([*stack.names, *names]), None, tuple(names[:-1]))


def _inside(root_path: str, path: str, asked: str) -> str:
    """The path relative to the root. Raises OpError for an absolute one elsewhere."""
    if not path.startswith("/"):
        return path
    if path == root_path or path.startswith(root_path.rstrip("/") + "/"):
        return path[len(root_path) :]
    leads = "" if path == asked else " (by a symbolic link to %s)" % path
    raise OpError("%s is outside the workspace%s; only paths below %s can be used" % (asked, leads, root_path))
