"""A driver of its own that takes long to begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.cli import detached
from perdure.record.errors import PerdureError
from tests.stage import play, stage


def test_a_driver_that_takes_long_to_begin_is_named_and_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detached, "BEGIN_S", 0.0)

    async def story() -> None:
        async with stage(tmp_path, "done") as s:
            submission = await s.session.submit("go")
            with pytest.raises(PerdureError, match=r"process \d+ has not begun to drive session s in 0 s.*driver.log"):
                await detached.detach(s.session)
            assert (await s.session.wait(submission, 30)).text == "done"

    play(story())
