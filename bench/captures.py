"""What a capture costs after a call that rewrites three files and deletes one, by both engines and by the technique that others use.

That technique finds, stats and hashes every file (`find`, `stat`, `sha256sum`), once; who compares two states does it twice. Both engines look at one
and the same tree, in the supervisor's own code, in this process. Beside it: the first capture, the undo of such a call, and a lost tree made anew.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.figure import Figure, median
from perdure.spaced.engine import SCAN, WATCH
from perdure.spaced.plan import make as make_plan
from perdure.spaced.restore import carry_out
from perdure.spaced.workspace import Workspace

NESTED, FLAT = "nested", "in one directory"
TREES = ((1_000, NESTED), (10_000, NESTED), (100_000, NESTED), (100_000, FLAT))
REPEATS = 11
FILE_BYTES = 1024
PEER = "find . -type f -print0 | xargs -0 stat -c '%n %s %Y %a' && find . -type f -print0 | xargs -0 sha256sum"


def measure(folder: Path, *, trees: Sequence[tuple[int, str]] = TREES, repeats: int = REPEATS) -> Iterator[Figure]:
    for count, shape in trees:
        place = folder / f"{count}-{shape == FLAT}"
        yield from _tree(place, count, shape, repeats)
        shutil.rmtree(place)


def _tree(place: Path, count: int, shape: str, repeats: int) -> Iterator[Figure]:
    root = place / "root"
    paths = _make(root, count, shape)
    what = f"{count:,} files {shape}"
    engines = {name: _View(root, place / name, name) for name in (SCAN, WATCH)}
    try:
        for name, view in engines.items():
            yield Figure("captures", f"{what}: first capture, {name}", _ms(view.commit), "ms")
        took: dict[str, tuple[float, ...]] = dict.fromkeys((*engines, "peer"), ())
        for n in range(repeats):
            _call(paths, n)
            for name, view in engines.items():
                took[name] = (*took[name], _ms(view.commit))
            if n < max(1, repeats // 3):
                took["peer"] = (*took["peer"], _ms(lambda: _peer(root)))
        peer_ms = median(took["peer"])
        yield Figure("captures", f"{what}: find + stat + sha256sum", peer_ms, "ms", samples=took["peer"])
        for name in engines:
            value, largest = median(took[name]), count >= 100_000 and name == WATCH
            yield Figure(
                "captures",
                f"{what}: capture of a call, {name}",
                value,
                "ms",
                "<= 2, >= 1,000 × less" if largest else "",
                took[name],
                peer_ms / value,
                "less than find + stat + sha256sum",
                engines[name].workspace.engine.why if name == WATCH else "",
            )
        yield from _undoing(what, engines[WATCH], paths, repeats)
        if shape == NESTED:
            _empty(root)
            yield Figure("captures", f"{what}: all made anew", _ms(engines[WATCH].undo) / 1000, "s")
    finally:
        for view in engines.values():
            view.close()


def _undoing(what: str, view: _View, paths: list[Path], repeats: int) -> Iterator[Figure]:
    undone = []
    for n in range(max(1, repeats // 3)):
        _call(paths, repeats + n)
        undone.append(_ms(view.undo))
    yield Figure("captures", f"{what}: undo of a call", median(undone), "ms", samples=tuple(undone))


def _empty(root: Path) -> None:
    for path in root.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


class _View:
    """One engine's view of the tree; that of `watch` keeps the chunks too, to undo from."""

    def __init__(self, root: Path, state: Path, engine: str) -> None:
        state.mkdir()
        self._keeps = engine == WATCH
        self._fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
        self.workspace = Workspace(self._fd, str(root), str(state), own=True, capture=engine)
        self._base: dict[str, Any] | None = None
        self._chunks: dict[str, bytes] = {}

    def commit(self) -> Callable[[], None]:
        """Capture; what it gives stores the chunks as a driver would."""
        capture = self.workspace.capture(self._base)

        def store() -> None:
            self._base = capture["image"]
            if self._keeps:
                self._chunks |= {digest: self.workspace.staging.read(digest) for digest in capture["chunks"]}
            self.workspace.staging.settle(self._base)

        return store

    def undo(self) -> Callable[[], None]:
        assert self._base is not None
        plan = make_plan(self.workspace, self._base, self._fetch, None, set(), _never)
        restored = carry_out(self.workspace, self._base, self._fetch, plan, (), _never)
        assert restored["capture"]["image"]["tree"] == self._base["tree"], "the undo did not give the image"
        return lambda: self.workspace.staging.settle(self._base)

    def close(self) -> None:
        self.workspace.engine.close()
        os.close(self._fd)

    def _fetch(self, digests: list[str]) -> dict[str, bytes]:
        return {digest: self._chunks[digest] for digest in digests if digest in self._chunks}


def _ms(work: Callable[[], Callable[[], None] | None]) -> float:
    """What `work` took; what it gives is done afterwards, and not timed."""
    began = time.perf_counter()
    after = work()
    took = (time.perf_counter() - began) * 1000
    if after is not None:
        after()
    return took


def _make(root: Path, count: int, shape: str) -> list[Path]:
    dice = random.Random(count)
    paths = []
    for n in range(count):
        path = root / f"f{n}" if shape == FLAT else root / f"d{n // 1000}" / f"e{n // 10 % 100}" / f"f{n}"
        if n == 0 or (shape == NESTED and n % 10 == 0):
            path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dice.randbytes(FILE_BYTES))
        paths.append(path)
    return paths


def _call(paths: list[Path], n: int) -> None:
    """Three files rewritten and one deleted, far apart; never one that is gone."""
    quarter = len(paths) // 4
    for k in range(3):
        paths[k * quarter + n].write_bytes(os.urandom(FILE_BYTES))
    paths[3 * quarter + n].unlink()


def _peer(root: Path) -> None:
    subprocess.run(["bash", "-c", PEER], cwd=root, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)


def _never() -> bool:
    return False
