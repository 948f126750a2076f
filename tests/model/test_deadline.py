from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from perdure.model.deadline import within
from perdure.model.stream import Delta, Final, Retryable


class Source:
    """Deltas for ever, or one and then silence; it knows whether it was closed."""

    def __init__(self, *, silent: bool = False) -> None:
        self.closed = False
        self.silent = silent
        self.events = self._events()

    async def _events(self) -> AsyncGenerator[Delta | Final]:
        try:
            while True:
                yield Delta("a")
                if self.silent:
                    await asyncio.Event().wait()
        finally:
            self.closed = True


def test_leaving_closes_the_source_before_anything_else_happens() -> None:
    async def main() -> None:
        source = Source()
        async with within(60.0, source.events) as events:
            assert await anext(events) == Delta("a")
            assert not source.closed
        assert source.closed

    asyncio.run(main())


def test_silence_beyond_the_deadline_is_an_error_and_closes_the_source() -> None:
    async def main() -> None:
        source = Source(silent=True)
        with pytest.raises(Retryable, match=r"within 0\.05 s"):
            async with within(0.05, source.events) as events:
                assert [event async for event in events]
        assert source.closed

    asyncio.run(main())


def test_whoever_reads_is_never_interrupted() -> None:
    async def main() -> None:
        stored = 0
        with pytest.raises(Retryable):
            async with within(0.05, Source(silent=True).events) as events:
                async for _ in events:
                    await asyncio.sleep(0.1)
                    stored += 1
        assert stored == 1

    asyncio.run(main())
