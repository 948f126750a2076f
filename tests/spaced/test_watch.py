"""What events tell is what a scan would find; and wherever they can't tell, the capture scans by itself."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.spaced import watch as watching
from perdure.spaced.engine import AUTO, WATCH
from perdure.spaced.errors import FencedError
from perdure.spaced.workspace import Workspace
from tests.spaced.world import World, never

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")


class Watched(World):
    """A watched workspace, and beside it one that has never seen it before: each capture is compared with what that finds."""

    def __init__(self, tmp_path: Path, **settings: Any) -> None:
        super().__init__(tmp_path, capture=WATCH, **settings)
        self.outside = tmp_path / "outside"
        self.outside.mkdir()
        self._fresh = 0

    def changed(self, *, scanned: str = "", **arguments: Any) -> list[str]:
        """The changed paths; `scanned` is why it had to scan, if so."""
        capture = self.workspace.capture(self.base, **arguments)
        assert scanned in self.workspace.engine.why if scanned else not self.workspace.engine.why, self.workspace.engine.why
        self.take(capture["chunks"])
        self.base = capture["image"]
        assert self.base is not None
        found = self.found()
        assert (self.base["tree"], self.base["times"], self.base.get("git")) == (found["tree"], found["times"], found.get("git"))
        self.workspace.staging.settle(self.base)
        paths: list[str] = capture["changed"]
        return paths

    def found(self) -> dict[str, Any]:
        """By a workspace that knows nothing."""
        self._fresh += 1
        settings = {name: value for name, value in self.settings.items() if name != "capture"}
        state = self.state.parent / f"fresh{self._fresh}"
        state.mkdir()
        image: dict[str, Any] = Workspace(self.workspace.root_fd, str(self.root), str(state), own=self.own, **settings).capture(
            None
        )["image"]
        return image

    def shell(self, command: str) -> None:
        """At `;;` the watch gets time to hear of what was done."""
        environment = {**os.environ, "OUT": str(self.outside)}
        for number, part in enumerate(command.split(" ;; ")):
            if number:
                self.heard()
            subprocess.run(["bash", "-c", part], cwd=self.root, check=True, env=environment)

    def heard(self) -> None:
        """Waits until the watch's own thread has read everything up to now and looked at what is new."""
        watch = self.workspace.engine.watch
        assert watch is not None
        (self.root / "heard").touch()
        deadline = time.monotonic() + 20
        while watch._root.states.get("heard") != watching._OWN:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        (self.root / "heard").unlink()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Watched]:
    world = Watched(tmp_path)
    for name in ("a", "b", "dir/c", "dir/deep/d", "other/e"):
        world.put(name, name)
    world.commit()
    yield world
    world.workspace.engine.close()


# ---- what events tell ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "paths"),
    [
        ("echo x > a", ["a"]),
        ("echo x > new; echo y > dir/deep/new", ["dir/deep/new", "new"]),
        ("rm a dir/c", ["a", "dir/c"]),
        ("chmod 600 dir/deep/d; chmod 700 dir", ["dir", "dir/deep/d"]),
        ("touch -d @1000 b", ["b"]),
        ("ln -s a link", ["link"]),
        ("mkdir -p n1/n2/n3", ["n1", "n1/n2", "n1/n2/n3"]),
        ("rm -r dir", ["dir", "dir/c", "dir/deep", "dir/deep/d"]),
        ("rm -r dir; echo x > dir", ["dir", "dir/c", "dir/deep", "dir/deep/d"]),
        ("rm a; mkdir a; echo x > a/x", ["a", "a/x"]),
        ("mv a z", ["a", "z"]),
        ("echo x > .t; mv .t a", ["a"]),
        ("mv dir moved", ["dir", "dir/c", "dir/deep", "dir/deep/d", "moved", "moved/c", "moved/deep", "moved/deep/d"]),
        ("mv dir t; mv other dir; mv t other", ["dir/c", "dir/deep", "dir/deep/d", "dir/e", "other/c", "other/deep", "other/deep/d", "other/e"]),
        ("mv dir $OUT/dir", ["dir", "dir/c", "dir/deep", "dir/deep/d"]),
        ("mkdir -p $OUT/in/below; echo x > $OUT/in/below/x; mv $OUT/in in", ["in", "in/below", "in/below/x"]),
        ("exec 3>>a; mv a z; echo more >&3", ["a", "z"]),
        ("mv dir d2; rm d2/c; echo x >> d2/deep/d; mv d2 dir", ["dir/c", "dir/deep/d"]),
        ("mv dir $OUT/d; echo x >> $OUT/d/c; mkdir $OUT/d/n; echo x > $OUT/d/n/f; mv $OUT/d dir", ["dir/c", "dir/n", "dir/n/f"]),
        ("true", []),
    ],
)  # fmt: skip
def test_what_a_command_did_is_told_without_a_scan(world: Watched, command: str, paths: list[str]) -> None:
    world.shell(command)
    assert world.changed() == paths
    assert world.changed() == []


def test_only_what_was_touched_is_looked_at(world: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(300):
        world.put(f"many/{number}", "x")
    world.changed()
    world.put("many/7", "seven")
    (world.root / "many/8").unlink()
    looked: list[str] = []
    stat = os.stat
    monkeypatch.setattr(os, "stat", lambda path, **rest: (looked.append(str(path)), stat(path, **rest))[1])
    monkeypatch.setattr(os, "scandir", lambda *_: pytest.fail("a directory was listed"))
    capture = world.workspace.capture(world.base)
    assert capture["changed"] == ["many/7", "many/8"]
    assert {name for name in looked if name[0] != "#"} <= {str(world.root), "many", "7", "8"}


def test_same_size_and_time_is_seen(world: Watched) -> None:
    before = (world.root / "a").stat()
    world.put("a", "A")
    os.utime(world.root / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert world.changed() == ["a"]


def test_moved_directories_are_watched_under_their_new_names(world: Watched) -> None:
    world.shell("mv dir moved; mv moved/deep other/deep; mkdir dir; echo x > dir/c")
    world.changed()
    world.shell("echo 1 >> moved/c; echo 2 >> other/deep/d; echo 3 >> dir/c")
    assert world.changed() == ["dir/c", "moved/c", "other/deep/d"]


def test_directories_that_change_places_are_told_apart(world: Watched) -> None:
    world.shell("mkdir -p x/sub y/sub; echo x > x/sub/f; echo y > y/sub/f")
    world.changed()
    world.shell("mv x t; mv y x; mv t y")
    world.changed()
    world.shell("echo more >> x/sub/f")
    assert world.changed() == ["x/sub/f"]
    world.shell("echo more >> y/sub/f")
    assert world.changed() == ["y/sub/f"]


def test_what_is_done_in_a_directory_after_it_left_is_nobodys_concern(world: Watched) -> None:
    world.shell("mv dir $OUT/dir")
    world.changed()
    world.shell("echo x > $OUT/dir/c; mkdir $OUT/dir/deep/x; rm $OUT/dir/deep/d")
    assert world.changed() == []
    world.shell("mv $OUT/dir back")
    assert world.changed() == ["back", "back/c", "back/deep", "back/deep/x"]
    world.shell("echo y > back/c")
    assert world.changed() == ["back/c"]


@pytest.mark.parametrize("way", ["quickly", "by many", "deep"])
def test_a_directory_that_is_made_and_filled_at_once_is_seen_whole(world: Watched, way: str) -> None:
    made = {
        "quickly": "for i in $(seq 40); do mkdir -p n/$i/s; echo $i > n/$i/f; echo $i > n/$i/s/f; done",
        "by many": "for i in 1 2 3 4; do (mkdir -p p$i/q/r && cp -r dir p$i/q/r/d && cp -r dir p$i/e) & done; wait",
        "deep": "mkdir -p $(seq -s/ 120); echo x > $(seq -s/ 120)/f",
    }
    world.shell(made[way])
    assert len(world.changed()) > 20
    world.shell("find . -name f -o -name c | while read -r f; do echo more >> $f; done")
    assert world.changed()
    world.shell("find . -type d | while read -r d; do touch $d/again; done")
    assert len([path for path in world.changed() if path.endswith("again")]) > 5


def test_names_and_paths_of_any_bytes_and_any_length(world: Watched) -> None:
    odd = os.fsdecode(b"\xff\xfe new\nline \\ \x01")
    world.put(f"{odd}/{odd}", "x")
    world.changed()
    world.put(f"{odd}/{odd}", "y")
    assert len(world.changed()) == 1
    fd = os.open(world.root, os.O_RDONLY)
    for _ in range(25):
        os.mkdir("d" * 250, dir_fd=fd)
        below = os.open("d" * 250, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    world.changed()
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)
    assert world.changed()[-1].endswith("/file")
    shutil.rmtree(world.root / ("d" * 250))
    assert len(world.changed()) == 26


def test_a_large_directory_is_right_after_every_change(world: Watched) -> None:
    for number in range(3000):
        world.put(f"large/{number}", str(number))
    world.changed()
    for number in range(0, 3000, 500):
        world.put(f"large/{number}", "changed")
        (world.root / f"large/{number + 1}").unlink()
        world.put(f"large/new{number}", "new")
        assert world.changed() == sorted([f"large/{number}", f"large/{number + 1}", f"large/new{number}"])
    for number in range(1000, 3000):
        (world.root / f"large/{number}").unlink(missing_ok=True)
    world.changed()
    assert world.workspace.capture(world.base)["entries"] == world.open().capture(None)["entries"]


# ---- files with several names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "command", "paths"),
    [
        ("", "ln a dir/l; echo x >> dir/l", ["a", "dir/l"]),
        ("ln a dir/l", "echo x >> dir/l", ["a", "dir/l"]),
        ("ln a dir/l; mv dir d2", "echo x >> d2/l", ["a", "d2/l"]),
        ("ln a $OUT/l; touch a", "echo x >> $OUT/l", ["a"]),
        ("ln a $OUT/l", "mv $OUT/l new; echo x >> new", ["a", "new"]),
        ("ln a l", "rm a; echo x >> l", ["a", "l"]),
        ("cp -al dir copy", "echo x >> copy/deep/d", ["copy/deep/d", "dir/deep/d"]),
        ("", "cp -al dir copy; echo x >> copy/c", ["copy", "copy/c", "copy/deep", "copy/deep/d", "dir/c"]),
        ("cp -al dir copy; rm -r dir", "echo x >> copy/c", ["copy/c"]),
        ("ln a l; rm l", "echo x >> a", ["a"]),
        ("ln a l; rm l; ln a m", "echo x >> m", ["a", "m"]),
        ("echo x > $OUT/o; ln $OUT/o o", "echo y > $OUT/o", ["o"]),
    ],
)
def test_every_name_of_a_file_is_told(world: Watched, before: str, command: str, paths: list[str]) -> None:
    world.shell(before)
    world.changed()
    world.shell(command)
    assert world.changed() == paths


@pytest.mark.parametrize(
    "command",
    [
        "ln a t; echo x >> t; rm t",
        "ln a t; echo x >> t; echo y > u; mv u t",
        "ln a t; mv t u; echo x >> u; rm u",
        "ln a t; echo x >> t; mv t $OUT/t",
        "ln a t; exec 3>>t; rm t; echo x >&3",
        "mkdir t; ln a t/t; echo x >> t/t; rm -r t",
        "mkdir t ;; ln a t/t; echo x >> t/t; rm t/t",
        "mkdir -p $OUT/t; ln a $OUT/t/t; mv $OUT/t t ;; echo x >> t/t; rm t/t",
        "ln a t ;; echo x >> t; rm t",
        "mv dir moved ;; ln a moved/t; echo x >> moved/t; rm moved/t",
        "exec 3>>a; ln a t; rm a; echo x >&3; echo y > a; rm t; ln b t",
    ],
)
def test_a_write_through_a_name_that_is_gone_is_found_by_a_scan(world: Watched, command: str) -> None:
    world.shell(command)
    world.workspace.capture(world.base)
    assert world.workspace.engine.why or "exec" in command
    world.changed()


@pytest.mark.parametrize("command", ["echo x > t ;; rm t", "echo x > t ;; mv t t2 ;; echo y >> t2; rm t2"])
def test_a_file_that_was_seen_to_have_no_other_name_may_come_and_go(world: Watched, command: str) -> None:
    world.shell(command)
    assert world.changed() == []


def test_a_write_into_a_file_whose_name_leads_elsewhere_by_now_is_found(world: Watched) -> None:
    with open(world.root / "a", "ab", buffering=0) as held:
        world.shell("ln a kept; echo new > n; mv n a")
        world.changed()
        held.write(b"through the old name")
    assert world.changed(scanned="does not lead to") == ["kept"]


def test_a_write_by_a_name_outside_is_found_though_no_name_in_the_workspace_was_touched(world: Watched) -> None:
    world.shell("ln a $OUT/l")
    assert world.changed(audit=True, scanned="audit") == []
    world.shell("echo x >> $OUT/l")
    assert world.changed() == ["a"]
    assert world.workspace.reaching() == ["a"]
    world.shell("rm $OUT/l")
    assert world.changed() == []
    assert world.workspace.reaching() == []


def test_a_link_from_outside_that_came_and_went_is_found_by_the_audit(world: Watched) -> None:
    world.shell("ln a $OUT/l; echo x >> $OUT/l; rm $OUT/l")
    assert world.workspace.capture(world.base)["changed"] == []
    assert world.changed(audit=True, scanned="audit") == ["a"]
    world.put("b", "B")
    assert world.changed() == ["b"]


def test_too_many_files_with_several_names_are_not_watched(world: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "MOST_LINKED", 3)
    for number in range(5):
        os.link(world.put(f"f{number}", str(number)), world.root / f"l{number}")
    world.changed()
    world.shell("echo x >> l4")
    assert world.changed(scanned="several names") == ["f4", "l4"]
    assert world.workspace.engine.told.startswith("scan (more than 3 files")


# ---- processes that live on ------------------------------------------------------------------------------------------------------


def test_a_store_through_a_mapping_is_seen_while_it_is_held_and_when_it_ends(world: Watched) -> None:
    path = world.put("mapped", "x" * 5000)
    world.commit()
    hot = {(path.stat().st_dev, path.stat().st_ino)}
    with open(path, "r+b") as file:
        view = mmap.mmap(file.fileno(), 0)
    view[0] = 65
    assert world.changed(hot=hot) == ["mapped"]
    view[1] = 66
    assert world.changed(hot=hot) == ["mapped"]
    (world.root / "mapped").rename(world.root / "renamed")
    assert world.changed(hot=hot) == ["mapped", "renamed"]
    view[2] = 67
    assert world.changed(hot=hot) == ["renamed"]
    view[3] = 68
    view.close()
    assert world.changed() == ["renamed"]
    assert world.changed() == []


# ---- when only a scan can tell ---------------------------------------------------------------------------------------------------


def test_an_overflow_is_scanned_and_watched_again(world: Watched) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    assert world.workspace.engine.watch is not None
    with world.workspace.engine.watch._lock:
        for _ in range(most // 2 + 100):
            (world.root / "new").mkdir()
            (world.root / "new").rmdir()
        world.put("last/file", "unheard")
    assert world.changed(scanned="overflow") == ["last", "last/file"]
    world.put("last/file", "heard")
    assert world.changed() == ["last/file"]


def test_a_directory_that_came_and_went_before_it_was_watched_is_in_doubt(world: Watched) -> None:
    assert world.workspace.engine.watch is not None
    with world.workspace.engine.watch._lock:
        world.shell("mkdir t; ln a t/t; echo x >> t/t; rm -r t")
        assert world.changed(scanned="a new directory was removed") == ["a"]


def test_a_capture_that_was_cut_off_is_followed_by_a_scan(world: Watched) -> None:
    world.put("a", "A")
    with pytest.raises(FencedError):
        world.workspace.capture(world.base, cancelled=lambda: True)
    assert world.changed(scanned="nothing was watched") == ["a"]
    world.put("a", "B")
    assert world.changed() == ["a"]


def test_a_clock_that_was_set_back_is_followed_by_a_scan(world: Watched) -> None:
    low, high = world.workspace.index.clock
    world.workspace.index.clock = (low + 10**12, high + 10**12)
    world.put("a", "A")
    assert world.changed(scanned="clock") == ["a"]


def test_another_supervisor_scans_first(world: Watched) -> None:
    world.workspace.save()
    world.workspace.engine.close()
    world.put("a", "A")
    world.workspace = world.open()
    assert world.changed(scanned="nothing was watched") == ["a"]
    world.put("b", "B")
    assert world.changed() == ["b"]


def test_what_ends_the_watch_ends_no_capture(world: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(event: object) -> None:
        raise RuntimeError("a mistake")

    assert world.workspace.engine.watch is not None
    monkeypatch.setattr(world.workspace.engine.watch, "_apply", fails)
    world.put("a", "A")
    assert world.changed(scanned="a mistake") == ["a"]
    world.put("a", "B")
    assert world.changed(scanned="a mistake") == ["a"]


_LIMITED = """
import os, sys
sys.path.insert(0, sys.argv[1])
from perdure.spaced.workspace import Workspace
root, state, name, limit = sys.argv[2:6]
open("/proc/sys/user/" + name, "w").write(limit)
workspace = Workspace(os.open(root, os.O_RDONLY), root, state, own=True, capture="auto")
image = workspace.capture(None)["image"]
for text in ("one", "two"):
    open(root + "/dir/c", "w").write(text)
    capture = workspace.capture(image)
    image = capture["image"]
    print(workspace.engine.told, "|", capture["changed"])
"""


@pytest.mark.parametrize(("name", "told"), [("max_inotify_watches", "max_user_watches"), ("max_inotify_instances", "open files")])
def test_at_the_kernels_limits_it_scans(world: Watched, tmp_path: Path, name: str, told: str) -> None:
    """Real limits, of a user namespace of its own."""
    import perdure

    (tmp_path / "limited").mkdir()
    source = str(Path(perdure.__file__).parent.parent)
    arguments = [source, str(world.root), str(tmp_path / "limited"), name, "2" if "watches" in name else "0"]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-c", _LIMITED, *arguments], capture_output=True, check=False
    )
    if b"unshare" in done.stderr:
        pytest.skip("no user namespaces here")
    assert done.returncode == 0, done.stderr.decode()
    lines = done.stdout.decode().splitlines()
    assert [line.partition(" | ")[2] for line in lines] == ["['dir/c']", "['dir/c']"]
    assert all(line.startswith("scan (") and told in line for line in lines), lines


_MOUNTED = """
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from perdure.spaced.workspace import Workspace
root, state = sys.argv[2:4]
workspace = Workspace(os.open(root, os.O_RDONLY), root, state, own=True, capture="auto")
image = workspace.capture(None)["image"]
def look(*command):
    global image
    subprocess.run(command, check=True)
    capture = workspace.capture(image)
    image = capture["image"]
    print(workspace.engine.why, "|", capture["changed"], capture["mounts"])
look("true")
look("mount", "-t", "tmpfs", "none", root + "/dir")
look("touch", root + "/dir/inside")
look("umount", root + "/dir")
look("touch", root + "/dir/c2")
"""


def test_what_is_mounted_below_is_left_out_and_seen_to_go(world: Watched, tmp_path: Path) -> None:
    import perdure

    (tmp_path / "mounted").mkdir()
    source = str(Path(perdure.__file__).parent.parent)
    command = ["unshare", "--user", "--map-root-user", "--mount", sys.executable, "-c", _MOUNTED]
    done = subprocess.run([*command, source, str(world.root), str(tmp_path / "mounted")], capture_output=True, check=False)
    if b"unshare" in done.stderr or b"permission" in done.stderr:
        pytest.skip("no mounts here")
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == [
        " | [] []",
        "something was mounted | ['dir', 'dir/c', 'dir/deep', 'dir/deep/d'] ['dir']",
        " | [] ['dir']",
        "something was mounted | ['dir', 'dir/c', 'dir/deep', 'dir/deep/d'] []",
        " | ['dir/c2'] []",
    ]


# ---- beside the files ------------------------------------------------------------------------------------------------------------


def test_a_restore_leaves_the_watch_right(world: Watched) -> None:
    world.base = world.commit()
    world.shell("echo x > a; rm -r dir; mkdir n; echo y > n/f")
    world.undo()
    assert world.changed() == []
    world.shell("echo x >> dir/deep/d; echo z > b")
    assert world.changed() == ["b", "dir/deep/d"]


def test_the_repository_is_watched_as_the_files_are(tmp_path: Path) -> None:
    world = Watched(tmp_path)
    world.put("a", "a")
    world.shell("git init -q . && git -c user.email=x@x -c user.name=x commit -q --allow-empty -m one")
    world.commit()
    before = world.base
    world.shell("git update-ref refs/heads/other HEAD")
    assert world.changed() == []
    assert before is not None
    assert world.base is not None
    assert world.base["git"] != before["git"]
    world.shell("rm -rf .git")
    world.changed(scanned="repository")
    world.shell("git init -q .")
    world.changed(scanned="repository")
    world.shell("git update-ref refs/heads/x $(git hash-object -w -t commit /dev/null) || true; echo b > a")
    world.changed()
    world.workspace.engine.close()


def test_what_is_left_out_is_not_watched(tmp_path: Path) -> None:
    world = Watched(tmp_path, exclude=("skipped/", "*.log"))
    world.put("a", "a")
    world.put("skipped/deep/x", "x")
    world.commit()
    assert world.workspace.engine.watch is not None
    watched = len(world.workspace.engine.watch._places)
    world.shell(
        "echo x > skipped/deep/x; mkdir -p skipped/more/dirs; echo y > some.log; mkdir in; echo z > in/z; echo l > in/l.log"
    )
    assert world.changed() == ["in", "in/z"]
    assert len(world.workspace.engine.watch._places) == watched + 1
    world.shell("mv skipped shown")
    assert "shown/deep/x" in world.changed()
    world.shell("echo 2 > shown/deep/x; mv in skipped")
    assert world.changed() == ["in", "in/z", "shown/deep/x"]
    world.workspace.engine.close()


def test_what_no_image_holds_stays_told(world: Watched) -> None:
    os.mkfifo(world.root / "fifo")
    assert world.changed() == []
    world.put("a", "A")
    capture = world.workspace.capture(world.base)
    assert capture["not_held"] == ["fifo"]
    (world.root / "fifo").unlink()
    assert world.workspace.capture(world.base)["not_held"] == []


def test_what_is_too_large_to_be_held_stays_told(tmp_path: Path) -> None:
    world = Watched(tmp_path, max_file_bytes=1000)
    large = world.put("large", "x" * 2000)
    world.put("a", "a")
    world.commit()
    world.put("a", "A")
    capture = world.workspace.capture(world.base)
    assert (capture["opaque"], capture["opaque_changed"]) == (["large"], [])
    world.base = capture["image"]
    large.write_text("y" * 2000)
    capture = world.workspace.capture(world.base)
    assert (capture["opaque"], capture["opaque_changed"], world.workspace.engine.why) == (["large"], ["large"], "")
    large.write_text("small")
    assert world.changed() == ["large"]
    world.workspace.engine.close()


def test_unfinished_files_of_its_own_are_no_concern_and_are_swept(world: Watched) -> None:
    left = world.root / ".perdure-0123456789abcdef.tmp"
    left.write_text("half")
    assert world.changed() == []
    world.put("a", "A")
    world.changed()
    world.workspace.sweep(never)
    assert not left.exists()


def test_an_idle_watch_holds_no_watch_of_what_is_gone(world: Watched) -> None:
    assert world.workspace.engine.watch is not None
    before = len(world.workspace.engine.watch._places)
    for _ in range(3):
        world.shell("mkdir -p x/y/z; ln a x/l; mv x x2; rm -r x2")
        world.workspace.capture(world.base)
    world.shell("mkdir -p x/y/z; mv x $OUT/x")
    world.workspace.capture(world.base)
    assert len(world.workspace.engine.watch._places) == before
    world.changed(audit=True, scanned="audit")
    assert len(world.workspace.engine.watch._places) == before
    assert not world.workspace.engine.watch._files


def test_auto_is_watch_here(tmp_path: Path) -> None:
    world = World(tmp_path, capture=AUTO)
    assert world.workspace.engine.told == "watch"
    world.commit()
    world.put("a", "a")
    assert world.workspace.capture(world.base)["changed"] == ["a"]
    assert not world.workspace.engine.why
    world.workspace.engine.close()
