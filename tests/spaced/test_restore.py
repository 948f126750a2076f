"""A restore makes the workspace as it was, can be killed anywhere, and never touches what is not the lost call's."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from perdure.spaced import salvage
from perdure.spaced.errors import FencedError, ProtocolError
from perdure.spaced.staging import Batch
from perdure.spaced.steps import ENVIRONMENT
from perdure.spaced.temporary import is_temporary
from perdure.spaced.tree import sha256
from tests.spaced.world import World, never, now_ns, window


def make(world: World) -> None:
    """One of everything."""
    world.put("src/one", "1")
    world.put("src/two", b"\x02" * 200_000)
    world.put("moved/deep/file", "deep")
    world.put("big", os.urandom(3 << 20))
    world.put("run.sh", "#!/bin/sh\n", 0o755)
    world.put("sparse", b"\0" * (2 << 20) + b"end")
    world.put("nothing", "")
    world.put(os.fsdecode(b"caf\xe9"), "not UTF-8")
    (world.root / "link").symlink_to("src/one")
    (world.root / "empty").mkdir(mode=0o750)
    os.link(world.root / "src/one", world.root / "hard")


def ravage(world: World) -> None:
    """One of everything that a call can do to it."""
    root = world.root
    world.put("src/one", "changed")
    (root / "src/two").unlink()
    (root / "moved").rename(root / "elsewhere")
    os.truncate(root / "big", 5)
    (root / "run.sh").chmod(0o600)
    with open(root / "sparse", "r+b") as file:
        file.write(b"start")
    os.utime(root / "nothing", ns=(1, 1))
    (root / os.fsdecode(b"caf\xe9")).write_text("other")
    (root / "link").unlink()
    (root / "link").mkdir()
    world.put("link/inside", "x")
    (root / "empty").rmdir()
    world.put("empty", "a file now")
    world.put("new/dirs/file", "stray")
    (root / "stray").symlink_to("nowhere")
    os.mkfifo(root / "new/fifo")


def test_everything_comes_back_with_modes_and_times(tmp_path: Path) -> None:
    world = World(tmp_path, own=True)
    make(world)
    base = world.commit()
    before = world.content()
    ravage(world)
    restored = world.undo()
    assert world.content() == before
    assert restored["capture"]["image"]["tree"] == base["tree"]
    assert restored["capture"]["image"]["times"] == base["times"]
    assert restored["plan"]["kept"] == []


def test_a_lost_workspace_is_made_anew(tmp_path: Path) -> None:
    world = World(tmp_path, own=True)
    make(world)
    world.commit()
    before = world.content()
    for path in world.root.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    world.undo()
    assert world.content() == before


def test_the_window_takes_back_the_same_and_a_second_plan_finds_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    make(world)
    world.commit()
    before = world.content()
    with window() as lost:
        ravage(world)
    world.undo(lost)
    assert world.content() == before
    assert world.plan(lost)["take_back"] == []


def test_salvage_holds_what_is_nowhere_else_and_nothing_that_is_known(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("kept", "content of the base")
    world.commit()
    with window() as lost:
        world.put("copy", "content of the base")
        world.put("a/new", "only here")
        world.put("b", "salvaged before")
    plan = world.plan(lost, {digest("salvaged before")})
    assert sorted(data for data in map(world.store.get, plan["chunks"]) if not data.startswith(b"P")) == [b"only here"]
    assert plan["salvage"] in plan["chunks"]


def digest(text: str) -> str:
    return sha256(text.encode()).hex()


def test_too_much_to_store_is_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salvage, "LARGEST_BYTES", 1000)
    world = World(tmp_path)
    world.put("modified", "base")
    world.commit()
    with window() as lost:
        world.put("dir/large", b"L" * 2000)
        world.put("modified", b"M" * 3000)
        world.put("small", "s")
    plan = world.plan(lost)
    assert plan["quarantine"] == ["dir/large", "modified"]
    world.restore(plan)
    aside = {path.name: path.read_bytes()[:1] for path in (world.state / "quarantine").rglob("*") if path.is_file()}
    assert aside == {"large": b"L", "modified": b"M"}
    assert set(world.content()) == {"modified"}
    assert world.content()["modified"][0] == b"base"


@pytest.mark.parametrize("when", ["at once", "at the end"])
def test_with_a_full_disk_everything_is_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    world = World(tmp_path)
    world.put("modified", "base")
    world.commit()
    with window() as lost:
        world.put("modified", "call")
        world.put("dir/new", "call")

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(Batch, "add" if when == "at once" else "finish", full)
    plan = world.plan(lost)
    assert (plan["quarantine"], plan["chunks"], plan.get("salvage")) == (["dir/new", "modified"], {}, None)
    monkeypatch.undo()
    world.restore(plan)
    assert sorted(path.name for path in (world.state / "quarantine").rglob("*") if path.is_file()) == ["modified", "new"]
    assert world.content()["modified"][0] == b"base"


def test_a_full_disk_fails_a_capture_and_never_makes_files_look_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.commit()
    world.put("new", "x")
    with monkeypatch.context() as patch:
        patch.setattr(Batch, "_append", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "no space left on device")))
        with pytest.raises(OSError, match="no space"):
            world.workspace.capture(world.base)
    assert world.workspace.capture(world.base)["changed"] == ["new"]


def test_a_file_too_large_to_hold_blocks_the_undo_of_the_call_that_changed_it(tmp_path: Path) -> None:
    world = World(tmp_path, max_file_bytes=1000)
    world.put("opaque", b"x" * 2000)
    world.put("other", "base")
    world.commit()
    with window() as lost:
        world.put("opaque", b"y" * 2000)
    assert "opaque" in world.plan(lost)["blocked"]
    with window() as lost:
        world.put("other", "call")
    assert "blocked" not in world.plan(lost)


def test_an_excluded_path_changed_by_the_call_blocks_its_undo(tmp_path: Path) -> None:
    world = World(tmp_path, exclude=("build/",))
    world.put("build/deep/thing", "1")
    world.put("build/thing", "1")
    world.commit()
    with window() as lost:
        world.put("other", "x")
    assert "blocked" not in world.plan(lost)
    with window() as lost:
        world.put("build/deep/thing", "2")
    assert "build" in world.plan(lost)["blocked"]


def test_a_path_that_changed_since_the_plan_is_kept(tmp_path: Path) -> None:
    world = World(tmp_path)
    for name in ("edited", "deleted", "restored"):
        world.put(name, "base")
    world.commit()
    with window() as lost:
        for name in ("edited", "restored", "stray"):
            world.put(name, "the call's")
        (world.root / "deleted").unlink()
    plan = world.plan(lost)
    world.put("edited", "a person's")
    world.put("stray", "a person's")
    world.put("deleted", "a person's")
    restored = world.restore(plan)
    assert {name: content for name, (content, *_) in world.content().items()} == {
        "edited": b"a person's",
        "stray": b"a person's",
        "deleted": b"a person's",
        "restored": b"base",
    }
    assert restored["plan"]["take_back"] == ["restored"]
    assert restored["plan"]["kept"] == ["deleted", "edited", "stray"]


def test_doubtful_paths_are_restored_when_a_person_says_so(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("notes", "base")
    world.commit()
    with window(proven=False) as lost:
        pass
    world.put("notes", "later")
    plan = world.plan(lost)
    world.restore(plan, also=("notes",))
    assert world.content()["notes"][0] == b"base"
    assert b"later" in world.store.values()


def test_an_unknown_plan_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("a", "base")
    world.commit()
    with pytest.raises(ProtocolError):
        world.restore({"take_back": ["a"]})


def test_a_restore_that_was_overtaken_changes_nothing_more(tmp_path: Path) -> None:
    world = World(tmp_path, own=True)
    make(world)
    world.commit()
    ravage(world)
    plan = world.plan()
    assert world.base is not None
    for allowed in range(6):
        looks = iter([False] * allowed)
        before = world.content()
        with pytest.raises(FencedError):
            world.restore(plan, cancelled=lambda looks=looks: next(looks, True))
        changed = before.items() ^ world.content().items()
        assert len({path for path, _ in changed}) <= allowed


def test_links_to_outside_are_neither_followed_nor_written_through(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("theirs")
    world = World(tmp_path)
    world.put("dir/file", "base")
    world.put("linked", "base")
    world.commit()
    with window() as lost:
        shutil.rmtree(world.root / "dir")
        (world.root / "dir").symlink_to(outside)
        (world.root / "linked").unlink()
        os.link(outside / "file", world.root / "linked")
    world.undo(lost)
    assert (outside / "file").read_text() == "theirs"
    assert not (world.root / "dir").is_symlink()
    assert world.content()["linked"][0] == b"base"


def test_directories_deeper_than_any_path_limit_come_back(tmp_path: Path) -> None:
    world = World(tmp_path, own=True)
    here = os.open(world.root, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d234567890", dir_fd=here)
        below = os.open("d234567890", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("bottom", os.O_WRONLY | os.O_CREAT, dir_fd=here))
    base = world.commit()
    assert world.workspace.capture(base)["entries"] == 1501
    os.unlink("bottom", dir_fd=here)
    restored = world.undo()
    os.close(here)
    subprocess.run(["rm", "-rf", world.root], check=True)  # shutil.rmtree, and with it pytest, would recurse too deep
    assert restored["plan"]["take_back_count"] == 1
    assert restored["capture"]["image"]["tree"] == base["tree"]


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="needs setpriv to become an ordinary user")
def test_read_only_directories_are_restored_by_their_owner() -> None:
    script = """
import os, sys; from pathlib import Path; from tests.spaced.world import World
world = World(Path(sys.argv[1]), own=True)
world.put("dir/file", "base"); world.put("dir/sub/file", "base")
(world.root / "dir/sub").chmod(0o555); (world.root / "dir").chmod(0o555)
world.commit(); before = world.content()
(world.root / "dir").chmod(0o755); (world.root / "dir/file").unlink(); world.put("dir/new", "x"); (world.root / "dir").chmod(0o555)
world.undo(); assert world.content() == before, world.content()
"""
    with tempfile.TemporaryDirectory() as home:
        command = [sys.executable, "-c", script, home]
        if os.geteuid() == 0:
            os.chown(home, 65534, 65534)
            command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *command]
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


def test_make_has_nothing_to_do_after_an_undo(tmp_path: Path) -> None:
    if not shutil.which("make"):
        pytest.skip("needs make")
    world = World(tmp_path)
    world.put("Makefile", "out: in\n\tcp in out\n\techo ran >> log\n")
    world.put("in", "source")
    build(world)
    assert world.content()["log"][0] == b"ran\n"
    world.commit()
    with window() as lost:
        world.put("in", "changed")
        build(world)
    assert world.content()["out"][0] == b"changed"
    world.undo(lost)
    assert "up to date" in build(world)
    world.put("in", "changed by a person")
    build(world)
    assert world.content()["out"][0] == b"changed by a person"


def build(world: World) -> str:
    return subprocess.run(["make"], cwd=world.root, check=True, capture_output=True, text=True).stdout


# ---- killed at every step --------------------------------------------------------------------------------------------------------

KILLED = """
import json, sys
from pathlib import Path
from perdure.spaced import steps
from tests.spaced.world import World, never
at, window = Path(sys.argv[1]), json.loads(sys.argv[2])
steps.listen("spaced")
world = World(at, own=window is None)
world.base = json.loads((at / "base").read_text())
world.store = {path.name: path.read_bytes() for path in (at / "store").iterdir()}
plan = world.plan(window)
world.restore(plan)
"""


def pattern(tmp_path: Path, *, own: bool) -> World:
    """A ravaged workspace with everything that another process needs to undo it."""
    (tmp_path / "pattern").mkdir()
    world = World(tmp_path / "pattern", own=own)
    make(world)
    world.put("dir/persons", "base")
    world.put("dir/calls", "base")
    world.commit()
    return world


def hand_over(world: World) -> Path:
    place = world.root.parent
    world.workspace.save()
    (place / "store").mkdir()
    for name, data in world.store.items():
        (place / "store" / name).write_bytes(data)
    (place / "base").write_text(json.dumps(world.base))
    return place


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize("offset", range(1, 6))
def test_a_restore_killed_at_any_step_is_finished_by_the_next(tmp_path: Path, offset: int) -> None:
    world = pattern(tmp_path, own=True)
    before = world.content()
    ravage(world)
    pristine, step, code = hand_over(world), offset, -signal.SIGKILL
    while code == -signal.SIGKILL:
        place = tmp_path / f"killed{step}"
        subprocess.run(["cp", "-a", pristine, place], check=True)
        code = run(place, None, step)
        if code == -signal.SIGKILL:
            assert run(place, None, 10_000) == 0
        assert finished(place, own=True) == before, f"killed at step {step}"
        shutil.rmtree(place)
        step += 5
    assert code == 0
    assert step > 60


@pytest.mark.crash
@pytest.mark.parametrize("stride", [1, 2, 7])
def test_an_undo_killed_again_and_again_gets_through_and_leaves_people_alone(tmp_path: Path, stride: int) -> None:
    """Ctimes can't be copied, so one and the same workspace is killed at its first step, then at a later step of what is left, and so on."""
    world = pattern(tmp_path, own=False)
    before = world.content()
    world.put("dir/persons", "edited before the call")
    before["dir/persons"] = world.content()["dir/persons"]
    with window() as lost:
        ravage(world)
        world.put("dir/calls", "changed in place")
    place, step = hand_over(world), 1
    while (code := run(place, lost, step)) == -signal.SIGKILL:
        step += stride
    assert code == 0
    assert finished(place, own=False) == before
    assert step > 10


def run(place: Path, told: dict[str, Any] | None, step: int) -> int:
    trace = place / f"trace{step}"
    environment = {**os.environ, ENVIRONMENT: f"spaced:{step}:kill:{trace}"}
    arguments = [sys.executable, "-c", KILLED, str(place), json.dumps(told)]
    return subprocess.run(arguments, env=environment, cwd=Path(__file__).parents[2]).returncode


def finished(place: Path, *, own: bool) -> dict[str, Any]:
    world = World(place, own=own)
    assert not [path for path in world.root.rglob("*") if is_temporary(path.name)]
    return world.content()


def test_nothing_of_a_persons_work_is_taken_when_a_cut_off_restore_goes_on(tmp_path: Path) -> None:
    """The restore itself touches directories, so the window rule alone would now call an old edit beside them the call's."""
    world = World(tmp_path)
    world.put("dir/persons", "base")
    world.put("dir/one", "base")
    world.put("dir/two", "base")
    world.commit()
    world.put("dir/persons", "edited before the call")
    now_ns()
    with window() as lost:
        world.put("dir/one", "call")
        world.put("dir/two", "call")
    plan = world.plan(lost)
    assert plan["take_back"] == ["dir/one", "dir/two"]
    looks = iter([False] * 5)
    with pytest.raises(FencedError):
        world.restore(plan, cancelled=lambda: next(looks, True))
    world.workspace = world.open()
    world.restore(world.plan(lost))
    assert {name: world.content()[name][0] for name in ("dir/persons", "dir/one", "dir/two")} == {
        "dir/persons": b"edited before the call",
        "dir/one": b"base",
        "dir/two": b"base",
    }


def test_leftover_temporary_files_are_no_part_of_an_image_and_are_swept(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put("a", "base")
    base = world.commit()
    world.put(".perdure-0123456789abcdef.tmp", "half")
    (world.root / ".perdure-0123456789abcde0.tmp").symlink_to("a")
    assert world.workspace.capture(base)["changed"] == []
    world.workspace.sweep(never)
    assert set(world.content()) == {"a"}
