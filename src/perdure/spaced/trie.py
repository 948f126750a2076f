"""A directory on its way to its nodes, kept so that a change costs what it touches.

Small directories are one leaf. A large one is a tree of `Trie`s whose shape depends on the set of names alone, never on the order in which they
came: a part of at most 512 entries is a leaf, a larger one a branch. Digests are kept until something below changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Optional

from perdure.spaced.tree import BRANCH_OF, LEAF_ENTRIES, SLOTS, Payload, encode_branch, encode_leaf, sha256, slot_of, slot_shift

Emit = Callable[[bytes, bytes], None]
"""Takes (digest, node) of a node that was not there before."""


class Trie:
    __slots__ = ("_digest", "_header", "_items", "_kids", "_level", "count")

    def __init__(self, header: bytes, level: int = 0) -> None:
        self.count = 0
        self._header, self._level = header, level
        self._items: Optional[dict[bytes, Payload]] = {}
        self._kids: dict[int, Trie] = {}
        self._digest: Optional[bytes] = None

    @classmethod
    def of(cls, header: bytes, entries: Iterable[tuple[bytes, Payload]]) -> Trie:
        """What putting them one after another makes, in a fraction of the time."""
        return cls._of(header, 0, [(int.from_bytes(sha256(name), "big"), name, payload) for name, payload in entries])

    @classmethod
    def _of(cls, header: bytes, level: int, entries: list[tuple[int, bytes, Payload]]) -> Trie:
        trie = cls(header, level)
        trie.count = len(entries)
        if trie.count <= LEAF_ENTRIES:
            trie._items = {name: payload for _, name, payload in entries}
            return trie
        trie._items, shift = None, slot_shift(level)
        parts: dict[int, list[tuple[int, bytes, Payload]]] = {}
        for entry in entries:
            parts.setdefault(entry[0] >> shift & SLOTS, []).append(entry)
        trie._kids = {slot: cls._of(header, level + 1, part) for slot, part in parts.items()}
        return trie

    def put(self, name: bytes, payload: Payload) -> bool:
        """Whether the name is new."""
        self._digest = None
        if self._items is None:
            added = self._kid(name).put(name, payload)
            self.count += added
            return added
        before = self.count
        self._items[name] = payload
        self.count = len(self._items)
        if self.count > LEAF_ENTRIES:
            items, self._items = self._items, None
            for key, value in items.items():
                self._kid(key).put(key, value)
        return self.count > before

    def remove(self, name: bytes) -> None:
        self._digest = None
        if self._items is not None:
            del self._items[name]
            self.count -= 1
            return
        slot = slot_of(name, self._level)
        self._kids[slot].remove(name)
        self.count -= 1
        if not self._kids[slot].count:
            del self._kids[slot]
        if self.count <= LEAF_ENTRIES:
            self._items = dict(self.items())
            self._kids = {}

    def items(self) -> Iterable[tuple[bytes, Payload]]:
        if self._items is not None:
            yield from self._items.items()
        for kid in self._kids.values():
            yield from kid.items()

    def seal(self, emit: Emit) -> bytes:
        """The digest of the node; nodes made since the last time are emitted, children first."""
        if self._digest is None:
            if self._items is not None:
                node = encode_leaf(self._header, self._items.items())
            else:
                children = {slot: kid.seal(emit) for slot, kid in self._kids.items()}
                node = encode_branch(BRANCH_OF[self._header], self.count, children)
            self._digest = sha256(node)
            emit(self._digest, node)
        return self._digest

    def _kid(self, name: bytes) -> Trie:
        slot = slot_of(name, self._level)
        kid = self._kids.get(slot)
        if kid is None:
            kid = self._kids[slot] = Trie(self._header, self._level + 1)
        return kid


def encode_directory(header: bytes, entries: Iterable[tuple[bytes, Payload]], emit: Emit) -> bytes:
    """The digest of a directory of any size, its nodes emitted."""
    return Trie.of(header, entries).seal(emit)
