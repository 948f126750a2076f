"""Nothing that a call did escapes a scan, whatever it did to hide it; and nothing is read twice without a reason."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.spaced import grain, index, scan
from perdure.spaced.errors import FencedError
from perdure.spaced.index import Folder, digests
from tests.spaced.world import World, never


def changed(world: World, **arguments: Any) -> list[str]:
    capture = world.workspace.capture(world.base, **arguments)
    world.take(capture["chunks"])
    world.base = capture["image"]
    paths: list[str] = capture["changed"]
    return paths


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    for name in ("a", "b", "dir/c"):
        world.put(name, name)
    world.commit()
    return world


def test_the_first_capture_tells_every_chunk_and_the_next_nothing(world: World) -> None:
    assert b"dir/c" in world.store.values()
    capture = world.workspace.capture(world.base)
    assert (capture["changed"], capture["chunks"], capture["entries"]) == ([], {}, 4)


def test_added_removed_modified_and_renamed_paths_are_told(world: World) -> None:
    (world.root / "a").unlink()
    world.put("b", "B")
    world.put("new/file", "n")
    (world.root / "dir").rename(world.root / "moved")
    assert changed(world) == ["a", "b", "dir", "dir/c", "moved", "moved/c", "new", "new/file"]


def test_a_change_that_was_taken_back_is_no_change_against_the_base(world: World) -> None:
    base = world.base
    world.put("b", "B")
    world.workspace.capture(base)
    world.put("b", "b")
    os.utime(world.root / "b", ns=(1, 1))
    capture = world.workspace.capture(base)
    assert capture["changed"] == ["b"]
    (world.root / "b").unlink()
    shutil.copystat(world.root / "a", world.put("b", "b"))
    assert world.workspace.capture(base)["changed"] == ["b"]


def test_chunks_since_any_unsettled_image_are_told(world: World) -> None:
    base = world.base
    world.put("b", "one")
    first = world.workspace.capture(base)
    world.put("b", "two")
    second = world.workspace.capture(first["image"])
    both = world.workspace.capture(base)
    assert set(both["chunks"]) == set(first["chunks"]) | set(second["chunks"])
    world.workspace.staging.settle(first["image"])
    assert world.workspace.capture(first["image"])["chunks"] == second["chunks"]
    with pytest.raises(KeyError):
        world.workspace.staging.read(next(iter(set(first["chunks"]) - set(second["chunks"]))))


def test_content_is_kept_as_it_was_when_it_was_hashed(world: World) -> None:
    world.put("b", "at the capture")
    capture = world.workspace.capture(world.base)
    world.put("b", "afterwards")
    assert b"at the capture" in [world.workspace.staging.read(digest) for digest in capture["chunks"]]


def test_a_successor_goes_on_from_the_saved_index_and_the_staged_bytes(world: World) -> None:
    world.put("b", "unsettled")
    capture = world.workspace.capture(world.base)
    world.workspace.save()
    successor = world.open()
    again = successor.capture(world.base)
    assert again["chunks"] == capture["chunks"]
    assert b"unsettled" in [successor.staging.read(digest) for digest in again["chunks"]]


@pytest.mark.parametrize("damage", ["stale", "missing", "garbage", "flipped"])
def test_an_index_that_cant_be_believed_costs_only_time(world: World, damage: str) -> None:
    if damage != "missing":
        world.workspace.save()
    path = world.state / "index"
    if damage == "garbage":
        path.write_bytes(b"x")
    if damage == "flipped":
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    world.put("b", "B")
    if damage == "stale":
        world.workspace.capture(world.base)
    capture = world.open().capture(world.base)
    assert capture["changed"] in (["."], ["b"])
    assert capture["image"]["tree"] == world.open().capture(None)["image"]["tree"]


def test_a_base_that_is_unknown_here_but_equal_stages_nothing(world: World, tmp_path: Path) -> None:
    shutil.rmtree(world.state)
    world.state.mkdir()
    capture = world.open().capture(world.base)
    assert (capture["changed"], capture["chunks"]) == ([], {})


# ---- what tries to escape ----------------------------------------------------------------------------------------------------


def test_a_write_through_a_name_that_is_gone_again(world: World) -> None:
    os.link(world.root / "a", world.root / "transient")
    (world.root / "transient").write_text("A")
    (world.root / "transient").unlink()
    assert changed(world) == ["a"]


def test_a_write_through_a_name_outside(world: World, tmp_path: Path) -> None:
    os.link(world.root / "a", tmp_path / "outside")
    changed(world)
    (tmp_path / "outside").write_text("A")
    (tmp_path / "outside").unlink()
    assert changed(world) == ["a"]


def test_the_same_size_with_the_time_put_back(world: World) -> None:
    before = (world.root / "a").stat()
    world.put("a", "A")
    os.utime(world.root / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert changed(world) == ["a"]


def test_a_directory_moved_out_edited_and_moved_back(world: World, tmp_path: Path) -> None:
    (world.root / "dir").rename(tmp_path / "away")
    (tmp_path / "away/c").write_text("C")
    (tmp_path / "away").rename(world.root / "dir")
    assert changed(world) == ["dir/c"]


def test_a_descriptor_kept_open_over_a_rename(world: World) -> None:
    with open(world.root / "a", "r+") as file:
        (world.root / "a").rename(world.root / "renamed")
        changed(world)
        file.write("A")
        file.flush()
        assert changed(world) == ["renamed"]


def test_a_store_through_a_mapping_after_a_capture_is_found_in_hot_files(world: World) -> None:
    world.put("mapped", b"m" * 4096)
    changed(world)
    with open(world.root / "mapped", "r+b") as file, mmap.mmap(file.fileno(), 0) as view:
        status = os.fstat(file.fileno())
        hot = {(status.st_dev, status.st_ino)}
        view[0:1] = b"1"
        assert changed(world, hot=hot) == ["mapped"]
        key = index.stat_key(os.fstat(file.fileno()))
        view[0:1] = b"2"  # the page is dirty already: no new stamp
        assert index.stat_key(os.fstat(file.fileno())) == key
        assert changed(world, hot=hot) == ["mapped"]
        view[0:1] = b"3"
    assert changed(world) == ["mapped"], "hot at the capture before counts too"


def forge(world: World, path: str, content: str) -> None:
    """A change that the stat key does not show: the index is made to hold the new key beside the old digest."""
    world.put(path, content)
    root = world.workspace.index.root
    assert root is not None
    root.keys[path] = index.stat_key((world.root / path).stat())


@pytest.mark.parametrize("grain_ns", [0, 3600 * 10**9])
def test_with_a_coarse_clock_fresh_files_are_hashed_again(tmp_path: Path, grain_ns: int) -> None:
    world = World(tmp_path)
    world.workspace._grain_ns = grain_ns
    world.put("a", "a")
    world.commit()
    forge(world, "a", "within the same tick")
    assert changed(world) == (["a"] if grain_ns else [])


def test_the_probe_of_the_clock_leaves_no_trace(world: World) -> None:
    before = world.root.stat()
    assert 0 <= grain.grain_ns(world.workspace.root_fd, str(world.state)) <= grain.COARSEST_NS
    assert world.root.stat().st_mtime_ns == before.st_mtime_ns


def test_another_boot_and_a_clock_that_was_set_back_make_everything_be_hashed(world: World) -> None:
    forge(world, "a", "A")
    assert changed(world) == []
    low, high = world.workspace.index.clock
    world.workspace.index.clock = (low + 10**9, high + 10**9)
    assert changed(world) == ["a"]
    forge(world, "a", "B")
    assert changed(world) == []
    world.workspace.index.boot = "another"
    assert changed(world) == ["a"]


# ---- what no image holds -----------------------------------------------------------------------------------------------------


def test_large_and_special_files_are_named_but_not_held(tmp_path: Path) -> None:
    world = World(tmp_path, max_file_bytes=100)
    world.put("large", b"x" * 101)
    world.put("small", b"x" * 100)
    os.mkfifo(world.root / "fifo")
    capture = world.workspace.capture(None)
    assert (capture["opaque"], capture["not_held"], capture["entries"]) == (["large"], ["fifo"], 1)
    base = capture["image"]
    world.put("large", b"y" * 101)
    capture = world.workspace.capture(base)
    assert capture["image"]["tree"] == base["tree"]
    assert (capture["changed"], capture["opaque_changed"]) == ([], ["large"])


def test_excluded_paths_are_left_out(tmp_path: Path) -> None:
    world = World(tmp_path, exclude=("node_modules/", "*.log", "/top", "a/**/deep", "# remark"))
    for path in ("node_modules/x", "sub/node_modules/y", "x.log", "sub/y.log", "top", "sub/top", "a/b/c/deep", "a/kept"):
        world.put(path, "x")
    (world.root / "sub2").mkdir()
    world.put("sub2/node_modules", "a file of that name stays")
    world.workspace.capture(None)
    root = world.workspace.index.root
    assert root is not None
    assert set(root.held) == set()
    assert set(root.folders) == {"a", "sub", "sub2"}
    assert set(root.folders["sub"].held) == {"top"}
    assert set(root.folders["sub2"].held) == {"node_modules"}
    assert set(root.folders["a"].held) == {"kept"}
    assert "deep" not in root.folders["a"].folders["b"].folders["c"].held


def test_a_file_that_never_holds_still_is_stored_and_said_to_be_unstable(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    restless = world.put("restless", b"0" * 100_000)
    real = os.pread

    def write_while_reading(fd: int, length: int, offset: int) -> bytes:
        data = real(fd, length, offset)
        if os.fstat(fd).st_ino == restless.stat().st_ino:
            with open(restless, "ab") as file:
                file.write(b"more")
        return data

    monkeypatch.setattr(os, "pread", write_while_reading)
    capture = world.workspace.capture(world.base)
    assert capture["unstable"] == ["restless"]
    monkeypatch.undo()
    assert world.workspace.capture(capture["image"])["unstable"] == []


def test_a_repository_in_place_is_an_image_beside_the_tree(tmp_path: Path) -> None:
    for own in (False, True):
        place = tmp_path / str(own)
        place.mkdir()
        world = World(place, own=own)
        world.put("file", "x")
        subprocess.run(["git", "init", "-q", world.root], check=True)
        world.put("nested/.git/HEAD", "ordinary")
        capture = world.workspace.capture(None)
        root = world.workspace.index.root
        assert root is not None
        assert ("git" in capture["image"]) is not own
        assert (".git" in root.folders) is own
        assert ".git" in root.folders["nested"].folders


@pytest.mark.skipif(not sys.platform.startswith("linux") or os.geteuid() != 0, reason="mounts something, as root on Linux")
def test_mounts_below_the_root_are_left_out(tmp_path: Path) -> None:
    script = f"""
import os, subprocess; from pathlib import Path; from tests.spaced.world import World
world = World(Path({str(tmp_path)!r})); world.put("mounted/file", "x"); world.put("bound/file", "x"); world.put("source/file", "x")
run = lambda *command: subprocess.run(command, check=True)
run("mount", "-t", "tmpfs", "none", world.root / "mounted"); run("mount", "--bind", world.root / "source", world.root / "bound")
capture = world.workspace.capture(None)
assert capture["mounts"] == ["bound", "mounted"], capture
assert set(world.workspace.index.root.folders) == {{"source"}}
"""
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr


# ---- size, and being overtaken -------------------------------------------------------------------------------------------------


def test_a_capture_that_is_overtaken_leaves_the_index_as_it_was(world: World) -> None:
    world.put("b", "B")
    with pytest.raises(FencedError):
        world.workspace.capture(world.base, cancelled=lambda: True)
    assert changed(world) == ["b"]


def test_twenty_thousand_entries_and_a_large_directory(tmp_path: Path) -> None:
    world = World(tmp_path)
    for number in range(100):
        directory = world.root / str(number)
        directory.mkdir()
        for name in range(100):
            (directory / str(name)).write_bytes(b"%d" % (number + name))
    (world.root / "flat").mkdir()
    for name in range(10_000):
        (world.root / "flat" / str(name)).touch()
    base = world.commit()
    world.put("flat/77", "changed")
    (world.root / "flat/78").unlink()
    world.put("5/5", "changed")
    capture = world.workspace.capture(base)
    assert capture["entries"] == 20_100
    assert capture["changed"] == ["5/5", "flat/77", "flat/78"]
    assert sum(capture["chunks"].values()) < 100_000, "the cost follows the change"
    world.workspace.save()
    assert world.open().capture(base)["changed"] == capture["changed"]


def test_appends_to_a_large_file_stage_only_its_tail(world: World) -> None:
    world.put("large", os.urandom(5 << 20))
    changed(world)
    with open(world.root / "large", "ab") as file:
        file.write(b"x" * 1000)
    capture = world.workspace.capture(world.base)
    assert sum(capture["chunks"].values()) < 10_000


def test_a_moved_directory_is_not_stored_again(world: World) -> None:
    for number in range(200):
        world.put(f"dir/{number}", str(number) * 1000)
    changed(world)
    (world.root / "dir").rename(world.root / "moved")
    capture = world.workspace.capture(world.base)
    assert capture["changed_count"] == 2 * 202
    assert sum(capture["chunks"].values()) < 120_000
    world.take(capture["chunks"])
    assert {digest.hex() for digest in digests(world.workspace.index.root or Folder((0, 0, 0, 0, 0)))} <= world.store.keys()


def test_the_index_of_a_killed_supervisor_is_a_little_old_and_still_of_use(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        world.put(f"dir/{number}", "x")
    world.base = world.open().capture(None)["image"]
    world.put("a", "A")
    successor = world.open()
    read: list[str] = []
    real = scan.read_content
    monkeypatch.setattr(scan, "read_content", lambda fd, name, *rest: (read.append(name), real(fd, name, *rest))[1])
    assert successor.scan(never).root is not None
    assert read == ["a"]


def test_syncing_reaches_the_file_system(world: World) -> None:
    world.workspace.sync()
    assert never() is False
