"""What matters of a repository: HEAD, refs, index entries, and an unfinished merge or rebase.

A lost call that changed one of these was not undone, whatever happened to the files. The stat data in git's index does not count: any editor
refreshes it. Formats: git's Documentation/gitformat-index.txt (versions 2 to 4) and gitrepository-layout.txt.
"""

from __future__ import annotations

import hashlib
import os
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any, Optional

from perdure.spaced.index import Folder
from perdure.spaced.target import Source
from perdure.spaced.tree import DIRECTORY, Payload, decode_payload

MERGING = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "BISECT_LOG", "rebase-merge", "rebase-apply", "sequencer")
COMPONENTS = {"head": ("HEAD",), "refs": ("refs", "packed-refs"), "index": ("index",), "merging": MERGING}
"""The files below `.git` that each part of the state is made of."""

_FIXED_BYTES = 40
_INIT_NAMESPACE = 0xEFFFFFFC


class Repository:
    """Files of one `.git`: `payloads` by path relative to it (objects left out), and how to read one."""

    def __init__(self, payloads: dict[str, Payload], read: Callable[[str], bytes]) -> None:
        self.payloads, self._read = payloads, read

    def read(self, path: str) -> Optional[bytes]:
        return self._read(path) if path in self.payloads else None

    def state(self) -> dict[str, Any]:
        """In the shape of space.GitState."""
        refs = self._refs()
        return {
            "head": self._head(refs),
            "refs": hashlib.sha256(b"".join(b"%s %s\n" % ref for ref in sorted(refs.items()))).hexdigest(),
            "index": hashlib.sha256(_index_entries(self.read("index") or b"", self._hash_bytes())).hexdigest(),
            "merging": [name for name in MERGING if any(path == name or path.startswith(name + "/") for path in self.payloads)],
            "locks": self.locks(),
        }

    def locks(self) -> list[str]:
        return sorted(".git/" + path for path in self.payloads if path.endswith(".lock"))

    def _head(self, refs: dict[bytes, bytes]) -> str:
        head = (self.read("HEAD") or b"").strip()
        name = head[5:].strip() if head.startswith(b"ref:") else None
        told = head if name is None else name + b" " + refs.get(name, b"(no commit yet)")
        return told.decode("utf-8", "backslashreplace")

    def _refs(self) -> dict[bytes, bytes]:
        refs = {}
        for line in (self.read("packed-refs") or b"").splitlines():
            value, _, name = line.partition(b" ")
            if name and line[:1] not in b"#^":
                refs[name] = value
        for path in self.payloads:
            if path.startswith("refs/") and not path.endswith(".lock"):
                refs[os.fsencode(path)] = (self.read(path) or b"").strip()
        return refs

    def _hash_bytes(self) -> int:
        config = (self.read("config") or b"").lower().replace(b" ", b"")
        return 32 if b"objectformat=sha256" in config else 20


def in_workspace(folder: Folder, git_fd: int) -> Repository:
    """The repository as it is now."""

    def read(path: str) -> bytes:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=git_fd), "rb") as file:
            return file.read()

    payloads: dict[str, Payload] = {}
    stack = [("", folder)]
    while stack:
        prefix, at = stack.pop()
        payloads.update((prefix + name, payload) for name, payload in at.held.items())
        stack += ((prefix + name + "/", below) for name, below in at.folders.items() if prefix + name != "objects")
    return Repository(payloads, read)


def in_image(source: Source, root: str) -> Repository:
    """The repository as an image has it."""
    payloads: dict[str, Payload] = {}
    level = [("", bytes.fromhex(root))]
    while level:
        found = source.directories(digest for _, digest in level)
        below = []
        for prefix, digest in level:
            for name, payload in found[digest].items():
                path = prefix + os.fsdecode(name)
                if payload[:1] != DIRECTORY:
                    payloads[path] = payload
                elif path != "objects":
                    below.append((path + "/", decode_payload(payload).digest))
        level = below
    return Repository(payloads, lambda path: source.content(payloads[path]))


def changed_files(before: Repository, after: Repository, component: str) -> list[str]:
    """Paths below `.git` of that part of the state which differ."""
    names = COMPONENTS[component]
    return sorted(
        path
        for path in before.payloads.keys() | after.payloads.keys()
        if path.split("/", 1)[0] in names and before.payloads.get(path) != after.payloads.get(path)
    )


def git_may_run_outside(root_path: str) -> bool:
    """False only where every process of the machine can be seen and no git among them works in the root."""
    if sys.platform != "linux" or os.stat("/proc/self/ns/pid").st_ino != _INIT_NAMESPACE:
        return True
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/comm" % pid) as file:
                name = file.read().strip()
            if name.startswith("git") and (os.readlink("/proc/%s/cwd" % pid) + "/").startswith(root_path.rstrip("/") + "/"):
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue
        except OSError:
            return True
    return False


# ---- git's index ---------------------------------------------------------------------------------------------------------------


def _index_entries(data: bytes, hash_bytes: int) -> bytes:
    """Mode, object, stage, flags and name of every entry, and a split index's link; the raw bytes where they can't be read."""
    try:
        return b"".join(_entries(data, hash_bytes))
    except (struct.error, IndexError, ValueError):
        return data


def _entries(data: bytes, hash_bytes: int) -> Iterator[bytes]:
    if not data:
        return
    signature, version, count = struct.unpack(">4sII", data[:12])
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("not an index of version 2 to 4")
    at, name = 12, b""
    for _ in range(count):
        start = at
        (mode,) = struct.unpack(">I", data[at + 24 : at + 28])
        at += _FIXED_BYTES
        digest = data[at : at + hash_bytes]
        at += hash_bytes
        (flags,) = struct.unpack(">H", data[at : at + 2])
        at += 2
        extended = b""
        if flags & 0x4000:
            extended = data[at : at + 2]
            at += 2
        if version == 4:
            strip, at = _offset(data, at)
            end = data.index(b"\0", at)
            name = name[: len(name) - strip] + data[at:end]
            at = end + 1
        else:
            end = data.index(b"\0", at)
            name = data[at:end]
            at = start + (end - start + 8) // 8 * 8
        yield b"%o %s %x %s %s\0" % (mode, digest.hex().encode(), flags & 0xF000, extended.hex().encode(), name)
    yield from _links(data, at, hash_bytes)


def _links(data: bytes, at: int, hash_bytes: int) -> Iterator[bytes]:
    while at + 8 <= len(data) - hash_bytes:
        signature, size = struct.unpack(">4sI", data[at : at + 8])
        if signature == b"link":
            yield data[at : at + 8 + size]
        at += 8 + size


def _offset(data: bytes, at: int) -> tuple[int, int]:
    """git's offset encoding, as in packs: each further byte adds one."""
    value = data[at] & 0x7F
    while data[at] & 0x80:
        at += 1
        value = (value + 1) << 7 | data[at] & 0x7F
    return value, at + 1
