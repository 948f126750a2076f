"""Hands in a directory that no Space holds: what is in the way is named as what it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.space.directory import Directory, InTheWay


def test_a_file_that_went_after_it_was_looked_at_has_no_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")
    with Directory(tmp_path) as here:
        seen = here.look("a")
        assert here.content("a", seen, 10) == b"a"
        (tmp_path / "a").unlink()
        assert here.content("a", seen, 10) is None


def test_what_stands_in_the_way_is_told_from_what_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a")
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "closed").mkdir(mode=0)
    tmp_path.chmod(0o755)
    with Directory(tmp_path) as here:
        for path in ("file/below", "link/below"):
            with pytest.raises(InTheWay, match="another thing stands where a directory should be"):
                here.look(path)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(InTheWay, match=r"it can't be read \(Permission denied\)"):
                here.look("closed/below")
        finally:
            os.seteuid(user)
