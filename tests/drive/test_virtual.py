"""Output of any length, read by lines: the lines that were asked for, and never all of it in memory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from perdure.drive import virtual


async def pieces(data: bytes, chance: random.Random) -> AsyncIterator[bytes]:
    at = 0
    while at < len(data):
        size = chance.randint(1, 40)
        yield data[at : at + size]
        at += size


def read(data: bytes, offset: int, limit: int, seed: int = 0) -> str:
    return asyncio.run(virtual._lines(pieces(data, random.Random(seed)), offset, limit)).text


@pytest.mark.parametrize("seed", range(20))
def test_the_lines_that_were_asked_for_however_the_content_is_cut(seed: int) -> None:
    chance = random.Random(seed)
    lines = [("ä" * chance.randint(0, 30) + "\n").encode() for _ in range(chance.randint(0, 30))]
    last = b"without an end" if seed % 2 else b""
    data = b"".join(lines) + last
    every = [*lines, last] if last else lines
    for offset in range(1, len(every) + 2):
        for limit in (1, 3, 100):
            wanted = b"".join(every[offset - 1 : offset - 1 + limit]).decode()
            more = offset + limit - 1 < len(every)
            said = f"\n[{len(every)} lines in all; go on with offset {offset + max(wanted.count(chr(10)), 1)}]" if more else ""
            assert read(data, offset, limit, seed) == wanted + said


def test_a_long_line_is_cut_between_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual, "MAX_READ_BYTES", 9)
    assert read("ää ääääää\nnext\n".encode(), 1, 10) == "ää ää\n[2 lines in all; go on with offset 2]"


def test_what_was_not_asked_for_is_counted_and_not_held() -> None:
    page, line = virtual._Page(5, 6), "0123456789abcde\n"
    for _ in range(64):
        page.add(line.encode() * (1 << 16))
    assert len(page._chosen) == 2 * len(line)
    assert page.shown() == f"{line}{line}\n[{64 << 16} lines in all; go on with offset 7]"
