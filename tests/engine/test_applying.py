"""`apply`: what a session changed in its copy comes home, three-way, and nothing that anybody wrote is overwritten."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import perdure
from perdure.record import records as r
from perdure.record.errors import RootRefusedError, SessionBusyError, UsageError
from perdure.space.directory import Directory, entry_of
from tests.engine.test_copies import tree
from tests.stage import Turns, bash, home_at, play, turn, write_script

LINES = [f"line {i}\n" for i in range(10)]


class Desk:
    """A session in a copy of `root`, whose work is a shell script a turn."""

    def __init__(self, home: perdure.Opened, session: perdure.Session, root: Path, copy: Path) -> None:
        self.home, self.session, self.root, self.copy = home, session, root, copy


@asynccontextmanager
async def desk(folder: Path, *scripts: str, name: str = "s", files: dict[str, str] | None = None) -> AsyncIterator[Desk]:
    root = folder / "project"
    root.mkdir(exist_ok=True)
    for path, text in ({"a.txt": "".join(LINES)} if files is None else files).items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    turns: Turns = [each for script in scripts for each in (turn("", bash(script)), "done")]
    async with home_at(folder / "home") as home:
        s = await home.session(name, directory=root, model=write_script(folder / f"{name}.json", *turns), copy=True)
        yield Desk(home, s, root, Path(await s.directory()))


def changed(*at: tuple[int, str]) -> str:
    lines = list(LINES)
    for i, text in at:
        lines[i] = text + "\n"
    return "".join(lines)


def test_what_only_the_session_changed_comes_home(tmp_path: Path) -> None:
    script = (
        "sed -i 's/line 1/there/' a.txt; rm gone; mkdir -p new/deep; echo x > new/deep/x; chmod 755 mode; ln -s a.txt link;"
        "rm -r old; rm tofile; mkdir tofile; echo in > tofile/in; rm -r todir; echo now > todir; head -c 3000000 /dev/zero > zeros"
    )
    files = {"a.txt": "".join(LINES), "gone": "g", "mode": "m", "old/f": "f", "old/g/h": "h", "tofile": "t", "todir/x": "x"}

    async def story() -> None:
        async with desk(tmp_path, script, files=files) as it:
            await it.session.run("go")
            shown = await it.session.apply(dry_run=True)
            assert (it.root / "gone").exists()
            applied = await it.session.apply()
            assert applied.conflicts == () and applied.record is not None
            assert (applied.paths, applied.removed) == (shown.paths, shown.removed)
            assert tree(it.root) == tree(it.copy)
            again = await it.session.apply()
            assert (again.paths, again.removed, again.already, again.record) == ((), (), 0, None)
            assert not list(tmp_path.glob("home/copies/s/applying*"))

    play(story())


def test_changes_apart_are_merged_and_both_sides_are_there(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk(tmp_path, "sed -i 's/line 8/there/' a.txt", "sed -i 's/line 5/more/' a.txt") as it:
            await it.session.run("go")
            (it.root / "a.txt").write_text(changed((1, "here")))
            applied = await it.session.apply()
            assert (applied.merged, applied.conflicts) == (("a.txt",), ())
            assert (it.root / "a.txt").read_text() == changed((1, "here"), (8, "there"))
            await it.session.run("more")
            (it.root / "a.txt").write_text(changed((1, "here"), (8, "mine again")))
            applied = await it.session.apply()  # line 8 was applied before, so it is no change of the session any more
            assert applied.conflicts == ()
            assert (it.root / "a.txt").read_text() == changed((1, "here"), (5, "more"), (8, "mine again"))

    play(story())


CONFLICTS = {
    "both changed": ("sed -i 's/line 3/there/' a.txt", "changed there and here, at line 4 here"),
    "removed there": ("rm a.txt", "removed there, changed here"),
    "another kind": ("rm a.txt; ln -s b a.txt", "changed there and here"),
    "binary": ("printf 'a\\0b' > a.txt", "changed there and here"),
}


@pytest.mark.parametrize("how", CONFLICTS)
def test_a_conflict_leaves_the_file_as_it_is_until_somebody_chooses(tmp_path: Path, how: str) -> None:
    script, why = CONFLICTS[how]

    async def story() -> None:
        async with desk(tmp_path, f"{script}; echo fine > b.txt") as it:
            await it.session.run("go")
            (it.root / "a.txt").write_text(changed((3, "here")))
            for brought in (("b.txt",), ()):
                applied = await it.session.apply()
                assert applied.paths == brought
                (conflict,) = applied.conflicts
                assert (conflict.path, conflict.why) == ("a.txt", why)
                assert conflict.theirs == (None if how == "removed there" else str(it.copy / "a.txt"))
                assert (it.root / "a.txt").read_text() == changed((3, "here"))
            applied = await it.session.apply(theirs=["a.txt"])
            assert applied.conflicts == ()
            assert tree(it.root) == tree(it.copy)

    play(story())


def test_ours_settles_a_conflict_for_good(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk(tmp_path, "sed -i 's/line 3/there/' a.txt", "sed -i 's/line 8/later/' a.txt") as it:
            await it.session.run("go")
            (it.root / "a.txt").write_text(changed((3, "here")))
            assert (await it.session.apply(ours=["a.txt"])).conflicts == ()
            assert (await it.session.apply()).conflicts == ()
            await it.session.run("more")
            assert (await it.session.apply()).conflicts == ()
            assert (it.root / "a.txt").read_text() == changed((3, "here"), (8, "later"))

    play(story())


def test_what_is_in_the_way_stays(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk(tmp_path, "mkdir d e; echo 1 > d/x; echo 2 > e/y; rm -r old; echo new > n") as it:
            (it.root / "old").mkdir()
        async with desk(
            tmp_path, "mkdir d e; echo 1 > d/x; echo 2 > e/y; rm -r old; echo new > n", name="t", files={"old/f": "f"}
        ) as it:
            await it.session.run("go")
            (it.root / "d").write_text("my file")
            (tmp_path / "outside").mkdir()
            (it.root / "e").symlink_to(tmp_path / "outside")
            (it.root / "old" / "mine").write_text("kept")
            (it.root / "n").write_text("mine")
            applied = await it.session.apply()
            assert {conflict.path for conflict in applied.conflicts} == {"d", "d/x", "e", "e/y", "n"}
            assert (applied.paths, applied.removed) == ((), ("old/f",))
            assert (it.root / "d").read_text() == "my file"
            assert (it.root / "old" / "mine").read_text() == "kept"
            assert list((tmp_path / "outside").iterdir()) == []

    play(story())


def test_only_brings_what_is_named_and_the_rest_later(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk(tmp_path, "mkdir d; echo 1 > d/x; echo 2 > d/y; echo 3 > z") as it:
            await it.session.run("go")
            assert (await it.session.apply(only=["d/x"])).paths == ("d/x",)
            assert sorted(tree(it.root)) == ["a.txt", "d", "d/x"]
            assert (await it.session.apply(only=["./d/"])).paths == ("d/y",)
            assert (await it.session.apply()).paths == ("z",)
            with pytest.raises(UsageError, match="no change at 'nowhere'"):
                await it.session.apply(only=["nowhere"])
            with pytest.raises(UsageError, match="not below the directory"):
                await it.session.apply(only=["../x"])

    play(story())


def test_gits_files_are_left_out_and_commits_are_told(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "project").mkdir()
        subprocess.run(["git", "init", "-q"], cwd=tmp_path / "project", check=True)
        async with desk(tmp_path, "git add .; git -c user.name=a -c user.email=a@b commit -qm x") as it:
            before = tree(it.root)
            await it.session.run("go")
            applied = await it.session.apply()
            assert (applied.paths, applied.conflicts, applied.fetch) == ((), (), str(it.copy))
            assert tree(it.root) == before
            subprocess.run(["git", "fetch", "-q", str(it.copy), "HEAD"], cwd=it.root, check=True)

    play(story())


def test_a_session_at_work_in_the_directory_is_named(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk(tmp_path, "echo new > b.txt") as it:
            await it.session.run("go")
            other = await it.home.session(
                "w", directory=it.root, model=write_script(tmp_path / "w.json", turn("", bash("touch on; sleep 60")))
            )
            working = asyncio.create_task(other.run("go"))
            while not (it.root / "on").exists():
                await asyncio.sleep(0.01)
            with pytest.raises(RootRefusedError, match="session w"):
                await it.session.apply()
            await other.abort()
            await working
            assert (await it.session.apply()).paths == ("b.txt",)

    play(story())


def test_what_never_came_home_is_not_removed(tmp_path: Path) -> None:
    async def story() -> None:
        async with desk(tmp_path, "echo new > b.txt") as it:
            await it.session.run("go")
            with pytest.raises(SessionBusyError, match=r"not applied \(b.txt\)"):
                await it.home.remove("s")
            await it.session.apply()
            await it.home.remove("s")
            assert (it.root / "b.txt").exists()

    play(story())


def test_in_place_there_is_nothing_to_bring_but_to_another_directory(tmp_path: Path) -> None:
    async def story() -> None:
        root, other = tmp_path / "project", tmp_path / "other"
        for path in (root, other):
            path.mkdir()
            (path / "a.txt").write_text("one\n")
        async with home_at(tmp_path / "home") as home:
            s = await home.session(
                "s", directory=root, model=write_script(tmp_path / "s.json", turn("", bash("echo 2 > a.txt")), "done")
            )
            await s.run("go")
            for where in (None, root):
                with pytest.raises(UsageError, match="there already"):
                    await s.apply(where)
            assert (await s.apply(other)).paths == ("a.txt",)
            assert (other / "a.txt").read_text() == "2\n"

    play(story())


# ---- kills -----------------------------------------------------------------------------------------------------------------

WORK = (
    "sed -i 's/line 8/there/' a.txt; sed -i 's/line 3/clash/' b.txt; rm gone; mkdir d; echo x > d/x; rm tofile; mkdir tofile; echo in > tofile/in;"
    "rm -r todir; echo now > todir"
)
FILES = {"a.txt": "".join(LINES), "b.txt": "".join(LINES), "gone": "g", "tofile": "t", "todir/x": "x"}


def apply_killed(folder: Path, at: str, session: str = "s") -> int:
    environment = {**os.environ, "PERDURE_HOME": str(folder / "home"), "PERDURE_STEPS": f"driver:{at}:kill:{folder}/steps"}
    (folder / "steps.fired").unlink(missing_ok=True)
    command = [sys.executable, "-m", "perdure.cli.main", "apply", session]
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, timeout=60).returncode


AT = [
    "apply.noted@1",
    "apply.put@1",
    "apply.put@3",
    *(f"apply.change@{n}" for n in range(1, 9)),
    "apply.synced@1",
    "apply.recorded@1",
]


@pytest.mark.crash
@pytest.mark.parametrize("at", AT)
def test_killed_anywhere_the_next_apply_finishes_it(tmp_path: Path, at: str) -> None:
    async def story() -> None:
        async with desk(tmp_path, WORK, files=FILES) as it:
            await it.session.run("go")
            (it.root / "a.txt").write_text(changed((1, "here")))
            (it.root / "b.txt").write_text(changed((3, "mine")))
            killed = await asyncio.to_thread(apply_killed, tmp_path, at)
            assert killed == -signal.SIGKILL
            (it.root / "mine").write_text("made meanwhile")
            applied = await it.session.apply()
            assert [conflict.path for conflict in applied.conflicts] == ["b.txt"]
            want = tree(it.copy)
            want["a.txt"] = (want["a.txt"][0], changed((1, "here"), (8, "there")).encode())
            want["b.txt"] = (want["b.txt"][0], changed((3, "mine")).encode())
            want["mine"] = (want["b.txt"][0], b"made meanwhile")
            assert tree(it.root) == want
            records = [stored.body async for stored in it.session.records() if isinstance(stored.body, r.Applied)]
            assert 1 <= len(records) <= 2

    play(story())


# ---- at random -------------------------------------------------------------------------------------------------------------

AGENTS = 3
NAMES = ["a", "b", "d/c", "d/e"]


def edits(rng: random.Random, who: str) -> tuple[str, str]:
    """A shell script that changes some files, each line of it told apart by who wrote it; and the same for a person."""
    parts = []
    for n in range(rng.randrange(1, 6)):
        name, line = rng.choice([*NAMES, f"new{rng.randrange(2)}"]), rng.randrange(1, 30)
        match rng.randrange(6):
            case 0:
                parts.append(f"rm -f {name}")
            case 1:
                parts.append(f"mkdir -p d; echo {who}.{n} >> {name}")
            case 2:
                parts.append(f"[ ! -f {name} ] || sed -i '{line}a {who}.{n}' {name}")
            case _:
                parts.append(f"[ ! -f {name} ] || sed -i '{line}s/.*/{who}.{n}/' {name}")
    return "; ".join(parts) + "; true", who


def written(root: Path, who: str) -> set[tuple[str, str]]:
    """(path, line) of all lines that somebody wrote and that are there."""
    found = set()
    for path in root.rglob("*"):
        if path.is_file():
            relative = str(path.relative_to(root))
            found |= {(relative, line) for line in path.read_text().splitlines() if line.startswith(f"{who}.")}
    return found


@pytest.mark.crash
@pytest.mark.parametrize("seed", range(int(os.environ.get("PERDURE_APPLY_SEEDS", "6"))))
def test_three_agents_and_a_person_lose_nothing(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    root = tmp_path / "project"
    (root / "d").mkdir(parents=True)
    for name in NAMES:
        (root / name).write_text("".join(f"{name} {i}\n" for i in range(30)))
    agents = [f"agent{i}" for i in range(AGENTS)]

    def person(n: int) -> set[tuple[str, str]]:
        subprocess.run(["sh", "-c", edits(rng, f"person{n}")[0]], cwd=root, check=True)
        return written(root, f"person{n}")

    async def story() -> None:
        async with home_at(tmp_path / "home") as home:
            sessions = []
            for name in agents:
                script = write_script(tmp_path / f"{name}.json", turn("", bash(edits(rng, name)[0])), "done")
                sessions.append(await home.session(name, directory=root, model=script, copy=True))
            mine = person(0)
            await asyncio.gather(*(s.run("go") for s in sessions))
            mine |= person(1)
            mine = {each for each in mine if each in written(root, "person0") | written(root, "person1")}
            agreed: set[tuple[str, str]] = set()
            rng.shuffle(sessions)
            for s in sessions:
                before = tree(root)
                while (
                    rng.randrange(2)
                    and await asyncio.to_thread(
                        apply_killed, tmp_path, f"apply.{rng.choice(['noted@1', 'change@1', 'change@2', 'synced@1'])}", s.id
                    )
                    == -signal.SIGKILL
                ):
                    pass
                applied = await s.apply()
                conflicts = {conflict.path for conflict in applied.conflicts}
                assert {path: before[path] for path in conflicts & before.keys()} == {
                    path: now for path, now in tree(root).items() if path in conflicts & before.keys()
                }
                agreed |= {each for each in written(Path(await s.directory()), s.id) if each[0] not in conflicts}
                here = {each for name in ("person0", "person1", *agents) for each in written(root, name)}
                assert agreed | mine <= here, f"seed {seed}: lost {sorted((agreed | mine) - here)}"

    play(story())


def test_what_somebody_saved_at_the_instant_of_a_kill_gets_its_place_back(tmp_path: Path) -> None:
    """Between the exchange and the look at what came out of it."""
    ours, theirs, saved = b"as it was seen", b"the session's", b"saved just then"
    for beside, there in ((saved, saved), (ours, theirs), (theirs, theirs)):
        (tmp_path / "a").write_bytes(theirs)
        (tmp_path / "t").write_bytes(beside)
        for name in ("a", "t"):
            (tmp_path / name).chmod(0o644)
        with Directory(tmp_path) as here:
            here.tidy("a", "t", entry_of(ours, 0o644), landed=True)
        assert ((tmp_path / "a").read_bytes(), (tmp_path / "t").exists()) == (there, False)
