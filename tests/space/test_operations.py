"""What a driver sees of an operation: its outcome, its output, its processes, its capture."""

from __future__ import annotations

import asyncio
import socket

import pytest

from perdure.record.errors import UsageError
from perdure.space.space import Edit, Exec, List, Read, Replacement, Search, Write
from tests.space.conftest import Place, run, until, until_async


def test_a_command_runs_in_the_workspace_and_ends_with_its_code_and_output(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        status = await run(space, "l:c:1", 'pwd; echo "$PWD"; echo oops >&2; exit 3')
        assert (status.state, status.cause) == ("ended", "self")
        assert status.result is not None
        assert status.result.text == f"{place.root}\n{place.root}\noops\n"
        assert (status.result.ok, status.result.exit_code) == (False, 3)

    asyncio.run(main())


def test_a_mutating_command_is_captured_when_it_ends(place: Place) -> None:
    async def main() -> None:
        (place.root / "kept").write_text("as it was")
        space = await place.open()
        base = (await space.capture(None)).image
        status = await run(space, "l:c:1", "echo new > made", base)
        assert status.capture is not None
        assert status.capture.changed == ("made",)
        (place.root / "later").write_text("somebody else's")
        again = (await space.status({"l:c:1"}))["l:c:1"]
        assert again.capture == status.capture
        chunks = {digest: data async for digest, data in space.chunks(status.capture.chunks)}
        assert b"new\n" in chunks.values()
        assert set(chunks) == set(status.capture.chunks)

    asyncio.run(main())


def test_a_call_key_runs_once(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        first, second = await asyncio.gather(run(space, "l:c:1", "echo x >> count"), run(space, "l:c:1", "echo x >> count"))
        third = await run(space, "l:c:1", "echo x >> count")
        assert (place.root / "count").read_text() == "x\n"
        assert first.capture == second.capture == third.capture
        with pytest.raises(UsageError, match="another operation"):
            await space.start("l:c:1", Exec("echo y >> count"))

    asyncio.run(main())


def test_a_command_that_can_not_be_started_says_why(place: Place) -> None:
    async def main() -> None:
        space = await place.open(1)
        for key, command, why in (("l:a:1", "echo \0", "null byte"), ("l:b:1", "x" * (1 << 20), "Argument list too long")):
            status = await run(space, key, command)
            assert status.result is not None
            assert (status.cause, status.result.exit_code) == ("self", 127)
            assert why in status.result.text

    asyncio.run(main())


def test_a_timeout_ends_a_tree_that_ignores_sigterm(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        command = "trap '' TERM; (setsid bash -c \"trap '' TERM; while :; do sleep 0.05; done\" &) ; while :; do sleep 0.05; done"
        status = await run(space, "l:c:1", command, timeout_s=0.3)
        assert status.cause == "timeout"
        assert status.result is not None
        assert not status.result.ok
        assert "timed out after 0.3 s" in status.result.text
        assert place.running("l:c:1") == []

    asyncio.run(main())


def test_stop_gives_a_command_its_grace(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        base = (await space.capture(None)).image
        await space.start(
            "l:c:1", Exec("trap 'echo bye > last; exit 0' TERM; touch ready; while :; do sleep 0.05; done"), base=base
        )
        await until_async((place.root / "ready").exists)
        status = await space.stop("l:c:1", 5.0)
        assert status.cause == "abort"
        assert (place.root / "last").read_text() == "bye\n"
        assert status.capture is not None
        assert status.capture.changed == ("last", "ready")
        assert place.running("l:c:1") == []

    asyncio.run(main())


def test_a_stop_that_overtakes_its_start_is_kept(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        await space.start("l:c:1", Exec("sleep 60"))
        assert (await space.stop("l:c:1")).cause == "abort"

    asyncio.run(main())


def test_too_much_output_ends_a_command(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        status = await run(space, "l:c:1", "yes", max_output_bytes=100_000)
        assert status.result is not None
        assert not status.result.ok
        assert "printed more than 100000 bytes" in status.result.text
        assert status.result.truncated
        assert len(status.result.text.encode()) < 52_000
        assert place.running("l:c:1") == []

    asyncio.run(main())


def test_output_comes_while_it_is_printed_and_from_any_offset(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        await space.start("l:c:1", Exec("echo one; until [ -e go ]; do sleep 0.02; done; echo two"))
        pieces = []
        async for piece in space.output("l:c:1"):
            pieces.append(piece)
            (place.root / "go").touch()
        assert b"".join(pieces) == b"one\ntwo\n"
        assert b"".join([piece async for piece in space.output("l:c:1", 4)]) == b"two\n"

    asyncio.run(main())


def test_what_is_not_utf8_is_shown_with_replacement_characters(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        status = await run(space, "l:c:1", r"printf 'a\377b\n'")
        assert status.result is not None
        assert status.result.text == "a\ufffdb\n"
        assert [piece async for piece in space.output("l:c:1")] == [b"a\xffb\n"]

    asyncio.run(main())


def test_a_process_left_behind_is_named_with_its_call_and_port(place: Place) -> None:
    async def main() -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        space = await place.open()
        serve = f"python3 -m http.server --bind 127.0.0.1 {port}"
        command = f"env -i $(command -v python3) -c 'import time' ; (env -u PERDURE_CALL_KEY setsid {serve} >/dev/null 2>&1 &)"
        ready = f"until (exec 3<>/dev/tcp/127.0.0.1/{port}) 2>/dev/null; do sleep 0.02; done"
        status = await run(space, "l:t.1.0:1", f"{command}; {ready}", base=(await space.capture(None)).image)
        assert status.capture is not None
        (left,) = status.capture.left
        assert (left.call, left.ports) == ("t.1.0", (port,))
        assert "http.server" in left.command
        assert await space.processes() == [left]

    asyncio.run(main())


def test_a_background_command_ends_as_soon_as_it_runs(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        status = await run(space, "l:c:1", "exec sleep 61", background=True)
        assert (status.cause, status.result and status.result.ok) == ("self", True)
        assert [(process.command, process.call) for process in await space.processes()] == [("sleep 61", "c")]

    asyncio.run(main())


def test_files_are_written_edited_read_listed_and_searched(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        base = (await space.capture(None)).image

        async def do(key: str, op: Write | Edit | Read | List | Search) -> str:
            await space.start(key, op, base=base)
            result = (await space.wait(key)).result
            assert result is not None
            assert result.ok, result.text
            return result.text

        await do("l:1:1", Write("a/b.txt", "one\ntwo\n"))
        await do("l:2:1", Edit("a/b.txt", (Replacement("two", "three"),)))
        assert (place.root / "a/b.txt").read_text() == "one\nthree\n"
        assert "three" in await do("l:3:1", Read("a/b.txt"))
        assert "a/" in await do("l:4:1", List())
        assert "a/b.txt" in await do("l:5:1", Search("thre+"))
        assert "nothing found" in await do("l:6:1", Search("four"))
        status = (await space.status({"l:2:1"}))["l:2:1"]
        assert status.capture is not None
        assert status.capture.changed == ("a", "a/b.txt")

    asyncio.run(main())


def test_a_tools_own_failure_is_an_outcome(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        await space.start("l:1:1", Read("nowhere"))
        status = await space.wait("l:1:1")
        assert status.cause == "self"
        assert status.result is not None
        assert not status.result.ok
        assert "nowhere" in status.result.text

    asyncio.run(main())


def test_calls_that_only_read_run_side_by_side(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        keys = [f"l:{n}:1" for n in range(8)]
        meet = "touch here.$n; until [ $(ls here.* | wc -l) = 8 ]; do sleep 0.02; done"
        await asyncio.gather(
            *(run(space, key, meet, mutating=False, env={"n": str(n)}, timeout_s=15) for n, key in enumerate(keys))
        )
        assert {status.cause for status in (await space.status(set(keys))).values()} == {"self"}

    asyncio.run(main())


def test_a_settled_operation_stays_known_and_gives_its_bulk_back(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        base = (await space.capture(None)).image
        status = await run(space, "l:c:1", "echo hello", base)
        assert status.capture is not None
        outputs = place.folder / "outputs"
        assert len(list(outputs.iterdir())) == 1
        await space.settle(status.capture.image)
        assert b"".join([piece async for piece in space.output("l:c:1")]) == b"hello\n"
        await space.settle(status.capture.image)
        assert list(outputs.iterdir()) == []
        again = (await space.status({"l:c:1"}))["l:c:1"]
        assert (again.state, again.cause, again.capture) == ("ended", "self", None)

    asyncio.run(main())


def test_nothing_of_a_command_reaches_its_standard_input_or_other_descriptors(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        status = await run(space, "l:c:1", "cat; ls /proc/self/fd | tr '\\n' ' '; grep -c SigBlk:.*[1-9a-f] /proc/self/status")
        assert status.result is not None
        assert status.result.text == "0 1 2 3 0\n"

    asyncio.run(main())


def test_a_supervisor_with_nothing_to_do_leaves(place: Place) -> None:
    place.spaces = type(place.spaces)(place.home, idle_s=0.1)

    async def main() -> None:
        space = await place.open()
        await run(space, "l:c:1", "echo done")
        await space.close()
        async with asyncio.timeout(20):
            await space.watch_death()

    asyncio.run(main())
    until(lambda: not list(place.folder.glob("s-*")))
    assert (place.folder / "workspace" / "index").exists()


def test_a_supervisor_stays_for_what_it_keeps_alive(place: Place) -> None:
    place.spaces = type(place.spaces)(place.home, idle_s=0.1)

    async def main() -> None:
        space = await place.open()
        await run(space, "l:c:1", "exec sleep 1.5", background=True)
        await space.close()
        async with asyncio.timeout(20):
            await space.watch_death()
        assert place.running("l:c:1") == []

    asyncio.run(main())
