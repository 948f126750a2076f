"""An answer that an earlier driver left unsettled is settled without asking again, and the workspace is looked at all the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.drive.driver import Driver
from perdure.record import records as r
from tests.stage import Stage, bash, play, stage, turn


async def left_unsettled(s: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver that is told to go between the model's answer and its settlement."""

    async def told_to_go(*_: object) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patched:
        patched.setattr(Driver, "_release", told_to_go)
        with pytest.raises(asyncio.CancelledError):
            await s.session.run("go")
    assert not await s.settled()


def test_what_changed_before_the_settlement_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo one > one")), "done") as s:
            await left_unsettled(s, monkeypatch)
            (s.root / "theirs").write_text("theirs\n")
            await s.session.drive()
            assert [body.outcome for body in (await s.settled()).values()] == ["answered"]
            assert (await s.bodies(r.WorkspaceChanged))[-1].paths == ("theirs",)
            state = await s.session.state()
            assert state.workspace.synced is not None and state.workspace.synced == state.workspace.image
            assert len(await s.bodies(r.ModelResponded)) == 2

    play(story())


def test_a_directory_that_is_gone_by_then_keeps_no_answer_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo one > one")), "done") as s:
            await left_unsettled(s, monkeypatch)
            s.root.rename(tmp_path / "elsewhere")
            released = await s.session.drive()
            assert [body.outcome for body in (await s.settled()).values()] == ["answered"]
            assert released.rest.status == "settled"

    play(story())
