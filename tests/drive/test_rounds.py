"""The calls of a turn: what runs together, what never runs, what the model is told, and what is kept of it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

import perdure
from perdure.record import records as r
from perdure.record.errors import UsageError
from tests.program import functions
from tests.stage import Stage, bash, call, play, stage, turn

# ---- order and together ----------------------------------------------------------------------------------------------------


def test_calls_that_only_read_run_at_once_and_their_results_keep_the_models_order(tmp_path: Path) -> None:
    """Each waits for the other, the first one longer: one after the other they would never end."""

    async def story() -> None:
        tool = perdure.from_function(functions.meet, effect="none", timeout_s=20.0)
        calls = [
            call("meet", folder=str(tmp_path), me=me, other=other, then_s=s)
            for me, other, s in (("a", "b", 0.3), ("b", "a", 0.0))
        ]
        async with stage(tmp_path, turn("", *calls), turn("done", expect="a met b.*b met a"), tools=[tool]) as s:
            assert (await s.run()).text == "done"
            assert list(await s.finished()) == ["main.1.0", "main.1.1"]

    play(story())


def test_what_changes_things_runs_alone_and_in_the_models_order(tmp_path: Path) -> None:
    async def story() -> None:
        calls = [bash("sleep 0.2; echo 1 >> log"), call("read", path="log"), bash("echo 2 >> log"), call("read", path="log")]
        async with stage(tmp_path, turn("", *calls), "done") as s:
            await s.run()
            texts = [f.result.text for f in (await s.finished()).values()]
            assert texts[1].strip() == "1"
            assert texts[3].split() == ["1", "2"]
            order = [
                (type(x.body).__name__, x.body.call)
                for x in await s.records()
                if isinstance(x.body, r.CallStarted | r.CallFinished)
            ]
            assert order == [(kind, f"main.1.{n}") for n in range(4) for kind in ("CallStarted", "CallFinished")]

    play(story())


def test_each_start_names_the_image_that_the_call_before_left(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo 1 > a"), bash("echo 2 > b")), "done") as s:
            await s.run()
            finished = await s.finished()
            started = {body.call: body for body in await s.bodies(r.CallStarted)}
            assert finished["main.1.0"].image is not None and started["main.1.1"].base is not None
            assert started["main.1.1"].base.same(finished["main.1.0"].image)
            assert finished["main.1.0"].changed == ("a",)
            assert finished["main.1.1"].changed == ("b",)

    play(story())


# ---- what never runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (call("bash", comand="ls"), "missing required field `command`.*Expected: command, timeout_s\\?, background\\?"),
        (call("bash", command=5), "Expected `str`"),
        (call("bash", command=""), "length >= 1"),
        (call("bash", command="ls", cwd="/"), "unknown cwd"),
        (call("read", path="a", offset=0), ">= 1"),
        (call("edit", path="a", edits=[]), "length >= 1"),
        (call("delete_everything"), "no tool named 'delete_everything'. Tools: read, write, edit, list, search, bash"),
        ({"tool": "bash", "raw": '{"command": "touch ran'}, "not a JSON object.*touch ran"),
    ],
)
def test_a_wrong_call_does_not_run_and_the_model_is_told_what_is_wrong(
    tmp_path: Path, wrong: dict[str, object], told: str
) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", wrong, bash("echo fine")), turn("done", expect=told)) as s:
            assert (await s.run()).text == "done"
            finished = await s.finished()
            assert finished["main.1.0"].outcome == "error"
            assert finished["main.1.1"].outcome == "ok"
            assert [body.call for body in await s.bodies(r.CallStarted)] == ["main.1.1"]
            assert not (s.root / "ran").exists()

    play(story())


# ---- long outputs ----------------------------------------------------------------------------------------------------------


def test_a_long_output_is_shown_in_part_and_can_be_read_whole(tmp_path: Path) -> None:
    async def story() -> None:
        print_it = bash("for i in $(seq 20000); do echo line $i; done")
        again = call("read", path="output:main.1.0", offset=10000, limit=3)
        script = (turn("", print_it), turn("", again, expect=r"line 1\n.*bytes left out.*output:main.1.0.*line 20000"), "done")
        async with stage(tmp_path, *script) as s:
            await s.run()
            finished = await s.finished()
            shown, whole = finished["main.1.0"].result, finished["main.2.0"].result.text
            assert shown.blob is not None and shown.blob.size_bytes <= 51 * 1024
            assert shown.output is not None and shown.output.size_bytes == sum(len(f"line {i}\n") for i in range(1, 20001))
            assert whole.startswith("line 10000\nline 10001\nline 10002\n")
            assert "20000 lines in all" in whole

    play(story())


def test_bytes_that_are_no_text_are_shown_within_bounds_and_kept(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("head -c 45000 /dev/urandom")), "done") as s:
            assert (await s.run()).text == "done"
            result = (await s.finished())["main.1.0"].result
            assert result.blob is not None and result.blob.size_bytes <= 64 * 1024
            assert result.output is not None

    play(story())


def test_a_page_of_a_long_file_stays_what_the_model_asked_for(tmp_path: Path) -> None:
    async def story() -> None:
        pages = call("read", path="long.txt", limit=10), call("read", path="output:main.1.0")
        async with stage(tmp_path, turn("", pages[0]), turn("", pages[1]), "done") as s:
            (s.root / "long.txt").write_text("".join(f"{n}\n" for n in range(1000)))
            await s.run()
            first, second = (f.result.text for f in (await s.finished()).values())
            assert first.splitlines()[:10] == [str(n) for n in range(10)]
            assert second.startswith(first)

    play(story())


def test_a_huge_listing_is_bounded(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", call("list")), "done") as s:
            for n in range(600):
                (s.root / f"{n:0200d}").touch()
            assert (await s.run()).text == "done"
            result = (await s.finished())["main.1.0"].result
            assert result.blob is not None and result.blob.size_bytes <= 64 * 1024
            assert result.output is not None and result.output.size_bytes > 600 * 200

    play(story())


def test_reading_an_output_that_does_not_exist_says_so(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(
            tmp_path, turn("", call("read", path="output:main.9.9")), turn("done", expect="no output of a call 'main.9.9'")
        ) as s:
            assert (await s.run()).text == "done"

    play(story())


# ---- background ------------------------------------------------------------------------------------------------------------

SERVER = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); time.sleep(600)"


def test_a_background_process_is_listed_with_command_and_port(tmp_path: Path) -> None:
    async def story() -> None:
        start = bash(f'exec python3 -c "{SERVER}" > port', background=True)
        wait = bash("while [ ! -s port ]; do sleep 0.02; done")
        async with stage(tmp_path, turn("", start, wait), "done") as s:
            await s.run()
            finished = await s.finished()
            assert "started in the background, pid" in finished["main.1.0"].result.text
            (left,) = finished["main.1.1"].left
            assert "socket.create_server" in left.command
            assert left.ports == (int((s.root / "port").read_text()),)
            assert left.call == "main.1.0"
            assert (await s.session.state()).workspace.left == (left,)
            end_supervisor(await s.session.state())

    play(story())


def end_supervisor(state: perdure.api.State) -> None:
    assert state.workspace.space is not None
    os.kill(state.workspace.space.init.pid, signal.SIGKILL)


# ---- functions -------------------------------------------------------------------------------------------------------------


async def result_of(tmp_path: Path, function: object, **args: object) -> tuple[r.CallFinished, Stage]:
    tool = perdure.from_function(function)  # type: ignore[arg-type]
    async with stage(tmp_path, turn("", call(tool.name, **args)), "done", tools=[tool]) as s:
        assert (await s.run()).text == "done"
        return (await s.finished())["main.1.0"], s


def test_a_functions_result_is_what_it_returns_and_not_what_it_prints(tmp_path: Path) -> None:
    finished, _ = play(result_of(tmp_path, functions.add, a=2, b=3))
    assert (finished.outcome, finished.result.text) == ("ok", "5")


def test_a_default_is_a_default(tmp_path: Path) -> None:
    assert play(result_of(tmp_path, functions.add, a=2))[0].result.text == "3"


def test_an_async_function_is_awaited(tmp_path: Path) -> None:
    assert play(result_of(tmp_path, functions.double, text="ab"))[0].result.text == "abab"


def test_a_failing_function_is_an_error_in_one_line(tmp_path: Path) -> None:
    finished, _ = play(result_of(tmp_path, functions.fail, why="out of paper"))
    assert (finished.outcome, finished.result.text) == ("error", "ValueError: out of paper")


def test_a_function_that_ends_its_process_is_an_error(tmp_path: Path) -> None:
    finished, _ = play(result_of(tmp_path, functions.leave))
    assert (finished.outcome, finished.exit_code) == ("error", 3)


def test_a_function_that_is_killed_has_an_unknown_outcome(tmp_path: Path) -> None:
    assert play(result_of(tmp_path, functions.die))[0].outcome == "unknown"


def test_a_function_that_outlives_its_time_is_killed_and_unknown(tmp_path: Path) -> None:
    async def story() -> None:
        tool = perdure.from_function(functions.hang, timeout_s=0.8)
        script = turn("", call("hang", mark=str(tmp_path / "pid"))), turn("done", expect="Check before you try again")
        async with stage(tmp_path, *script, tools=[tool]) as s:
            assert (await s.run()).text == "done"
            assert (await s.finished())["main.1.0"].outcome == "unknown"
            assert not Path(f"/proc/{int((tmp_path / 'pid').read_text())}").exists()

    play(story())


def test_a_function_works_in_the_directory_knows_its_key_and_no_providers_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    finished, s = play(result_of(tmp_path, functions.where))
    assert f'"cwd":"{s.root}"' in finished.result.text
    assert re.search(r'"key":"[0-9a-f]+:main\.1\.0:1"', finished.result.text)
    assert '"secret":null' in finished.result.text


def test_a_function_imports_nothing_from_the_workspace(tmp_path: Path) -> None:
    async def story() -> None:
        tool = perdure.from_function(functions.add)
        async with stage(tmp_path, turn("", call("add", a=1)), "done", tools=[tool]) as s:
            (s.root / "json.py").write_text("raise SystemExit('hijacked')\n")
            await s.run()
            assert (await s.finished())["main.1.0"].result.text == "2"

    play(story())


def test_a_functions_long_result_is_bounded_and_kept(tmp_path: Path) -> None:
    async def story() -> None:
        tool = perdure.from_function(functions.long)
        read = call("read", path="output:main.1.0", offset=19999)
        script = turn("", call("long", size_bytes=200_000)), turn("", read, expect="200000 bytes in all"), "done"
        async with stage(tmp_path, *script, tools=[tool]) as s:
            assert (await s.run()).text == "done"
            finished = await s.finished()
            assert finished["main.1.0"].result.output is not None
            assert finished["main.2.0"].result.text == "123456789\n" * 2

    play(story())


def test_what_a_function_changes_in_the_directory_is_in_the_log(tmp_path: Path) -> None:
    async def story() -> None:
        tool = perdure.from_function(functions.make)
        async with stage(tmp_path, turn("", call("make", name="made.txt")), "done", tools=[tool]) as s:
            await s.run()
            finished = (await s.finished())["main.1.0"]
            assert finished.changed == ("made.txt",)
            assert not await s.bodies(r.WorkspaceChanged) or all(c.path_count == 0 for c in await s.bodies(r.WorkspaceChanged))

    play(story())


def test_a_function_that_no_process_could_import_is_refused() -> None:
    def nested(a: int) -> int:
        return a

    with pytest.raises(UsageError, match="top level"):
        perdure.from_function(nested)
    with pytest.raises(UsageError, match="top level"):
        perdure.from_function(lambda a: a)
    with pytest.raises(UsageError, match="needs a type annotation"):
        perdure.from_function(functions.untyped)


def test_a_session_whose_tool_is_gone_says_so_and_raises_no_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        tool = perdure.from_function(functions.add)
        async with stage(tmp_path, "never", tools=[tool]) as s:
            monkeypatch.delattr(functions, "add")
            with pytest.raises(UsageError, match="functions:add"):
                await s.run()
            assert (await s.session.row()).epoch == 0

    play(story())


# ---- people --------------------------------------------------------------------------------------------------------------


def test_an_edit_of_a_file_that_changed_since_it_was_read_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        edit = call("edit", path="a.txt", edits=[{"old_text": "mine", "new_text": "ours"}])
        write = call("write", path="a.txt", content="mine alone\n")
        script = (
            turn("", call("read", path="a.txt")),
            turn("", bash("touch read; while [ ! -e edited ]; do sleep 0.02; done")),
            turn("", edit, write),
            turn("", call("read", path="a.txt"), edit, expect="changed since it was last read; read it again"),
            "done",
        )
        async with stage(tmp_path, *script) as s:
            (s.root / "a.txt").write_text("mine\n")
            running = asyncio.create_task(s.run())
            await s.file("read")
            (s.root / "a.txt").write_text("theirs and mine\n")
            (s.root / "edited").touch()
            assert (await running).text == "done"
            finished = await s.finished()
            assert [f.outcome for f in finished.values()] == ["ok", "ok", "error", "error", "ok", "ok"]
            assert (s.root / "a.txt").read_text() == "theirs and ours\n"

    play(story())


def test_what_people_change_between_calls_is_recorded_before_the_next_one_and_told(tmp_path: Path) -> None:
    async def story() -> None:
        pause = call("meet", folder=str(tmp_path), me="a", other="b", then_s=0.0)
        script = (
            turn("", pause),
            turn("", bash("echo next > mine.txt")),
            turn("done", expect="changed by someone else.*\n  docs/theirs.txt"),
        )
        tools = [perdure.from_function(functions.meet, effect="none")]
        async with stage(tmp_path, *script, tools=tools) as s:
            running = asyncio.create_task(s.run())
            await s.started("main.1.0")
            (s.root / "docs").mkdir()
            (s.root / "docs" / "theirs.txt").write_text("hello\n")
            (tmp_path / "b").touch()
            assert (await running).text == "done"
            changed = next(x for x in await s.records() if isinstance(x.body, r.WorkspaceChanged) and x.body.path_count)
            started = next(x for x in await s.records() if isinstance(x.body, r.CallStarted) and x.body.call == "main.2.0")
            assert isinstance(changed.body, r.WorkspaceChanged) and isinstance(started.body, r.CallStarted)
            assert "docs/theirs.txt" in changed.body.paths
            assert changed.body.found_by == "before_call"
            assert changed.commit == started.commit, "committed with the start"
            assert started.body.base is not None and started.body.base.same(changed.body.image)
            assert (await s.finished())["main.2.0"].changed == ("mine.txt",)

    play(story())


def test_a_server_that_writes_all_the_time_keeps_no_call_from_beginning(tmp_path: Path) -> None:
    async def story() -> None:
        server = "import time\nwhile True:\n  print(time.time(), file=open('server.log', 'a'))\n  time.sleep(0.0005)\n"
        background = bash("python3 server.py & until test -s server.log; do sleep 0.01; done")
        async with stage(tmp_path, turn("", background), turn("", bash("echo 1 > a")), turn("", bash("echo 2 > b")), "done") as s:
            (s.root / "server.py").write_text(server)
            assert (await s.run()).text == "done"
            starts = [body.call for body in await s.bodies(r.CallStarted)]
            assert max(starts.count(id) for id in set(starts)) == 2, starts
            assert (s.root / "b").read_text() == "2\n"
            end_supervisor(await s.session.state())

    play(story())


def test_what_people_change_at_the_very_end_is_found_by_the_audit(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, turn("", bash("echo 1 > a")), turn("bye", delay_s=0.6, chunks=3)) as s:
            running = asyncio.create_task(s.run())
            await s.until(lambda body: isinstance(body, r.TurnStarted) and body.turn == 2)
            (s.root / "theirs").write_text("x")
            await running
            last = (await s.bodies(r.WorkspaceChanged))[-1]
            assert (last.found_by, last.paths) == ("audit", ("theirs",))
            assert (await s.bodies(r.Synced))[-1].image == last.image

    play(story())


def test_a_tool_that_a_later_driver_could_not_find_again_is_refused(tmp_path: Path) -> None:
    async def story() -> None:
        tool = perdure.from_function(functions.add)
        changed = replace(tool, description="Subtract two numbers.")
        with pytest.raises(UsageError, match="from_function"):
            async with stage(tmp_path, "never", tools=[changed]):
                pass

    play(story())


def test_what_a_commit_names_is_not_pinned_any_longer(tmp_path: Path) -> None:
    async def story() -> None:
        command = "head -c 300000 /dev/urandom > large; seq 100000"
        async with stage(tmp_path, turn("", bash(command)), "done") as s:
            await s.run()
            assert (await s.finished())["main.1.0"].result.output is not None
            assert await s.home.store._log.read(lambda connection: connection.execute("SELECT count(*) FROM pin").get) == 0

    play(story())
