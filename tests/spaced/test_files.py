"""What a model can do to files, and what it is told when it can't."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from perdure.spaced import files, steps
from perdure.spaced.errors import FencedError, OpError
from tests.spaced.world import World, never


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def run(world: World, **op: Any) -> dict[str, Any]:
    return files.run(world.workspace, op, never)


def refused(world: World, **op: Any) -> str:
    before = world.content()
    with pytest.raises(OpError) as error:
        run(world, **op)
    assert world.content() == before
    return str(error.value)


def edit(world: World, path: str, *pairs: tuple[str, str], **more: Any) -> dict[str, Any]:
    return run(world, type="edit", path=path, edits=[{"old_text": old, "new_text": new} for old, new in pairs], **more)


def edit_refused(world: World, path: str, *pairs: tuple[str, str], **more: Any) -> str:
    return refused(world, type="edit", path=path, edits=[{"old_text": old, "new_text": new} for old, new in pairs], **more)


# ---- read --------------------------------------------------------------------------------------------------------------------


def test_read_gives_the_text_and_its_digest(world: World) -> None:
    world.put("dir/file", "one\ntwo\n")
    result = run(world, type="read", path="dir/file")
    assert result["text"] == "one\ntwo\n"
    assert result["seen"] == {"dir/file": hashlib.sha256(b"one\ntwo\n").hexdigest()}


def test_read_says_how_to_see_more(world: World) -> None:
    world.put("file", "".join(f"line {n}\n" for n in range(1, 101)))
    result = run(world, type="read", path="file", offset=10, limit=3)
    assert result["text"] == "line 10\nline 11\nline 12\n[lines 10-12 of 100; read on with offset=13]"
    assert result["truncated"]
    assert run(world, type="read", path="file", offset=99)["text"] == "line 99\nline 100\n"
    assert "there is no line 101" in refused(world, type="read", path="file", offset=101)


def test_read_is_bounded_in_bytes(world: World) -> None:
    world.put("file", ("x" * 999 + "\n") * 1000)
    text = run(world, type="read", path="file")["text"]
    assert len(text) < 52_000
    assert text.endswith("[lines 1-51 of 1000; read on with offset=52]")
    world.put("long", "y" * 100_000)
    text = run(world, type="read", path="long")["text"]
    assert len(text) < 52_000
    assert "line 1 has 100000 characters" in text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "[file is empty]"),
        (b"no end", "no end\n"),
        (b"a\r\nb\r\n", "a\nb\n"),
        ("\ufeffmark\n".encode(), "mark\n"),
        ("ünïcode\n".encode("utf-16"), "ünïcode\n"),
        (b"caf\xe9\n", "café\n"),
    ],
)
def test_read_understands_encodings(world: World, data: bytes, text: str) -> None:
    world.put("file", data)
    assert run(world, type="read", path="file")["text"] == text


def test_read_refuses_what_is_no_text_and_never_blocks(world: World, tmp_path: Path) -> None:
    world.put("binary", b"\x7fELF\0\0")
    result = run(world, type="read", path="binary")
    assert not result["ok"]
    assert "binary file of 6 bytes" in result["text"]
    os.mkfifo(world.root / "fifo")
    assert "FIFO" in refused(world, type="read", path="fifo")
    (world.root / "dir").mkdir()
    assert "use list" in refused(world, type="read", path="dir")
    world.put("main.py", "")
    assert "did you mean main.py" in refused(world, type="read", path="mian.py")
    assert "no directory nowhere" in refused(world, type="read", path="nowhere/file")
    assert "is a file, not a directory" in refused(world, type="read", path="binary/file")


# ---- paths -------------------------------------------------------------------------------------------------------------------


def test_paths_stay_inside_the_root(world: World, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    world.put("dir/file", "inside")
    assert run(world, type="read", path=str(world.root / "dir/file"))["text"] == "inside\n"
    assert run(world, type="read", path="dir/../dir/./file")["text"] == "inside\n"
    (world.root / "relative").symlink_to("../secret")
    (world.root / "absolute").symlink_to(tmp_path / "secret")
    (world.root / "up").symlink_to("..")
    (world.root / "loop").symlink_to("loop")
    for path in (
        "../secret",
        str(tmp_path / "secret"),
        "relative",
        "absolute",
        "up/secret",
        "dir/../../secret",
        str(world.root) + "x",
    ):
        assert "outside the workspace" in refused(world, type="read", path=path), path
        assert "outside the workspace" in refused(world, type="write", path=path, content="x"), path
    assert "too many symbolic links" in refused(world, type="read", path="loop")
    assert (tmp_path / "secret").read_text() == "secret"
    for path in ("", "a\0b"):
        assert "not a path" in refused(world, type="read", path=path)


def test_links_inside_the_root_are_followed_and_kept(world: World) -> None:
    world.put("real/file", "old")
    (world.root / "link").symlink_to("real/file")
    (world.root / "absolute").symlink_to(world.root / "real")
    run(world, type="write", path="link", content="new")
    assert (world.root / "link").is_symlink()
    assert (world.root / "real/file").read_text() == "new"
    assert edit(world, "absolute/file", ("new", "newer"))["seen"].keys() == {"absolute/file", "real/file"}
    (world.root / "dangling").symlink_to("real/made")
    run(world, type="write", path="dangling", content="made")
    assert (world.root / "real/made").read_text() == "made"


# ---- write -------------------------------------------------------------------------------------------------------------------


def test_write_makes_parents_and_keeps_modes(world: World) -> None:
    umask = os.umask(0o027)
    try:
        result = run(world, type="write", path="new/dirs/file", content="ü\r\n")
    finally:
        os.umask(umask)
    path = world.root / "new/dirs/file"
    assert path.read_bytes() == "ü\r\n".encode()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert result["seen"] == {"new/dirs/file": hashlib.sha256("ü\r\n".encode()).hexdigest()}
    path.chmod(0o4751)
    run(world, type="write", path="new/dirs/file", content="again")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("again", 0o4751)
    assert sorted(os.listdir(path.parent)) == ["file"]


def test_write_keeps_hard_links_one_file(world: World) -> None:
    world.put("one", "a long old content")
    os.link(world.root / "one", world.root / "two")
    run(world, type="write", path="one", content="new")
    assert (world.root / "two").read_text() == "new"
    assert (world.root / "two").stat().st_nlink == 2


def test_a_reader_never_sees_half_a_write(world: World) -> None:
    world.put("file", "old")
    with open(world.root / "file") as reader:
        run(world, type="write", path="file", content="new")
        assert reader.read() == "old"


def test_what_changed_since_it_was_read_is_not_overwritten(world: World) -> None:
    world.put("file", "seen")
    seen = run(world, type="read", path="file")["seen"]["file"]
    run(world, type="write", path="file", content="mine", expect=seen)
    for op in ({"type": "write", "content": "x"}, {"type": "edit", "edits": [{"old_text": "m", "new_text": "x"}]}):
        assert "changed since it was last read; read it again" in refused(world, path="file", expect=seen, **op)
    (world.root / "file").unlink()
    assert "changed since" in refused(world, type="write", path="file", content="x", expect=seen)


@pytest.mark.parametrize("there", [True, False])
def test_what_is_saved_while_a_write_is_under_way_is_not_overwritten(
    world: World, there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if there:
        world.put("file", "before")

    def person(step: str) -> None:
        if step == "file written":
            world.put("editor", "mine").rename(world.root / "file")

    monkeypatch.setattr(steps, "_hook", person)
    with pytest.raises(OpError, match="somebody else saved file"):
        run(world, type="write", path="file", content="x")
    assert {name: (world.root / name).read_text() for name in os.listdir(world.root)} == {"file": "mine"}


def test_write_refuses_directories_and_special_files(world: World) -> None:
    (world.root / "dir").mkdir()
    os.mkfifo(world.root / "fifo")
    assert "is a directory" in refused(world, type="write", path="dir", content="")
    assert "is a directory" in refused(world, type="write", path=".", content="")
    assert "FIFO" in refused(world, type="write", path="fifo", content="")


def test_a_write_that_was_overtaken_changes_nothing_more(world: World) -> None:
    world.put("file", "old")
    for allowed in range(3):
        looks = iter([False] * allowed)
        with pytest.raises(FencedError):
            files.run(world.workspace, {"type": "write", "path": "file", "content": "x"}, lambda looks=looks: next(looks, True))
            raise FencedError  # the last round gets through
    assert set(world.content()) == {"file"}


# ---- edit --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "pairs", "after"),
    [
        (b"a b c\n", [("b", "B")], b"a B c\n"),
        (b"a\nb\nc\n", [("c", "C"), ("a", "A")], b"A\nb\nC\n"),
        (b"a\nb\nc\n", [("b\n", "")], b"a\nc\n"),
        (b"a\r\nb\r\nc\r\n", [("a\nb", "1\n2\n3")], b"1\r\n2\r\n3\r\nc\r\n"),
        (b"a\r\nb\r\nc\r\n", [("a\r\nb", "1\r\n2")], b"1\r\n2\r\nc\r\n"),
        (b"a\nb\nc\r\n", [("b", "1\n2")], b"a\n1\n2\nc\r\n"),
        (b"a\r\nb\r\nc\n", [("a", "1\n2")], b"1\r\n2\r\nb\r\nc\n"),
        (b"a\nb\r\nc\n", [("a\nb\nc", "1\n2\n3\n4")], b"1\n2\r\n3\r\n4\n"),
        (b"x\r\ny\n", [("y", "z")], b"x\r\nz\n"),
        ("\ufeffmark\n".encode(), [("mark", "märk")], "\ufeffmärk\n".encode()),
        ("\ufeffwide\r\n".encode("utf-16-le"), [("wide", "wïde\nx")], "\ufeffwïde\r\nx\r\n".encode("utf-16-le")),
        ("\ufeffwide\n".encode("utf-16-be"), [("wide", "w")], "\ufeffw\n".encode("utf-16-be")),
        (b"caf\xe9\n", [("café", "cafés")], b"caf\xe9s\n"),
        (b"no end", [("end", "end\nat all")], b"no end\nat all"),
        (b"aXbXc", [("aX", "1"), ("Xc", "2")], b"1b2"),
    ],
)
def test_edit_changes_what_it_means_and_nothing_else(
    world: World, before: bytes, pairs: list[tuple[str, str]], after: bytes
) -> None:
    world.put("file", before, 0o751)
    result = edit(world, "file", *pairs)
    assert (world.root / "file").read_bytes() == after
    assert stat.S_IMODE((world.root / "file").stat().st_mode) == 0o751
    assert result["seen"]["file"] == hashlib.sha256(after).hexdigest()


def test_edit_says_what_is_wrong_and_changes_nothing(world: World) -> None:
    world.put("file", "one\n  two\none\nthree\n")
    assert "was not found in file" in edit_refused(world, "file", ("four", "4"))
    assert "Line 2 is the same but for blanks" in edit_refused(world, "file", ("\ttwo\n", "2"))
    assert "occurs 2 times in file (lines 1, 3)" in edit_refused(world, "file", ("one", "1"))
    assert "old_text of edit 2 was not found" in edit_refused(world, "file", ("three", "3"), ("four", "4"))
    assert "edits 1 and 2 overlap" in edit_refused(world, "file", ("two\none", "x"), ("one\nthree", "y"))
    assert "is empty" in edit_refused(world, "file", ("", "x"))
    assert "make no difference" in edit_refused(world, "file", ("three", "three"))
    assert "no edits" in edit_refused(world, "file")
    world.put("same", "aaa")
    assert "occurs 2 times" in edit_refused(world, "same", ("aa", "b"))
    world.put("latin", b"caf\xe9\n")
    assert "encoded in latin-1, which has no '€'" in edit_refused(world, "latin", ("caf", "€"))
    world.put("binary", b"a\0b")
    assert "binary" in edit_refused(world, "binary", ("a", "b"))
    assert "there is no file" in edit_refused(world, "missing", ("a", "b"))


def test_what_a_killed_write_left_is_swept_by_the_next(world: World) -> None:
    world.put("dir/.perdure-0123456789abcdef.tmp", "half")
    base = world.commit()
    run(world, type="write", path="other", content="x")
    assert set(world.content()) == {"dir", "other"}
    assert world.workspace.capture(base)["changed"] == ["other"]


# ---- list --------------------------------------------------------------------------------------------------------------------


def test_list_marks_what_is_what(world: World) -> None:
    world.put("b/deep/file", "12345")
    world.put("a", "x")
    (world.root / "link").symlink_to("/somewhere")
    os.mkfifo(world.root / "fifo")
    assert run(world, type="list")["text"] == "a  1 bytes\nb/\nfifo  (not a file)\nlink -> /somewhere\n"
    assert run(world, type="list", path="b", depth=2)["text"] == "deep/\ndeep/file  5 bytes\n"
    assert run(world, type="list", path="b/deep")["text"] == "file  5 bytes\n"


def test_list_is_bounded(world: World) -> None:
    for number in range(30):
        world.put(f"dir/{number:02}", "")
    result = run(world, type="list", path=".", depth=3, limit=10)
    assert result["truncated"]
    assert result["text"].count("\n") == 11
    (world.root / "empty").mkdir()
    assert run(world, type="list", path="empty")["text"] == "[empty directory]"
    assert "there is no nothing" in refused(world, type="list", path="nothing")
    assert "use read" in refused(world, type="list", path="dir/01")
