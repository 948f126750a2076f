"""What `import perdure` gives, as docs/api.md promises it."""

from __future__ import annotations

import asyncio
import os
import sys
from itertools import pairwise
from pathlib import Path

import pytest

import perdure
from perdure.record import records as r
from perdure.record.errors import RootRefusedError, UsageError
from tests.stage import PATIENCE_S, bash, call, home_at, play, stage, turn, write_script


def test_every_public_name_is_there() -> None:
    assert all(getattr(perdure, name) is not None for name in perdure.__all__)
    with pytest.raises(AttributeError):
        perdure.nonsense  # noqa: B018


def test_the_readmes_program(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "project").mkdir()
        model = write_script(tmp_path / "s.json", turn("", call("write", path="a.txt", content="hi\n")), "done")
        async with perdure.open(tmp_path / "home") as home:
            s = await home.session(directory=tmp_path / "project", model=model)
            answer = await s.run("write a file")
            assert (answer.outcome, answer.text, answer.reason) == ("answered", "done", "")
            assert (tmp_path / "project" / "a.txt").read_text() == "hi\n"
            assert [type(e) async for e in s.observe(follow=False)] == [perdure.Recorded] * (await s.row()).last_seq
            assert [row.session for row in await home.sessions()] == [s.id]
            assert await s.directory() == str(tmp_path / "project")

    play(story())


# ---- finding sessions ------------------------------------------------------------------------------------------------------


def test_a_session_is_found_by_id_by_unique_prefix_and_by_directory(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "x", name="alpha"), stage(tmp_path, "x", name="alps") as s:
            home = s.opened
            assert (await home.session("alpha")).id == "alpha"
            assert (await home.session("alph")).id == "alpha"
            assert (await home.session(directory=tmp_path / "root-alps")).id == "alps"
            with pytest.raises(UsageError, match="names 2 sessions"):
                await home.session("al")
            with pytest.raises(UsageError, match="no session 'beta'"):
                await home.session("beta")
            with pytest.raises(UsageError, match="no session on"):
                await home.session(directory=tmp_path)

    play(story())


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ({"directory": "missing"}, "does not exist"),
        ({"directory": "a file"}, "is not a directory"),
        ({"directory": "/"}, "/ can't be a workspace"),
        ({"directory": "."}, "lies inside of"),
        ({"directory": "home/inner"}, "lies inside of Perdure's home"),
        ({"model": "scripted:missing.json"}, "can't be read"),
        ({"model": "nonsense"}, "there is no model"),
        ({"space": "moon"}, "no Space of kind 'moon'"),
        ({"id": "../up"}, "can't name a session"),
    ],
)
def test_what_is_wrong_with_a_new_session_is_said_before_anything_is_stored(
    tmp_path: Path, wrong: dict[str, str], remedy: str
) -> None:
    async def story() -> None:
        (tmp_path / "root").mkdir()
        (tmp_path / "a file").touch()
        (tmp_path / "home" / "inner").mkdir(parents=True)
        options = {"directory": "root", "model": write_script(tmp_path / "s.json", "x"), **wrong}
        directory = options.pop("directory")
        async with home_at(tmp_path / "home") as home:
            with pytest.raises(UsageError, match=remedy):
                await home.session(options.pop("id", None), directory=tmp_path / directory, **options)
            assert await home.sessions() == []

    play(story())


@pytest.mark.parametrize("other", ["outer/held", "outer/held/inner", "outer"])
def test_a_directory_that_an_unsettled_session_works_in_is_refused(tmp_path: Path, other: str) -> None:
    """The same one, one inside it, and one around it."""

    async def story() -> None:
        (tmp_path / "outer" / "held" / "inner").mkdir(parents=True)
        model = write_script(tmp_path / "s.json", "x")
        async with home_at(tmp_path / "home") as home:
            s = await home.session("holder", directory=tmp_path / "outer" / "held", model=model)
            await s.submit("go")
            with pytest.raises(RootRefusedError, match="holder"):
                await home.session("other", directory=tmp_path / other, model=model)
            assert [row.session for row in await home.sessions()] == ["holder"]
            await s.drive()
            await home.session("other", directory=tmp_path / other, model=model)

    play(story())


# ---- observing -------------------------------------------------------------------------------------------------------------

WATCHER = """
import asyncio, sys, perdure
async def main(home):
    async with perdure.open(home) as opened:
        session = await opened.session("s")
        async for event in session.observe():
            if isinstance(event, perdure.Recorded):
                print(event.stored.seq, type(event.stored.body).__name__, flush=True)
                if type(event.stored.body).__name__ == "EpochReleased":
                    return
            elif isinstance(event, perdure.TextShown):
                print("text", event.text, flush=True)
asyncio.run(main(sys.argv[1]))
"""


def test_another_process_sees_each_record_once_in_order_and_the_text_as_it_streams(tmp_path: Path) -> None:
    async def story() -> None:
        words = "".join(f"<{n}>" for n in range(60))
        async with stage(tmp_path, turn("", bash("echo hi")), turn(words, chunks=60, delay_s=3.0)) as s:
            command = [sys.executable, "-c", WATCHER, str(tmp_path / "home")]
            watcher = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, env=os.environ)
            await s.run()
            async with asyncio.timeout(PATIENCE_S):
                out, _ = await watcher.communicate()
            lines = out.decode().splitlines()
            seqs = [int(line.split()[0]) for line in lines if not line.startswith("text")]
            assert seqs == list(range(1, (await s.session.row()).last_seq + 1))
            pieces = [line.removeprefix("text ") for line in lines if line.startswith("text")]
            assert len(pieces) > 2, "it came in pieces"
            assert words.startswith("".join(pieces))
            first = lines.index(f"text {pieces[0]}")
            assert any("ModelResponded" in line for line in lines[first:]), "text was seen before its record"

    play(story())


def test_an_observer_can_begin_anywhere(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "done") as s:
            await s.run()
            last = (await s.session.row()).last_seq
            seen = [e.stored.seq async for e in s.session.observe(after=3, follow=False) if isinstance(e, perdure.Recorded)]
            assert seen == list(range(4, last + 1))
            assert [e async for e in s.session.observe(after=last, follow=False)] == []

    play(story())


def test_two_observers_of_one_process_both_see_everything(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("true")), turn("long answer", chunks=11, delay_s=0.8)) as s:

            async def watch() -> tuple[list[int], str]:
                seqs, text = [], ""
                async for event in s.session.observe():
                    match event:
                        case perdure.Recorded(stored):
                            seqs.append(stored.seq)
                            if isinstance(stored.body, r.EpochReleased):
                                return seqs, text
                        case perdure.TextShown(text=piece):
                            text += piece
                        case _:
                            pass
                raise AssertionError("it follows")

            watching = [asyncio.create_task(watch()) for _ in range(2)]
            await s.run()
            for seqs, text in await asyncio.gather(*watching):
                assert all(b == a + 1 for a, b in pairwise(seqs)) and seqs[0] == 1
                assert text and "long answer".startswith(text)

    play(story())


def test_the_drivers_own_events_show_text_output_and_records(tmp_path: Path) -> None:
    """The command ends only when its output was shown."""

    async def story() -> None:
        speak = bash("echo to the terminal; while [ ! -e shown ]; do sleep 0.02; done")
        async with stage(tmp_path, turn("", speak), turn("bye now", chunks=7, delay_s=0.5)) as s:
            events: list[perdure.Event] = []

            def note(event: perdure.Event) -> None:
                events.append(event)
                if isinstance(event, perdure.OutputShown) and event.data == b"to the terminal\n":
                    (s.root / "shown").touch()

            await s.run(emit=note)
            assert "".join(e.text for e in events if isinstance(e, perdure.TextShown)) == "bye now"
            recorded = [e.stored.seq for e in events if isinstance(e, perdure.Recorded)]
            assert recorded == sorted(recorded)
            assert recorded[-1] == (await s.session.row()).last_seq

    play(story())


# ---- waiting ---------------------------------------------------------------------------------------------------------------


def test_a_third_party_waits_for_an_answer_that_another_drives(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("sleep 0.3")), "done") as s, home_at(tmp_path / "home") as other:
            id = await s.session.submit("go")
            waiting = asyncio.create_task((await other.session("s")).wait(id, PATIENCE_S))
            await s.session.drive()
            assert (await waiting).text == "done"

    play(story())


def test_waiting_has_an_end(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "never") as s:
            id = await s.session.submit("go")
            with pytest.raises(TimeoutError):
                await s.session.wait(id, 0.1)

    play(story())


def test_a_replaced_directory_is_waited_for_and_goes_on_when_it_is_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo 1 > a")), "done", turn("", bash("cat a")), "again") as s:
            await s.run()
            away = s.root.rename(tmp_path / "away")
            answer = await s.run("go on", request_id="r")
            assert (answer.outcome, answer.waiting_for) == ("waiting", "root_replaced")
            assert "put it back" in answer.detail
            s.root.mkdir()
            assert (await s.run("go on", request_id="r")).waiting_for == "root_replaced"
            s.root.rmdir()
            away.rename(s.root)
            assert (await s.run("go on", request_id="r")).text == "again"
            assert (await s.finished())["main.3.0"].result.text == "1\n"

    play(story())


def test_what_a_log_could_not_be_read_with_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, "done") as s:
            before = (await s.session.row()).last_seq
            for wrong in (
                s.session.answer("survivors", "nonsense"),
                s.session.submit("go", mode="nonsense"),  # type: ignore[arg-type]
                s.session.submit("go", deadline="tomorrow"),  # type: ignore[arg-type]
            ):
                with pytest.raises(UsageError, match="can't be stored"):
                    await wrong
            assert (await s.session.row()).last_seq == before
            assert (await s.run()).text == "done"

    play(story())


def test_custody_is_one_of_three(tmp_path: Path) -> None:
    async def story() -> None:
        (root := tmp_path / "root").mkdir()
        async with home_at(tmp_path / "home") as opened:
            with pytest.raises(UsageError, match="auto, pidns, unproven"):
                await opened.session(directory=root, model=write_script(tmp_path / "s.json", "done"), custody="nonsense")

    play(story())
