"""People at work in the same directory: what they do, and what has to lie there afterwards.

Each deed has a folder of its own, so that what must be there follows from when it was done alone; some deeds go into the session's own folders. Every deed
brings a token that is nowhere else: while it can be found, nobody's work was lost.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Literal

from msgspec import Struct

from perdure.chaos.files import FILE, FOLDER, LINK, Files, Node, folder, text

HOME = "people"
BESIDE = "person-"
"""How the names of files begin that people put beside a call's own."""

Kind = Literal["edit", "save", "add", "delete", "move", "replace", "link", "mode", "shared", "beside", "inside"]
OWN: tuple[Kind, ...] = ("edit", "save", "add", "delete", "move", "replace", "link", "mode")
THEIRS: tuple[Kind, ...] = ("shared", "beside", "inside")
THEIRS_PART = 0.3
DEEDS = 8


class Deed(Struct, frozen=True):
    """`call` is the index of the call in whose folder it takes place, where it does."""

    number: int
    kind: Kind
    call: int = 0

    @property
    def token(self) -> str:
        return f"<person {self.number}>"

    @property
    def folder(self) -> str:
        return f"{HOME}/{self.number}"

    @property
    def writes(self) -> bool:
        """Whether its token is written anywhere."""
        return self.kind not in ("delete", "move", "link", "mode")


class Done(Struct, frozen=True):
    """A deed, and the wall clock in ns before and after it. `failed`: it could not be done, since the place was not there."""

    deed: Deed
    from_ns: int
    to_ns: int
    failed: bool = False


def draw(rng: random.Random, calls: int) -> tuple[Deed, ...]:
    return tuple(
        Deed(n, rng.choice(THEIRS) if rng.random() < THEIRS_PART else rng.choice(OWN), rng.randrange(calls)) for n in range(DEEDS)
    )


def given(deed: Deed) -> Files:
    """What lies in its folder before."""
    at = deed.folder
    return {
        at: folder(),
        f"{at}/list.txt": text("bread\n"),
        f"{at}/here": folder(),
        f"{at}/here/deep.txt": text(f"deep {deed.number}\n"),
    }


def done(deed: Deed) -> Files:
    """What lies there afterwards."""
    at, files = deed.folder, given(deed)
    match deed.kind:
        case "edit" | "save":
            files[f"{at}/list.txt"] = text(f"bread\n{deed.token}\n")
        case "add":
            files[f"{at}/new"] = folder()
            files[f"{at}/new/idea.txt"] = text(f"{deed.token}\n")
        case "delete":
            del files[f"{at}/list.txt"]
        case "move":
            files[f"{at}/there"] = files.pop(f"{at}/here")
            files[f"{at}/there/deep.txt"] = files.pop(f"{at}/here/deep.txt")
        case "replace":
            files[f"{at}/list.txt"] = Node(FOLDER, b"", 0o755)
            files[f"{at}/list.txt/inside.txt"] = text(f"{deed.token}\n")
        case "link":
            files[f"{at}/link"] = Node(LINK, b"list.txt")
        case "mode":
            files[f"{at}/list.txt"] = Node(FILE, b"bread\n", 0o600)
        case _:
            pass
    return files


def work(deed: Deed, root: Path) -> Done:
    """Do it. A place that the session has just moved away is left alone."""
    from_ns = time.time_ns()
    try:
        _work(deed, root)
    except FileNotFoundError:
        return Done(deed, from_ns, time.time_ns(), failed=True)
    return Done(deed, from_ns, time.time_ns())


def _work(deed: Deed, root: Path) -> None:
    at, line = root / deed.folder, f"{deed.token}\n"
    match deed.kind:
        case "edit":
            _append(at / "list.txt", line)
        case "save":
            (at / "list.txt.new").write_text("bread\n" + line)
            (at / "list.txt.new").rename(at / "list.txt")
        case "add":
            (at / "new").mkdir()
            (at / "new" / "idea.txt").write_text(line)
        case "delete":
            (at / "list.txt").unlink()
        case "move":
            (at / "here").rename(at / "there")
        case "replace":
            (at / "list.txt").unlink()
            (at / "list.txt").mkdir()
            (at / "list.txt" / "inside.txt").write_text(line)
        case "link":
            (at / "link").symlink_to("list.txt")
        case "mode":
            (at / "list.txt").chmod(0o600)
        case "shared":
            _append(root / "shared" / "log.txt", line)
        case "beside":
            (root / f"c{deed.call}" / f"{BESIDE}{deed.number}.txt").write_text(line)
        case "inside":
            (root / f"c{deed.call}" / "dir" / f"{BESIDE}{deed.number}.txt").write_text(line)


def _append(path: Path, line: str) -> None:
    with open(path, "a") as file:
        file.write(line)
