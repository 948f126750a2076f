"""How a session's workspace is captured can be chosen, and what no event tells of is found when it has to be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perdure.record import records as r
from perdure.record.errors import UsageError
from tests.stage import bash, play, stage, turn

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
HIDDEN = "ln a ../link; echo more >> ../link; rm ../link"
"""Changes `a` by a name outside of the workspace, which is gone afterwards: no event tells."""


def changes(tmp_path: Path, capture: str) -> tuple[tuple[str, ...], list[tuple[str, tuple[str, ...]]]]:
    """What the hidden call was told to have changed, and what was found beside."""

    async def story() -> tuple[tuple[str, ...], list[tuple[str, tuple[str, ...]]]]:
        turns = (turn("", bash("echo one > a")), turn("", bash(HIDDEN)), turn("", bash("echo two > b")), "done")
        async with stage(tmp_path, *turns, capture=capture) as s:
            await s.run()
            finished = await s.finished()
            assert finished["main.3.0"].changed == ("b",)
            beside = [(body.found_by, body.paths) for body in await s.bodies(r.WorkspaceChanged)]
            return finished["main.2.0"].changed, [found for found in beside if found[0] != "open"]

    return play(story())


def test_a_watch_is_a_hint_and_the_audit_has_the_last_word(tmp_path: Path) -> None:
    assert changes(tmp_path, "watch") == ((), [("audit", ("a",))])


def test_auto_is_watch_where_that_can_be_had(tmp_path: Path) -> None:
    assert changes(tmp_path, "auto") == ((), [("audit", ("a",))])


def test_strict_audits_before_each_changing_call(tmp_path: Path) -> None:
    assert changes(tmp_path, "strict") == ((), [("before_call", ("a",))])


def test_a_scan_sees_it_at_once(tmp_path: Path) -> None:
    assert changes(tmp_path, "scan") == (("a",), [])


def test_an_engine_that_there_is_not_is_refused_before_anything_is_stored(tmp_path: Path) -> None:
    async def story() -> None:
        with pytest.raises(UsageError, match="auto, scan, watch, strict"):
            async with stage(tmp_path, "never", capture="listen"):
                pass

    play(story())
