"""Mappings by name that share with their predecessor what did not change.

A small directory is a plain dictionary. A large one is a list of small dictionaries by hash: a change copies the list and the one dictionary that
it hits, about the square root of the whole, so that one changed file among 100,000 costs microseconds and the old mapping stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

_T = TypeVar("_T")
LARGE = 2048


class Names(Mapping[str, _T]):
    """A large mapping; never changed once it is made."""

    __slots__ = ("_buckets", "_count")

    def __init__(self, buckets: list[dict[str, _T]], count: int) -> None:
        self._buckets, self._count = buckets, count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        for bucket in self._buckets:
            yield from bucket

    def __getitem__(self, name: str) -> _T:
        return self._buckets[hash(name) & (len(self._buckets) - 1)][name]

    def __contains__(self, name: object) -> bool:
        return name in self._buckets[hash(name) & (len(self._buckets) - 1)]

    def plain(self) -> dict[str, _T]:
        out: dict[str, _T] = {}
        for bucket in self._buckets:
            out.update(bucket)
        return out

    def over(self, put: Mapping[str, _T], gone: Iterable[str]) -> Names[_T]:
        buckets, mask, copied = list(self._buckets), len(self._buckets) - 1, set()
        count = self._count
        for name in (*put, *gone):
            at = hash(name) & mask
            if at not in copied:
                copied.add(at)
                buckets[at] = buckets[at].copy()
            count -= name in buckets[at]
            if name in put:
                buckets[at][name] = put[name]
                count += 1
            else:
                buckets[at].pop(name, None)
        return Names(buckets, count)


def plain(names: Mapping[str, _T]) -> dict[str, _T]:
    """As a dictionary that nobody may change."""
    return names.plain() if isinstance(names, Names) else names  # type: ignore[return-value]


def over(old: Mapping[str, _T], put: Mapping[str, _T], gone: Iterable[str] = ()) -> Mapping[str, _T]:
    """The old mapping with `put` over it and without `gone`; itself where both are empty. A name in both is gone."""
    gone = set(gone)
    if not put and not gone:
        return old
    if gone and not gone.isdisjoint(put):
        put = {name: value for name, value in put.items() if name not in gone}
    if isinstance(old, Names) and 8 * (len(put) + len(gone)) < len(old):
        new = old.over(put, gone)
        return new if LARGE // 2 < len(new) < 4 * len(new._buckets) ** 2 else _made(new.plain())
    whole = {**plain(old), **put}
    for name in gone:
        whole.pop(name, None)
    return _made(whole)


def _made(whole: dict[str, _T]) -> Mapping[str, _T]:
    if len(whole) <= LARGE:
        return whole
    buckets: list[dict[str, _T]] = [{} for _ in range(1 << (len(whole).bit_length() + 1) // 2)]
    mask = len(buckets) - 1
    for name, value in whole.items():
        buckets[hash(name) & mask][name] = value
    return Names(buckets, len(whole))
