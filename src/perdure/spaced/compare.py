"""The workspace beside the image that it should be: every path that differs, and whose change it is.

Both trees are walked together, level by level, descending only where digests differ, so that one request brings the nodes of a whole level. Ctimes
of the parents travel down with the walk.
"""

from __future__ import annotations

import os
from typing import NamedTuple, Optional, Tuple

from perdure.spaced.index import CTIME, MTIME, Folder, StatKey
from perdure.spaced.target import Source
from perdure.spaced.tree import DIRECTORY, Payload, decode_payload, time_payload
from perdure.spaced.window import Window, judge


class Difference(NamedTuple):
    """A path that is not as wanted.

    `key` is what is there now (None: nothing), `held` its payload (empty for a directory and for what no image holds); `want` is the payload it
    should have (None: nothing) and `mtime_ns` its time. `verdict` says whose change it is.
    """

    path: str
    key: Optional[StatKey]
    held: Payload
    want: Optional[Payload]
    mtime_ns: int
    verdict: str


class _Pair(NamedTuple):
    """A directory on both sides: the folder (None: not there), the wanted digests (None: not wanted), and ctimes of the folders above.

    `nearest_ns` is the ctime of the nearest directory that is there, `above_ns` are those of all that are, below the root.
    """

    path: str
    folder: Optional[Folder]
    want: Optional[tuple[bytes, bytes]]
    nearest_ns: int
    above_ns: Tuple[int, ...]


class Comparison:
    def __init__(self, source: Source, window: Optional[Window], not_held: dict[str, StatKey]) -> None:
        self.differences: list[Difference] = []
        self._source, self._window, self._not_held = source, window, not_held
        self._not_held_in: dict[str, set[str]] = {}
        for path in not_held:
            self._not_held_in.setdefault(path.rpartition("/")[0], set()).add(path.rpartition("/")[2])

    def run(self, root: Folder, target: dict[str, str]) -> list[Difference]:
        want = (bytes.fromhex(target["tree"]), bytes.fromhex(target["times"]))
        level = [_Pair("", root, want, root.key[CTIME], ())]
        while level:
            trees = self._source.directories(pair.want[0] for pair in level if pair.want and _differs(pair.folder, pair.want))
            times = self._source.directories(pair.want[1] for pair in level if pair.want and _differs(pair.folder, pair.want))
            below: list[_Pair] = []
            for pair in level:
                if pair.want is None or _differs(pair.folder, pair.want):
                    self._directory(pair, trees, times, below)
            level = below
        return self.differences

    def _directory(
        self, pair: _Pair, trees: dict[bytes, dict[bytes, Payload]], times: dict[bytes, dict[bytes, Payload]], below: list[_Pair]
    ) -> None:
        wanted = {os.fsdecode(name): payload for name, payload in trees[pair.want[0]].items()} if pair.want else {}
        stamps = {os.fsdecode(name): payload for name, payload in times[pair.want[1]].items()} if pair.want else {}
        folder = pair.folder
        names = set(wanted)
        if folder is not None:
            names |= folder.keys.keys() | folder.folders.keys()
        if pair.want is None:  # elsewhere a socket or FIFO is let alone: who knows whether it was there before
            names |= self._not_held_in.get(pair.path, set())
        for name in sorted(names):
            if folder is not None and name in folder.held and _same(folder, name, wanted.get(name), stamps.get(name)):
                continue
            path = pair.path + "/" + name if pair.path else name
            now = folder.folders.get(name) if folder is not None else None
            self._name(pair, path, name, now, wanted.get(name), stamps.get(name), below)

    def _name(
        self,
        pair: _Pair,
        path: str,
        name: str,
        now: Optional[Folder],
        want: Optional[Payload],
        stamp: Optional[Payload],
        below: list[_Pair],
    ) -> None:
        folder = pair.folder
        key = now.key if now is not None else folder.keys.get(name) if folder is not None else None
        held = folder.held.get(name, b"") if folder is not None and now is None else b""
        if key is None:
            key = self._not_held.get(path)
        own = key[CTIME] if key is not None else pair.nearest_ns
        verdict = judge(self._window, own, pair.above_ns)
        wanted = decode_payload(want) if want is not None else None
        mtime = decode_payload(stamp, times=True).mtime_ns if stamp is not None and stamp[:1] != DIRECTORY else 0
        is_directory = wanted is not None and wanted.kind == DIRECTORY
        if now is not None and wanted is not None and is_directory:
            same = now.mode == wanted.mode
        else:
            same = want == held and now is None and key is not None and key[MTIME] == mtime
        if not same:
            self.differences.append(Difference(path, key, held, want, mtime, verdict))
        if now is not None or is_directory:
            digests = (
                (wanted.digest, decode_payload(stamp or b"", times=True).digest) if wanted is not None and is_directory else None
            )
            nearest = now.key[CTIME] if now is not None else pair.nearest_ns
            above = (*pair.above_ns, now.key[CTIME]) if now is not None else pair.above_ns
            below.append(_Pair(path, now, digests, nearest, above))


def _same(folder: Folder, name: str, want: Optional[Payload], stamp: Optional[Payload]) -> bool:
    return folder.held[name] == want and time_payload(folder.keys[name][MTIME]) == stamp


def _differs(folder: Optional[Folder], want: tuple[bytes, bytes]) -> bool:
    return folder is None or (folder.tree, folder.times) != want
