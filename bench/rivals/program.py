"""What all of them have in common: the tool that is killed, the notes of what the model was sent, and the command line."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

AGAIN, EFFECTS, FOUND, SEEN, TREE = "again", "effects", "found", "seen", "tree"
BEFORE, HALF = "as it was", "half written"


def deploy(folder: Path) -> str:
    """An effect outside of the tree, half of a change in the tree, then no end; when it is run again it notes what it found and ends."""
    if (folder / AGAIN).exists():
        (folder / FOUND).write_text((folder / TREE / "file").read_text())
    with open(folder / EFFECTS, "a") as file:
        file.write("effect\n")
        file.flush()
        os.fsync(file.fileno())
    (folder / TREE / "file").write_text(HALF)
    while not (folder / AGAIN).exists():
        time.sleep(0.05)
    return "deployed"


def note(folder: Path, messages: object) -> None:
    """What the model was sent last."""
    (folder / SEEN).write_text(str(messages))


def main(crash: Callable[[Path], str], turns: Callable[[Path, int], list[float]]) -> None:
    """`turns` gives the instants at which its tool ran, in seconds."""
    folder = Path(sys.argv[2])
    if sys.argv[1] == "crash":
        print(crash(folder), flush=True)
    else:
        marks = turns(folder, int(sys.argv[3]))
        print(json.dumps([(after - before) * 1000 for before, after in pairwise(marks)]), flush=True)
    os._exit(0)  # none of them is asked to clean up
