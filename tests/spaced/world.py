"""A workspace and a log's chunk store beside it, for tests of the supervisor's view of files."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure.spaced.index import file_clock_ns
from perdure.spaced.plan import make as make_plan
from perdure.spaced.restore import carry_out
from perdure.spaced.workspace import Workspace

Image = dict[str, Any]


class World:
    def __init__(self, tmp_path: Path, *, own: bool = False, **settings: Any) -> None:
        self.root = tmp_path / "root"
        self.root.mkdir(exist_ok=True)
        self.state = tmp_path / "state"
        self.state.mkdir(exist_ok=True)
        self.own, self.settings = own, settings
        self.store: dict[str, bytes] = {}
        self.base: Image | None = None
        self.workspace = self.open()

    def open(self) -> Workspace:
        """A new supervisor's view of the same workspace and state folder."""
        fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY)
        return Workspace(fd, str(self.root), str(self.state), own=self.own, **self.settings)

    def put(self, path: str, content: str | bytes = "", mode: int | None = None) -> Path:
        at = self.root / path
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(content if isinstance(content, bytes) else content.encode())
        if mode is not None:
            at.chmod(mode)
        return at

    def take(self, chunks: dict[str, int]) -> None:
        """What a driver does with the chunks that it is told of."""
        for digest, size in chunks.items():
            data = self.workspace.staging.read(digest)
            assert len(data) == size
            assert hashlib.sha256(data).hexdigest() == digest
            self.store[digest] = data

    def commit(self) -> Image:
        """Capture, store, settle: the image is the new base."""
        capture = self.workspace.capture(self.base)
        self.take(capture["chunks"])
        self.base = capture["image"]
        self.workspace.staging.settle(self.base)
        return self.base

    def fetch(self, digests: list[str]) -> dict[str, bytes]:
        return {digest: self.store[digest] for digest in digests if digest in self.store}

    def plan(self, window: dict[str, Any] | None = None, known: set[str] = frozenset()) -> dict[str, Any]:  # type: ignore[assignment]
        assert self.base is not None
        plan = make_plan(self.workspace, self.base, self.fetch, window, known, never)
        self.take(plan["chunks"])
        return plan

    def restore(
        self, plan: dict[str, Any], also: tuple[str, ...] = (), cancelled: Callable[[], bool] | None = None
    ) -> dict[str, Any]:
        assert self.base is not None
        return carry_out(self.workspace, self.base, self.fetch, plan, also, cancelled or never)

    def undo(self, window: dict[str, Any] | None = None) -> dict[str, Any]:
        return self.restore(self.plan(window))

    def content(self) -> dict[str, Any]:
        """Every path with type, mode, content and time, read without the supervisor."""
        out: dict[str, Any] = {}
        for at, directories, files in os.walk(self.root):
            for name in (*directories, *files):
                path = Path(at, name)
                status = os.lstat(path)
                mode = stat.S_IMODE(status.st_mode)
                what: Any = "directory"
                if stat.S_ISLNK(status.st_mode):
                    what, mode = str(path.readlink()), 0
                elif stat.S_ISREG(status.st_mode):
                    what = path.read_bytes()
                time_ns = None if what == "directory" else status.st_mtime_ns
                out[os.path.relpath(path, self.root)] = (what, mode, time_ns)
        return out


def never() -> bool:
    return False


def now_ns() -> int:
    """An instant that lies after every stamp given before it, and not after any given later.

    File systems stamp with a clock that may lag by two ticks, or with the fine one where somebody looks: wait until both have passed.
    """
    precise = time.time_ns()
    while (coarse := file_clock_ns()) <= precise:
        time.sleep(0.0005)
    return coarse


class window:
    """`with window() as w: …` covers what happens inside."""

    def __init__(self, *, proven: bool = True) -> None:
        self._proven = proven

    def __enter__(self) -> dict[str, Any]:
        self.told: dict[str, Any] = {"start_ns": now_ns(), "proven": self._proven}
        return self.told

    def __exit__(self, *exception: object) -> None:
        self.told["end_ns"] = time.time_ns()
        now_ns()
