"""A person at work in the same directory: she edits, adds, deletes and moves files and directories, and wants every byte of it to stay.

She has a folder for each time at which she works, so that what must be there follows from when she worked alone.
"""

from __future__ import annotations

from pathlib import Path

from tests.crash.story import Files


def before(time: str) -> Files:
    """What lies in her folder when the session begins."""
    return {
        time: None,
        f"{time}/list.txt": "bread\n",
        f"{time}/gone.txt": "to be thrown away\n",
        f"{time}/here": None,
        f"{time}/here/deep.txt": "deep\n",
        f"{time}/old": None,
        f"{time}/old/thing.txt": "thing\n",
    }


def after(time: str) -> Files:
    """What lies there when she has worked."""
    return {
        time: None,
        f"{time}/list.txt": "bread\nbutter\n",
        f"{time}/there": None,
        f"{time}/there/deep.txt": "deep\n",
        f"{time}/new": None,
        f"{time}/new/idea.txt": "an idea\n",
        f"{time}/brought": None,
        f"{time}/brought/from home.txt": "older than the session\n",
    }


def pack(root: Path, time: str) -> None:
    """Before the session begins: a folder outside, which she will bring along."""
    (root.parent / f"outside-{time}").mkdir()
    (root.parent / f"outside-{time}" / "from home.txt").write_text("older than the session\n")


def work(root: Path, time: str) -> None:
    folder = root / time
    (root.parent / f"outside-{time}").rename(folder / "brought")
    with open(folder / "list.txt", "a") as file:
        file.write("butter\n")
    (folder / "gone.txt").unlink()
    (folder / "here").rename(folder / "there")
    (folder / "old" / "thing.txt").unlink()
    (folder / "old").rmdir()
    (folder / "new").mkdir()
    (folder / "new" / "idea.txt").write_text("an idea\n")


def paths(time: str) -> set[str]:
    """What of her folder differs afterwards."""
    return {f"{time}/{name}" for name in ("list.txt", "gone.txt", "here", "there", "old", "new", "brought")}
