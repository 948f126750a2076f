"""`rm`, `gc` and what `doctor` says of the disk."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from perdure.cli.sizes import shown_bytes
from tests.cli.desk import Desk, bash, turn, until

BIG = turn("", bash("head -c 400000 /dev/urandom > big"))


def settled(desk: Desk, name: str) -> Path:
    root = desk.folder / f"root-{name}"
    root.mkdir()
    done = desk.perdure(
        "run", "go", "--session", name, "-C", str(root), "--model", desk.script(BIG, "Done.", name=f"{name}.json")
    )
    assert done.returncode == 0, done.stderr
    return root


def names(desk: Desk) -> list[str]:
    return sorted(str(row["session"]) for row in desk.json("ls", "--json"))


def test_rm_removes_settled_sessions_and_gc_frees_their_room(desk: Desk) -> None:
    roots = [settled(desk, name) for name in ("a", "b", "c")]
    done = desk.perdure("rm", "a", "b")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["session a is removed", "session b is removed", "perdure gc frees the room that it took"]
    assert names(desk) == ["c"]
    assert all((root / "big").stat().st_size == 400_000 for root in roots)
    before = (desk.home / "chunks.db").stat().st_size
    rehearsed = desk.perdure("gc", "--dry-run").stdout
    assert rehearsed.startswith("would collect ") and "kB" in rehearsed
    assert (desk.home / "chunks.db").stat().st_size == before
    freed = desk.perdure("gc").stdout
    assert freed.startswith("collected ") and "the disk got" in freed
    assert desk.perdure("gc", "--dry-run").stdout == "would collect 0 chunks, 0 bytes\n"
    assert desk.perdure("verify", "c").returncode == 0
    gone = desk.perdure("rm", "a")
    assert gone.returncode == 2 and "there is no session 'a'" in gone.stderr


def test_rm_refuses_a_session_at_work_unless_it_is_forced(desk: Desk) -> None:
    model = desk.script(turn("", bash("touch begun; sleep 50")), "Done.")
    running = desk.start("run", "go", "--session", "s", "--model", model)
    try:
        until((desk.project / "begun").exists)
        refused = desk.perdure("rm", "s")
        assert refused.returncode == 1
        assert f"session s is driven by process {running.pid}; remove it all the same with --force" in refused.stderr
        forced = desk.perdure("rm", "s", "--force")
        assert forced.returncode == 0, forced.stderr
        assert running.wait(timeout=20) != 0
    finally:
        running.kill()
        running.communicate()
    assert names(desk) == []
    assert not (desk.home / "spaces" / "s").exists()


def test_old_sessions_are_named_before_they_go(desk: Desk) -> None:
    for name in ("a", "b", "c"):
        settled(desk, name)
    desk.perdure("submit", "c", "more")
    told = desk.perdure("gc", "--keep-bytes", "900kB", "--dry-run")
    assert [line.split(" (")[0] for line in told.stdout.splitlines()[:-1]] == ["would remove session a"], told.stderr
    assert 400 <= int(re.findall(r", (\d+) kB\)", told.stdout)[0]) < 420, told.stdout
    assert names(desk) == ["a", "b", "c"]
    assert desk.perdure("gc", "--older-than", "1h").stdout.count("session") == 0
    assert "removed session a " in desk.perdure("gc", "--keep-bytes", "900kB").stdout
    assert "removed session b " in desk.perdure("gc", "--older-than", "0s").stdout
    assert names(desk) == ["c"], "it has work open"


@pytest.mark.parametrize(
    ("option", "value"), [("--older-than", "30"), ("--older-than", "soon"), ("--keep-bytes", "5 apples"), ("--keep-bytes", "-1")]
)
def test_what_is_no_limit_is_refused(desk: Desk, option: str, value: str) -> None:
    refused = desk.perdure("gc", option, value)
    assert refused.returncode == 2
    assert f"'{value}' is no " in refused.stderr and "write it as" in refused.stderr


def test_doctor_says_what_takes_room(desk: Desk) -> None:
    settled(desk, "a")
    desk.perdure("rm", "a")
    aside = desk.home / "spaces" / "z" / "workspace" / "quarantine" / "1"
    aside.mkdir(parents=True)
    (aside / "large").write_bytes(b"x" * 5000)
    found = json.loads(desk.perdure("doctor", "--json").stdout)
    assert "chunks.db" in found["store"]["value"] and "log.db" in found["store"]["value"]
    assert "kB that no session needs" in found["garbage"]["value"]
    assert found["moved aside"]["value"] == "1 file too large to be stored, 5.0 kB"
    assert found["spaces"]["value"].startswith("1 state folder: ")


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 bytes"), (1, "1 byte"), (999, "999 bytes"), (1500, "1.5 kB"), (123_456_789, "123 MB"), (5e12, "5.0 TB")],
)
def test_sizes_are_shown_as_people_read_them(size: float, shown: str) -> None:
    assert shown_bytes(size) == shown
