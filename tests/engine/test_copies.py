"""A session in a copy: made whole or not at all, alone from then on, made again where it got lost, gone with its session."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.engine import copies
from perdure.record import records as r
from perdure.record.errors import UsageError
from perdure.space.copying import Cancelled, copy
from tests.stage import bash, call, home_at, play, turn, write_script

ROOT = Path(__file__).parents[2]


def tree(root: Path) -> dict[str, tuple[int, bytes | str]]:
    found: dict[str, tuple[int, bytes | str]] = {}
    for at, names, files in os.walk(root):
        for path in (Path(at, name) for name in (*names, *files)):
            mode = path.lstat().st_mode
            what = str(path.readlink()) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
            found[str(path.relative_to(root))] = (mode, what)
    return found


def repository(root: Path) -> Path:
    root.mkdir()
    (root / "a.txt").write_text("one\n")
    for command in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")):
        subprocess.run(["git", *command], cwd=root, check=True)
    return root


def test_a_copy_holds_every_kind_of_file_as_it_is(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "sub" / "deep" / "x").write_bytes(os.urandom(3 << 20))
    (root / "run").write_text("#!/bin/sh\n")
    (root / "run").chmod(0o755)
    os.link(root / "run", root / "sub" / "again")
    (root / "to").symlink_to("/nowhere")
    (root / "inside").symlink_to("sub")
    os.utime(root / "run", ns=(1, 2_000_000_001))
    (root / "locked").mkdir()
    (root / "locked" / "z").write_text("z")
    (root / "locked").chmod(0o500)
    with open(root / "sparse", "wb") as file:
        file.truncate(64 << 20)
        file.seek(40 << 20)
        file.write(b"end")
    copied = copy(root, tmp_path / "copy")
    assert tree(tmp_path / "copy") == tree(root)
    assert (tmp_path / "copy" / "run").stat().st_mtime_ns == 2_000_000_001
    assert (tmp_path / "copy" / "run").stat().st_ino == (tmp_path / "copy" / "sub" / "again").stat().st_ino
    assert (tmp_path / "copy" / "run").stat().st_ino != (root / "run").stat().st_ino
    assert (tmp_path / "copy" / "sparse").stat().st_blocks < 1000
    assert (copied.files, copied.left_out) == (4, ())


def test_what_is_no_file_is_left_out_and_told(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(root / "sock"))
        copied = copy(root, tmp_path / "copy")
    assert list((tmp_path / "copy").iterdir()) == []
    assert sorted(line.split()[0] for line in copied.left_out) == ["pipe", "sock"]


def test_gits_locks_and_worktrees_stay_where_they_are(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    subprocess.run(["git", "worktree", "add", "-q", "../other"], cwd=root, check=True)
    (root / ".git" / "index.lock").write_text("")
    (root / "package.lock").write_text("mine")
    copy(root, tmp_path / "copy")
    assert not (tmp_path / "copy" / ".git" / "index.lock").exists()
    assert (tmp_path / "copy" / "package.lock").exists()
    listed = subprocess.run(["git", "worktree", "list"], cwd=tmp_path / "copy", check=True, capture_output=True, text=True)
    assert len(listed.stdout.splitlines()) == 1


def test_a_linked_worktree_is_refused_with_the_repository_it_belongs_to(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    subprocess.run(["git", "worktree", "add", "-q", "../other"], cwd=root, check=True)

    async def story() -> None:
        async with home_at(tmp_path / "home") as home:
            with pytest.raises(UsageError, match=r"leads to a repository outside of the copy.*project/\.git/worktrees/other"):
                await home.session("s", directory=tmp_path / "other", model=write_script(tmp_path / "s.json"), copy=True)
            assert await home.sessions() == []
            assert list((tmp_path / "home" / "copies").iterdir()) == []

    play(story())


def test_a_repository_inside_that_is_named_relatively_comes_along(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    (root / "module").mkdir()
    (root / "module" / ".git").write_text("gitdir: ../.git/modules/module\n")
    copy(root, tmp_path / "copy")
    assert (tmp_path / "copy" / "module" / ".git").read_text() == "gitdir: ../.git/modules/module\n"


def test_who_is_cancelled_leaves_nothing(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    with pytest.raises(Cancelled):
        copy(root, tmp_path / "copy", cancelled=lambda: True)


def test_the_session_works_in_the_copy_and_the_directory_stays_as_it_is(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    before = tree(root)
    work = bash("echo two >> a.txt; git -c user.name=a -c user.email=a@b commit -qam y; pwd")

    async def story() -> None:
        async with home_at(tmp_path / "home") as home:
            s = await home.session(
                "s", directory=root, model=write_script(tmp_path / "s.json", turn("", work), "done"), copy=True
            )
            await s.run("go")
            copied = Path(await s.directory())
            assert copied == tmp_path / "home" / "copies" / "s" / "project"
            assert (copied / "a.txt").read_text() == "one\ntwo\n"
            assert tree(root) == before
            state = await s.state()
            assert state.workspace.space is not None and state.workspace.space.own_workspace
            assert state.workspace.image is not None and state.workspace.image.git is None
            await home.remove("s", force=True)
            assert list((tmp_path / "home" / "copies").iterdir()) == []
            assert tree(root) == before

    play(story())


@pytest.mark.parametrize("how", ["gone", "emptied", "another"])
def test_a_lost_copy_is_made_again_from_the_log(tmp_path: Path, how: str) -> None:
    root = repository(tmp_path / "project")
    turns = (turn("", call("write", path="b.txt", content="b\n"), bash("mkdir d; ln -s b.txt d/l; chmod 755 b.txt")), "done")

    async def story() -> None:
        async with home_at(tmp_path / "home") as home:
            model = write_script(tmp_path / "s.json", *turns, turn("", bash("cat b.txt a.txt")), "again")
            s = await home.session("s", directory=root, model=model, copy=True)
            await s.run("go")
            copied = Path(await s.directory())
            before = tree(copied)
            if how == "another":
                copied.rename(tmp_path / "moved")
                copied.mkdir()
                (copied / "mine").write_text("keep me")
            else:
                shutil.rmtree(copied)
            if how == "emptied":
                copied.mkdir()
            assert (await s.run("more")).text == "again"
            assert tree(copied) == before
            finished = [stored.body async for stored in s.records() if isinstance(stored.body, r.CallFinished)]
            assert finished[-1].result.text.startswith("b\none")
            restored = [stored.body async for stored in s.records() if isinstance(stored.body, r.SpaceRestored)]
            assert len(restored) == 1
            assert (restored[0].salvage is not None) == (how == "another")
            await s.run("once more, in the place that it has now")
            assert len([1 async for stored in s.records() if isinstance(stored.body, r.SpaceRestored)]) == 1

    play(story())


STEPS = ("copy.begin", "copy.complete", "copy.named")


@pytest.mark.crash
@pytest.mark.parametrize("at", STEPS)
def test_killed_while_it_is_made_it_is_made_anew(tmp_path: Path, at: str) -> None:
    root = repository(tmp_path / "project")
    model = write_script(tmp_path / "s.json", "done")
    environment = {**os.environ, "PERDURE_HOME": str(tmp_path / "home"), "PERDURE_STEPS": f"driver:{at}@1:kill:{tmp_path}/steps"}
    command = [sys.executable, "-m", "perdure.cli.main", "run", "--copy", "--session", "s", "--model", model, "go"]
    died = subprocess.run(command, cwd=root, env=environment, capture_output=True, timeout=60)
    assert died.returncode == -signal.SIGKILL
    again = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=60)
    assert again.returncode == 0, again.stderr
    assert [path.name for path in (tmp_path / "home" / "copies").iterdir()] == ["s"]
    assert tree(tmp_path / "home" / "copies" / "s" / "project") == tree(root)


def test_what_a_living_maker_holds_is_not_swept(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")

    async def story() -> None:
        async with home_at(tmp_path / "home") as home:
            store = home.home.store
            async with copies.made(home.home.path, store, "one", root) as workspace:
                await copies.sweep(home.home.path, store)
                assert (workspace / "a.txt").exists()
            assert not workspace.exists()  # no session was made in it

    play(story())


def test_many_at_once_on_one_directory(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")

    async def story() -> None:
        async with home_at(tmp_path / "home") as home:

            async def one(name: str) -> str:
                model = write_script(tmp_path / f"{name}.json", turn("", bash(f"sleep 0.2; echo {name} > {name}")), name)
                s = await home.session(name, directory=root, model=model, copy=True)
                return (await s.run("go")).text

            assert await asyncio.gather(*map(one, "abc")) == ["a", "b", "c"]
            assert sorted(path.name for path in root.iterdir()) == [".git", "a.txt"]
            origin = json.loads((tmp_path / "home" / "copies" / "a" / "origin.json").read_bytes())
            assert origin["directory"] == str(root)

    play(story())


def perdure(folder: Path, root: Path, *arguments: str, steps: str = "") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PERDURE_HOME": str(folder / "home"), **({"PERDURE_STEPS": steps} if steps else {})}
    command = [sys.executable, "-m", "perdure.cli.main", *arguments]
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.crash
@pytest.mark.parametrize("at", ["rebuild.begin", "rebuild.filled", "rebuild.end"])
def test_killed_while_a_lost_copy_is_made_again_it_is_made_again(tmp_path: Path, at: str) -> None:
    root = repository(tmp_path / "project")
    model = write_script(tmp_path / "s.json", turn("", bash("echo b > b.txt; mkdir d; echo c > d/c")), "done", "again")
    assert perdure(tmp_path, root, "run", "--copy", "--session", "s", "--model", model, "go").returncode == 0
    copied = tmp_path / "home" / "copies" / "s" / "project"
    before = tree(copied)
    shutil.rmtree(copied)
    died = perdure(tmp_path, root, "run", "--session", "s", "more", steps=f"driver:{at}@1:kill:{tmp_path}/steps")
    assert died.returncode == -signal.SIGKILL
    done = perdure(tmp_path, root, "resume", "s")
    assert done.returncode == 0, done.stderr
    assert tree(copied) == before
    assert perdure(tmp_path, root, "verify", "s").returncode == 0


@pytest.mark.crash
def test_a_call_cut_off_in_a_copy_is_undone_with_gits_files(tmp_path: Path) -> None:
    root = repository(tmp_path / "project")
    commit = "git -c user.name=a -c user.email=a@b commit -qam y"
    work = f"echo two >> a.txt; {commit}; touch {tmp_path}/on; sleep 60"
    model = write_script(tmp_path / "s.json", turn("", bash(work)), "done")
    before = tree(root)

    async def story() -> None:
        async with home_at(tmp_path / "home") as home:
            s = await home.session("s", directory=root, model=model, copy=True)
            running = asyncio.create_task(s.run("go"))
            while not (tmp_path / "on").exists():
                await asyncio.sleep(0.01)
            space = (await s.state()).workspace.space
            assert space is not None
            os.kill(space.init.pid, signal.SIGKILL)
            await running
            copied = Path(await s.directory())
            finished = [stored.body async for stored in s.records() if isinstance(stored.body, r.CallFinished)]
            assert [body.outcome for body in finished] == ["interrupted"]
            assert tree(copied) == before
            assert tree(root) == before

    play(story())
