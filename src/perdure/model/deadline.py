"""The deadline of an attempt, laid over the stream and not over whoever reads it.

Only waiting for the provider is cut short: a reader that is storing a delta when the time is over finishes that first.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from perdure.model.stream import Delta, Final, Retryable


@asynccontextmanager
async def within(deadline_s: float, events: AsyncGenerator[Delta | Final]) -> AsyncIterator[AsyncIterator[Delta | Final]]:
    """The events as long as they come within `deadline_s` seconds of now, then Retryable. Leaving closes them."""
    async with aclosing(events), aclosing(_until(asyncio.get_running_loop().time() + deadline_s, deadline_s, events)) as timed:
        yield timed


async def _until(over_at: float, deadline_s: float, events: AsyncGenerator[Delta | Final]) -> AsyncGenerator[Delta | Final]:
    while True:
        try:
            async with asyncio.timeout_at(over_at):
                event = await anext(events)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise Retryable(f"the model did not finish within {deadline_s:g} s") from error
        yield event
