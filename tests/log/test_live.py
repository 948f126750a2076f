"""Streamed text: stored before it may be shown, at most ten times a second, and there after a kill."""

from __future__ import annotations

import asyncio
from pathlib import Path

from perdure.log.conformance import Clock
from perdure.log.live import LiveText, Piece


async def opened(home: Path) -> tuple[LiveText, Clock]:
    clock = Clock(0.0)
    return await LiveText.open(home, clock=clock), clock


def test_text_may_be_shown_once_it_is_stored(tmp_path: Path) -> None:
    async def run() -> None:
        live, clock = await opened(tmp_path)
        async with live:
            writer = live.writer("s", "main", 1, 1)
            assert await writer.add("Hel") == []
            assert await writer.add("lo") == []
            assert await live.read("s", "main", 1, 1) == []
            clock.now = 0.1
            assert await writer.add(", wor") == [Piece(1, "text", "Hello, wor")]
            assert await live.read("s", "main", 1, 1) == [Piece(1, "text", "Hello, wor")]
            assert writer.due_in_s is None
            clock.now = 0.15
            assert await writer.add("ld") == []
            assert writer.due_in_s is not None and abs(writer.due_in_s - 0.05) < 1e-9
            assert await writer.flush() == [Piece(2, "text", "ld")]
            assert await writer.flush() == []
            assert await live.read("s", "main", 1, 1, after=1) == [Piece(2, "text", "ld")]

    asyncio.run(run())


def test_channels_stay_apart_and_in_order(tmp_path: Path) -> None:
    async def run() -> None:
        live, _ = await opened(tmp_path)
        async with live:
            writer = live.writer("s", "main", 1, 1)
            for text, channel in (("hm", "thinking"), ("m", "thinking"), ("Yes", "text"), ("", "call"), ("!", "text")):
                await writer.add(text, channel)
            pieces = [Piece(1, "thinking", "hmm"), Piece(2, "text", "Yes"), Piece(3, "call", ""), Piece(4, "text", "!")]
            assert await writer.flush() == pieces
            assert await live.read("s", "main", 1, 1) == pieces

    asyncio.run(run())


def test_a_fast_stream_costs_ten_commits_a_second(tmp_path: Path) -> None:
    async def run() -> None:
        live, clock = await opened(tmp_path)
        async with live:
            writer = live.writer("s", "main", 1, 1)
            shown = []
            for n in range(1000):
                clock.now = n / 1000
                shown += await writer.add(f"{n} ")
            shown += await writer.flush()
            assert 9 <= len(shown) <= 11
            assert "".join(piece.text for piece in shown) == "".join(f"{n} " for n in range(1000))

    asyncio.run(run())


def test_attempts_and_threads_do_not_mix(tmp_path: Path) -> None:
    async def run() -> None:
        live, _ = await opened(tmp_path)
        async with live:
            for thread, turn, attempt in (("main", 1, 1), ("main", 1, 2), ("main", 2, 1), ("sub", 1, 1)):
                writer = live.writer("s", thread, turn, attempt)
                await writer.add(f"{thread}{turn}{attempt}")
                await writer.flush()
            assert await live.read("s", "main", 1, 2) == [Piece(1, "text", "main12")]
            await live.forget("s", "main", before_turn=2)
            assert await live.read("s", "main", 1, 1) == await live.read("s", "main", 1, 2) == []
            assert len(await live.read("s", "main", 2, 1)) == len(await live.read("s", "sub", 1, 1)) == 1
            await live.forget("s")
            assert await live.read("s", "sub", 1, 1) == []

    asyncio.run(run())


def test_a_reader_elsewhere_is_woken(tmp_path: Path) -> None:
    async def run() -> None:
        live, _ = await opened(tmp_path)
        other, _ = await opened(tmp_path)
        async with live, other:
            mark = await other.wait(0, 0)
            while (settled := await other.wait(mark, 0.1)) != mark:
                mark = settled
            waiting = asyncio.create_task(other.wait(mark, 30))
            writer = live.writer("s", "main", 1, 1)
            await writer.add("now")
            await writer.flush()
            async with asyncio.timeout(10):
                assert await waiting != mark
            assert await other.read("s", "main", 1, 1) == [Piece(1, "text", "now")]

    asyncio.run(run())


def test_it_is_proof_against_kills_without_syncing(tmp_path: Path) -> None:
    async def run() -> None:
        live, _ = await opened(tmp_path)
        async with live:
            assert await live._database.read(lambda c: (c.pragma("journal_mode"), c.pragma("synchronous"))) == ("wal", 1)
            assert (tmp_path / "live.db").stat().st_mode & 0o777 == 0o600

    asyncio.run(run())
