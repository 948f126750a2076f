"""A model's answer cut off at every piece that was shown: it is gone on with, and nothing that a person has read is lost or said twice."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from perdure.record import records as r
from perdure.record.parts import text_of
from perdure.state.state import fold_all
from perdure.state.threads import Answered
from tests.crash.conftest import NewWorld
from tests.crash.harness import Exit, Point, World

pytestmark = pytest.mark.crash

TEXT = "The first word, then another one; a third follows, and a fourth, until at last the whole answer has been said."
PIECES = 3
PIECE_S = 0.12
"""Longer than text is held back before it is stored and shown, so that each piece is shown by itself."""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "script.json"
    path.write_text(json.dumps({"turns": [{"text": TEXT, "chunks": PIECES, "delay_s": PIECES * PIECE_S}]}))
    return path


def answer(world: World) -> str:
    """The one that the transcript has."""
    (entry,) = (e for e in fold_all(world.read().records).threads["main"].entries if isinstance(e, Answered))
    return text_of(entry.parts)


def numbers(world: World, name: str) -> list[int]:
    """Where the newest driver took the steps of that name."""
    return [n for n, taken in enumerate(world.steps(world.runs, "driver"), 1) if taken == name]


def cut(world: World, n: int) -> Exit:
    ended = world.run(at=Point("driver", n))
    assert ended.code == -signal.SIGKILL
    return ended


def pieces(text: str) -> list[str]:
    return [text[len(text) * n // PIECES : len(text) * (n + 1) // PIECES] for n in range(PIECES)]


def test_an_answer_goes_on_from_what_was_shown_wherever_it_was_cut(new_world: NewWorld, script: Path) -> None:
    undisturbed = new_world(script)
    assert undisturbed.run().shown == pieces(TEXT)
    points = range(numbers(undisturbed, "ask.before")[0], numbers(undisturbed, "commit.after:epoch_released")[0] + 1)
    assert len(points) == PIECES + 4
    for n in points:
        world = new_world(script)
        first, second = cut(world, n), world.run()
        assert (second.said, answer(world)) == ("settled", TEXT)
        if n != points[-1]:  # there the answer itself was stored
            kept = "".join(body.partial for body in world.read().bodies(r.Recovered))  # type: ignore[union-attr]
            assert kept.startswith("".join(first.shown)), "shown text is lost"
            assert kept + "".join(second.shown) == TEXT, "what goes on is not what was missing"
        world.close()


def test_an_answer_that_is_cut_again_and_again_is_still_one_answer(new_world: NewWorld, script: Path) -> None:
    probe = new_world(script)
    probe.run()
    n = numbers(probe, "shown")[1]
    probe = new_world(script)
    cut(probe, n)
    probe.run()
    again = numbers(probe, "shown")[1]
    world = new_world(script)
    texts = [cut(world, n).shown, *(cut(world, again).shown for _ in range(3))]
    assert all(texts), "a driver was cut before it had shown anything"
    assert world.settle() == 1
    assert answer(world) == TEXT
