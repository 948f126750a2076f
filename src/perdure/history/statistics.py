"""What sessions took: tokens, money and time, by whatever they are grouped by."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Hashable
from typing import TypeVar

from msgspec import Struct

from perdure.history.prompts import Prompts
from perdure.record import records as r
from perdure.record.parts import Usage
from perdure.record.records import Stored

K = TypeVar("K", bound=Hashable)


class Taken(Struct, frozen=True):
    """`requests` were answered, `failed` were not. `model_s` is the time from a turn's start to its answer, waits for a busy provider included;
    `calls_s` is what calls ran, two at once counted twice."""

    prompts: int = 0
    requests: int = 0
    failed: int = 0
    calls: int = 0
    tokens: Usage = Usage()
    model_s: float = 0.0
    calls_s: float = 0.0

    def __add__(self, other: Taken) -> Taken:
        return Taken(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))


class Item(Struct, frozen=True):
    """One thing that took something, at a wall-clock time in seconds. `model` is empty where none had a part in it."""

    at: float
    model: str
    taken: Taken


async def items(records: AsyncIterable[Stored]) -> AsyncIterator[Item]:
    """What each record of one session adds."""
    begun: dict[tuple[str | None, int], Stored] = {}
    prompts = Prompts()
    async for stored in records:
        if prompts.asks(stored):
            yield Item(stored.at, "", Taken(prompts=1))
        match stored.body:
            case r.TurnStarted(turn=turn):
                begun[stored.thread, turn] = stored
            case r.ModelResponded(turn=turn, usage=tokens, model=model) | r.Compacted(turn=turn, usage=tokens, model=model):
                start = begun.pop((stored.thread, turn), stored)
                yield Item(stored.at, model, Taken(requests=1, tokens=tokens, model_s=max(0.0, stored.at - start.at)))
            case r.ModelFailed(usage=tokens, model=model):
                yield Item(stored.at, model, Taken(failed=1, tokens=tokens))
            case r.CallFinished(duration_s=duration_s):
                yield Item(stored.at, "", Taken(calls=1, calls_s=duration_s))
            case _:
                pass


def add(groups: dict[K, Taken], key: K, taken: Taken) -> None:
    groups[key] = groups.get(key, Taken()) + taken
