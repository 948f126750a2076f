"""Collection: what a record names stays, what none names goes, whoever works or dies meanwhile."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import subprocess
import sys
import typing
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

import perdure
from perdure.engine import collecting
from perdure.engine.home import Home
from perdure.log.conformance import digest
from perdure.record import records as r
from perdure.record.errors import CorruptLogError
from perdure.record.parts import Blob, Digest
from perdure.space import content, image
from perdure.spaced.tree import DIRECTORY, TIMES_LEAF, TREE_LEAF, chunk_payload, decode_payload, directory_payload
from perdure.spaced.trie import encode_directory
from tests.stage import bash, call, home_at, play, stage, turn, write_script

ROOT = Path(__file__).parents[2]
BUSY = (
    turn("", bash("mkdir -p d && head -c 3000000 /dev/urandom > d/big && seq 200 > d/small && seq 30000")),
    turn("", bash("head -c 90000 /dev/urandom > d/middle; for n in $(seq 600); do echo $n > d/many-$n; done")),
    turn("", bash("rm d/big d/many-*; head -c 1500000 /dev/zero > holes; echo x >> holes")),
    turn("", call("write", path="kept.txt", content="kept")),
    "done",
)


async def whole(home: Home) -> int:
    """Reads everything that every record of every session names, in another way than a collection does; how many bytes."""
    source, total = home.store.blobs.get, 0
    for row in await home.store.rows():
        async for stored in home.store.read(row.session):
            for named in named_in(stored.body):
                if isinstance(named, Blob):
                    total += len(await content.load(named.digest, named.size_bytes, source))
                    continue
                for root in filter(None, (named.tree, named.git)):
                    async for _, entry in image.walk(root, source):
                        total += 0 if entry.kind == DIRECTORY else len(await image.content(entry, source))
                await times(named.times, source)
    return total


async def times(root: Digest, source: typing.Any) -> None:
    level = [bytes.fromhex(root)]
    while level:
        nodes = await image.directories(level, source)
        entries = [decode_payload(payload, times=True) for node in nodes.values() for payload in node.values()]
        level = [entry.digest for entry in entries if entry.kind == DIRECTORY]


def named_in(body: r.Body) -> list[r.Image | Blob]:
    match body:
        case r.WorkspaceChanged(image=found):
            return [found]
        case r.CallStarted(base=base):
            return [base] if base else []
        case r.CallFinished(image=found, result=result):
            return [each for each in (found, result.blob, result.output) if each]
        case r.SpaceRestored(from_image=before, to_image=after):
            return [before, after]
    return []


async def litter(opened: perdure.Opened, count: int = 3) -> list[Digest]:
    """Chunks of both sizes that nothing names, as a driver leaves them that died before its commit."""
    pieces = [random.Random(n).randbytes(50_000 + 40_000 * (n % 2)) for n in range(count)]
    await opened.home.store.blobs.put([(digest(piece), piece) for piece in pieces], pin="dead", ttl_s=0)
    return [digest(piece) for piece in pieces]


def test_what_records_name_stays_and_nothing_else(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, *BUSY, name="one") as it:
            subprocess.run(["git", "init", "-q", str(it.root)], check=True)
            (it.root / "mine").write_bytes(random.Random(7).randbytes(200_000))
            await it.run("go")
            everything = await whole(it.home)
            loose = await litter(it.opened)
            would = await it.opened.collect(dry_run=True)
            assert would.chunks == 3 and len(await it.home.store.blobs.has(loose)) == 3
            done = await it.opened.collect()
            assert (done.chunks, done.bytes) == (would.chunks, would.bytes)
            assert await it.home.store.blobs.has(loose) == set()
            assert await whole(it.home) == everything > 5_000_000
            assert (await it.opened.collect()).chunks == 0

    play(story())


def test_a_salvage_is_kept(tmp_path: Path) -> None:
    async def story() -> None:
        async with home_at(tmp_path / "home") as opened:
            store = opened.home.store
            root = tmp_path / "w"
            root.mkdir()
            session = await opened.session("s", directory=root, model=write_script(tmp_path / "s.json", "hello"))
            grant, _ = await store.acquire("s", opened.home.owner, expected=0)
            nodes = {}
            data = random.Random(1).randbytes(60_000)
            top = encode_directory(
                TREE_LEAF,
                [(b"lost", chunk_payload(0o644, len(data), bytes.fromhex(digest(data))))],
                lambda d, n: nodes.update({d.hex(): n}),
            ).hex()
            blobs = {**nodes, digest(data): data}
            recovered = r.Recovered("undo_interrupt", "lost", call="main.1.0", salvage=top)
            await store.commit(grant, "c", [r.Draft(recovered, "main")], blobs=blobs)
            await litter(opened)
            assert (await opened.collect()).chunks == 3
            assert await image.read(top, "lost", store.blobs.get) == data
            assert session.id == "s"

    play(story())


def test_a_node_that_was_met_as_content_first_is_walked_all_the_same(tmp_path: Path) -> None:
    """A file of another session may hold the very bytes of a node."""

    async def story() -> None:
        nodes: dict[str, bytes] = {}

        def keep(name: bytes, node: bytes) -> None:
            nodes[name.hex()] = node

        data = b"below"
        inner = encode_directory(TREE_LEAF, [(b"f", chunk_payload(0o644, 5, bytes.fromhex(digest(data))))], keep)
        copy = chunk_payload(0o644, len(nodes[inner.hex()]), inner)
        outer = encode_directory(TREE_LEAF, [(b"a-copy", copy)], keep)
        top = encode_directory(TREE_LEAF, [(b"d", directory_payload(0o755, inner))], keep)
        async with home_at(tmp_path / "home") as opened:
            store, model = opened.home.store, write_script(tmp_path / "s.json", "hello")
            empty = encode_directory(TIMES_LEAF, [], keep)
            for name, root in (("a", outer), ("b", top)):
                (tmp_path / name).mkdir()
                await opened.session(name, directory=tmp_path / name, model=model)
                grant, _ = await store.acquire(name, opened.home.owner, expected=0)
                changed = r.WorkspaceChanged(r.Image(root.hex(), empty.hex(), 1))
                await store.commit(grant, "c", [r.Draft(changed)], blobs={**nodes, digest(data): data})
            assert (await opened.collect()).chunks == 0
            assert await image.read(top.hex(), "d/f", store.blobs.get) == data

    play(story())


def test_every_digest_in_the_vocabulary_is_marked_or_known_to_name_no_chunk() -> None:
    """A new kind of record must say which."""
    marked = {("Image", "tree"), ("Image", "times"), ("Image", "git"), ("Recovered", "salvage"), ("SpaceRestored", "salvage")}
    no_chunk = {
        ("SessionCreated", "tools_digest"),
        ("Applied", "target"),
        ("CallStarted", "exclude_digest"),
        ("CallFinished", "seen"),
        ("ApprovalRequested", "digest"),
        ("ApprovalAnswered", "digest"),
    }
    found = set()
    for name, kind in vars(r).items():
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            found |= {(name, field) for field, spelled in kind.__annotations__.items() if "Digest" in str(spelled)}
    assert found - {("Blob", "digest")} == marked | no_chunk


def test_nothing_is_collected_where_a_node_is_missing(tmp_path: Path) -> None:
    async def story() -> None:
        async with stage(tmp_path, *BUSY[:1], "done", name="one") as it:
            await it.run("go")
            loose = await litter(it.opened)
            found = (await it.session.state()).workspace.image
            assert found is not None
            await it.home.store._log.write(
                lambda c: c.execute("DELETE FROM chunk WHERE digest = ?", (bytes.fromhex(found.tree),))
            )
            with pytest.raises(CorruptLogError, match="session one"):
                await it.opened.collect()
            assert len(await it.home.store.blobs.has(loose)) == 3
            await it.opened.remove("one")
            assert (await it.opened.collect()).chunks > 3

    play(story())


def test_marks_take_no_memory_to_speak_of() -> None:
    """Half a million digests below 64 MiB more; the set of them would be above."""
    script = (
        "import asyncio, hashlib, resource\n"
        "from perdure.engine.marking import Marks\n"
        "async def run():\n"
        "    async with Marks() as marks:\n"
        "        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "        for start in range(0, 500_000, 5000):\n"
        "            await marks.add([hashlib.sha256(b'%d' % n).hexdigest() for n in range(start, start + 5000)])\n"
        "        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
        "asyncio.run(run())\n"
    )
    grown_kb = int(subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout)
    assert grown_kb < 40 << 10


def test_chunks_that_went_before_their_commit_are_sent_again(tmp_path: Path) -> None:
    """They were there when the driver looked, as litter of another one, and a collection was faster than its commit."""

    async def story() -> None:
        text = "the same line again\n" * 3000
        async with stage(tmp_path, turn("", call("write", path="f", content=text)), "done") as it, home_at(it.home.path) as other:
            name = digest(text.encode())
            await it.home.store.blobs.put([(name, text.encode())], pin="dead", ttl_s=0)
            commit, collected = it.home.store.commit, []

            async def slow_commit(*given: typing.Any, **more: typing.Any) -> typing.Any:
                if name in more["names"] and not collected:
                    collected.append(await other.collect())
                return await commit(*given, **more)

            it.home.store.commit = slow_commit  # type: ignore[method-assign]
            assert (await it.run("go")).outcome == "answered"
            assert [each.chunks for each in collected] == [1]
            assert await it.home.store.blobs.get([name]) == {name: text.encode()}
            assert (await it.opened.collect()).chunks == 0
            await whole(it.home)

    play(story())


@pytest.mark.crash
def test_a_session_works_on_while_another_process_collects(tmp_path: Path) -> None:
    """Its chunks are sent again where they went before their commit; contents come and go and come back."""

    async def story() -> None:
        rounds = [turn("", bash(f"seq {n % 3} 20000 > same; head -c 200000 /dev/urandom > new; seq 5000")) for n in range(12)]
        async with stage(tmp_path, *rounds, "done", name="one") as it:
            code = "import asyncio, sys, perdure\n" + (
                "async def run():\n"
                "    async with perdure.open(sys.argv[1]) as home:\n"
                "        while True:\n"
                "            await home.collect()\n"
                "            print('collected', flush=True)\n"
                "asyncio.run(run())\n"
            )
            collector = subprocess.Popen([sys.executable, "-c", code, str(it.home.path)], stdout=subprocess.PIPE, text=True)
            try:
                assert collector.stdout is not None and collector.stdout.readline() == "collected\n"
                answer = await it.run("go")
                assert answer.outcome == "answered"
            finally:
                collector.kill()
                told, _ = collector.communicate()
            assert told.count("collected") > 3
            await whole(it.home)
            assert {body.outcome for body in (await it.finished()).values()} == {"ok"}

    play(story())


@pytest.mark.crash
def test_a_collection_that_is_killed_at_any_write_loses_nothing(tmp_path: Path) -> None:
    async def prepare() -> int:
        async with stage(tmp_path, *BUSY, name="one") as it:
            await it.run("go")
            root = tmp_path / "other"
            root.mkdir()
            other = await it.opened.session("two", directory=root, model=write_script(tmp_path / "two.json", *BUSY))
            await other.run("go")
            await it.opened.remove("two")
            await litter(it.opened)
            return await whole(it.home)

    async def finish(home: Path) -> int:
        async with home_at(home) as opened:
            total = await whole(opened.home)
            assert [row.session for row in await opened.home.store.rows()] == ["one"]
            return total

    async def at_last(home: Path) -> None:
        async with home_at(home) as opened:
            await opened.collect()
            assert (await opened.collect()).chunks == 0
            assert await whole(opened.home) == everything
            assert await opened.home.store._log.read(lambda c: c.execute("SELECT count(*) FROM spared").get) == 0

    everything, deaths = play(prepare()), 0
    for kind, at in [("write", n) for n in range(1, 120, 14)] + [("sync", n) for n in range(1, 14, 2)]:
        home = tmp_path / f"{kind}-{at}"
        home.mkdir()
        for name in ("log.db", "chunks.db", "live.db", "home.lock"):
            shutil.copy(tmp_path / "home" / name, home)
        died = subprocess.run([sys.executable, "-m", __name__, str(home), kind, str(at)], cwd=ROOT, check=False).returncode
        assert died in (0, -signal.SIGKILL)
        deaths += died != 0
        assert play(finish(home)) == everything
        play(at_last(home))
        shutil.rmtree(home)
    assert deaths > 10


@asynccontextmanager
async def _dying(home: Path, kind: str, at: int) -> AsyncIterator[Home]:
    """A home whose process gets SIGKILL before its n-th write or sync."""
    import time

    from perdure.log.faults import Disk
    from perdure.log.live import LiveText
    from perdure.log.sqlite import SqliteStore

    disk, left = Disk("dying"), at
    store = await SqliteStore.open(home, vfs=disk.name)

    def fail(what: str, file: str) -> None:
        nonlocal left
        left -= what == kind
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    opened = Home(home, store, await LiveText.open(home), os.environ, time.time)
    disk.fail = fail
    try:
        yield opened
    finally:
        await opened.close()


async def _die(home: str, kind: str, at: str) -> None:
    async with _dying(Path(home), kind, int(at)) as opened:
        await collecting.collect(opened)


if __name__ == "__main__":
    asyncio.run(_die(*sys.argv[1:4]))
