"""Several agents on one repository: real processes, each in a copy of its own, and `apply` to bring it home."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from perdure.space.launch import namespace_problem
from tests.cli.desk import Desk, bash, call, finish, turn


def repository(desk: Desk) -> Path:
    lines = "".join(f"line {i}\n" for i in range(12))
    (desk.project / "shared.txt").write_text(lines)
    (desk.project / "own").mkdir()
    for command in (("init", "-q"), ("add", "."), ("-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "x")):
        subprocess.run(["git", *command], cwd=desk.project, check=True)
    return desk.project


def test_three_agents_at_once_on_one_repository_come_home_with_their_conflicts_shown(desk: Desk) -> None:
    root = repository(desk)
    work = {
        "one": "sed -i 's/line 2/one/' shared.txt; echo 1 > own/one; echo one > fight",
        "two": "sed -i 's/line 6/two/' shared.txt; echo 2 > own/two; echo two > fight",
        "three": "sed -i 's/line 10/three/' shared.txt; git -c user.name=a -c user.email=a@b commit -qam three; rm -f own/none",
    }
    running = []
    for name, script in work.items():
        model = desk.script(turn("", bash(f"sleep 0.5; {script}")), "Done.", name=f"{name}.json")
        running.append(desk.start("run", "--copy", "--session", name, "--model", model, "go"))
    for process in running:
        code, _, errors = finish(process)
        assert code == 0, errors
    assert not (root / "own" / "one").exists()
    (root / "shared.txt").write_text((root / "shared.txt").read_text().replace("line 0", "mine"))
    first = desk.perdure("apply", "one")
    assert (first.returncode, first.stdout.splitlines()) == (
        0,
        ["applied  fight", "applied  own/one", "merged   shared.txt", f"3 paths applied in {root}"],
    )
    second = desk.perdure("apply", "two")
    assert second.returncode == 1
    copy = desk.home / "copies" / "two" / "project"
    assert second.stdout.splitlines() == [
        "applied  own/two",
        "merged   shared.txt",
        "conflict fight: added there and here",
        f"         the session's version: {copy}/fight",
        f"2 paths applied in {root}, 1 conflict, left as it is",
    ]
    assert (root / "fight").read_text() == "one\n"
    third = desk.perdure("apply", "three")
    assert third.returncode == 0, third.stderr
    assert f"git fetch {desk.home}/copies/three/project" in third.stderr
    want = [f"line {i}" for i in range(12)]
    want[0], want[2], want[6], want[10] = "mine", "one", "two", "three"
    assert (root / "shared.txt").read_text().splitlines() == want
    assert desk.perdure("apply", "two", "--theirs", "fight").returncode == 0
    assert (root / "fight").read_text() == "two\n"
    assert "brought home: own/two, shared.txt; left as they are, in conflict: fight" in desk.perdure("show", "two").stdout
    for name in work:
        assert desk.perdure("verify", name).returncode == 0
        assert desk.perdure("rm", name).returncode == 0
    assert list((desk.home / "copies").iterdir()) == []


def test_what_would_be_done_is_said_first(desk: Desk) -> None:
    root = repository(desk)
    desk.perdure(
        "run", "--copy", "--session", "s", "--model", desk.script(turn("", call("write", path="new", content="x")), "Done."), "go"
    )
    shown = desk.perdure("apply", "s", "--dry-run")
    assert shown.stdout.splitlines() == ["applied  new", f"1 path to apply in {root}"]
    assert not (root / "new").exists()
    (told,) = desk.json("apply", "s", "--json")
    assert (told["paths"], told["conflicts"]) == (["new"], [])
    again = desk.perdure("apply", "s")
    assert again.stdout.splitlines() == [f"nothing to apply: {root} has it all"]
    refused = desk.perdure("rm", "s")
    assert refused.returncode == 0


def test_what_cant_be_applied_is_said_with_the_remedy(desk: Desk) -> None:
    desk.perdure("run", "--session", "here", "--model", desk.script("Done."), "go")
    done = desk.perdure("apply", "here")
    assert (done.returncode, done.stderr.count("works in place")) == (2, 1)
    done = desk.perdure("apply", "here", "-C", "nowhere")
    assert (done.returncode, "does not exist" in done.stderr) == (2, True)
    desk.perdure("run", "--copy", "--session", "s", "--model", desk.script(turn("", bash("echo 1 > b")), "Done."), "go")
    done = desk.perdure("rm", "s")
    assert (done.returncode != 0, "perdure apply s" in done.stderr) == (True, True)
    done = desk.perdure("run", "--session", "s", "--copy", "go")
    assert (done.returncode, "--copy can only be chosen for a new one" in done.stderr) == (2, True)


@pytest.mark.skipif(namespace_problem() is not None, reason="needs PID namespaces")
def test_a_copy_can_be_worked_on_in_a_sandbox(desk: Desk) -> None:
    root = repository(desk)
    model = desk.script(turn("", bash("echo boxed > b.txt; pwd")), "Done.")
    done = desk.perdure("run", "--copy", "--space", "sandbox", "--session", "s", "--model", model, "go")
    assert done.returncode == 0, done.stderr
    assert desk.perdure("apply", "s").returncode == 0
    assert (root / "b.txt").read_text() == "boxed\n"
    assert json.loads((desk.home / "copies" / "s" / "origin.json").read_text())["directory"] == os.path.realpath(root)


def test_without_a_name_the_newest_copy_of_the_directory_is_meant(desk: Desk) -> None:
    model = desk.script(turn("", call("write", path="new.txt", content="new\n")), "Made.")
    assert desk.perdure("run", "make it", "--copy", "--session", "copy", "--model", model).returncode == 0
    assert desk.perdure("run", "hi", "--session", "here", "--model", desk.script("Hello.", name="here.json")).returncode == 0
    ran = desk.perdure("apply")
    assert (ran.returncode, (desk.project / "new.txt").read_text()) == (0, "new\n")
