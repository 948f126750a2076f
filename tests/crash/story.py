"""The scripted session that every campaign kills, and what each of its calls may have changed: the oracle to compare with.

The calls touch different files, so what the workspace must be follows from the calls' outcomes alone, whichever of them were cut off.
`PERDURE_SPACE` and `PERDURE_CAPTURE` say where and how; from a sandbox nothing reaches the counters outside.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

SPACE = os.environ.get("PERDURE_SPACE", "host")
CAPTURE = os.environ.get("PERDURE_CAPTURE", "auto")
HERMETIC = SPACE == "sandbox"

Files = dict[str, str | None]
"""Path to content; None is a directory, empty or not."""

BEFORE: Files = {
    "notes.md": "remember the milk\n",
    "run.sh": "#!/bin/sh\necho run\n",
    "old.txt": "old\n",
    "stale": None,
    "stale/a": "a\n",
    "stale/b": "b\n",
    "empty": None,
}


class Step(NamedTuple):
    """One call. `effect` is its class; `counter` the file outside that it appends a line to."""

    tool: str
    args: dict[str, Any]
    effect: str
    change: Callable[[Files], object] = lambda files: None
    counter: str = ""


def _write(path: str, content: str) -> Step:
    return Step(
        "write", {"path": path, "content": content}, "workspace", lambda files: files.update(_with_parents(path, content))
    )


def _edit(path: str, old: str, new: str) -> Step:
    edits = [{"old_text": old, "new_text": new}]

    def change(files: Files) -> None:
        files[path] = str(files[path]).replace(old, new)

    return Step("edit", {"path": path, "edits": edits}, "workspace", change)


def _bash(command: str, change: Callable[[Files], object], counter: str, **args: Any) -> Step:
    if HERMETIC:
        return Step("bash", {"command": command, **args}, "workspace", change)
    line = f'echo "$PERDURE_CALL_KEY" >> "$EFFECTS/{counter}"; {command}'
    return Step("bash", {"command": line, **args}, "external", change, counter)


def _look(tool: str, **args: Any) -> Step:
    return Step(tool, args, "none")


def _with_parents(path: str, content: str) -> Files:
    folders = [str(folder) for folder in Path(path).parents][:-1]
    return {**dict.fromkeys(folders), path: content}


def _moved(files: Files) -> None:
    for path in ("old.txt", "stale", "stale/a", "stale/b"):
        del files[path]
    files.update({"out": None, "out/new.txt": "old\n"})


TURNS: tuple[tuple[Step, ...], ...] = (
    (_write("src/deep/app.py", "x = 1\n"),),
    (
        _edit("src/deep/app.py", "x = 1", "x = 2"),
        _bash("echo one >> journal.txt", lambda f: f.update({"journal.txt": "one\n"}), "journal"),
    ),
    (
        _look("read", path="notes.md"),
        _look("read", path="src/deep/app.py"),
        _look("list", path="src", depth=3),
        _look("search", pattern="milk"),
    ),
    (_bash("echo begin > slow.txt; sleep 0.4; echo end >> slow.txt", lambda f: f.update({"slow.txt": "begin\nend\n"}), "slow"),),
    (_bash("exec sleep 600", lambda f: None, "background", background=True),),
    (
        Step("charge", {"amount": 5}, "external", counter="charge"),
        Step("publish", {"name": "v1"}, "idempotent", counter="publish"),
    ),
    (
        _bash("mkdir out && mv old.txt out/new.txt && rm -r stale", _moved, "moved"),
        _write("notes.md", "milk bought\n"),
        _look("read", path="notes.md"),
    ),
)
"""Seven turns and fourteen calls; an eighth turn answers."""

ANSWER = "Everything is done: written, moved, charged and published."
AGAIN = "again.txt"
"""What a second submission makes the model write."""


def script(path: Path) -> Path:
    """Write it as a model's script."""
    turns: list[dict[str, Any]] = [
        {"text": f"Turn {n}.", "calls": [{"tool": step.tool, "args": step.args} for step in turn]}
        for n, turn in enumerate(TURNS, 1)
    ]
    again = {"text": "Once more.", "calls": [{"tool": "write", "args": {"path": AGAIN, "content": "again\n"}}]}
    turns += [{"text": ANSWER}, again, {"text": "Done."}]
    path.write_text(json.dumps({"turns": turns}))
    return path


def calls() -> dict[str, Step]:
    """Every call by its id."""
    return {f"main.{n}.{i}": step for n, turn in enumerate(TURNS, 1) for i, step in enumerate(turn)}


def after(outcomes: Mapping[str, str]) -> Files:
    """What the workspace has to be."""
    files = dict(BEFORE)
    for id, step in calls().items():
        if outcomes[id] == "ok":
            step.change(files)
    return files
