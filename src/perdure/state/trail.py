"""An append-only sequence whose versions share their items.

A transcript of 1,000 turns must not be copied to add one message, and an older version of the state (kept while a commit may still be
refused) must not see the addition. All versions share one list; each knows how far it reads. Only appending to a version that is
not the newest copies its prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Trail(Sequence[T], Generic[T]):
    __slots__ = ("_items", "_length")

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: list[T] = list(items)
        self._length = len(self._items)

    def add(self, *items: T) -> Trail[T]:
        """A longer version; this one stays as it is."""
        if not items:
            return self
        longer: Trail[T] = Trail.__new__(Trail)
        shared = self._items if len(self._items) == self._length else self._items[: self._length]
        shared.extend(items)
        longer._items = shared
        longer._length = len(shared)
        return longer

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        if isinstance(index, slice):
            return self._items[: self._length][index]
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return self._items[index + self._length if index < 0 else index]

    def __iter__(self) -> Iterator[T]:
        for i in range(self._length):
            yield self._items[i]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Trail) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Trail({list(self)!r})"
