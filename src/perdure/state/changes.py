"""The paths that the session's own calls changed: what a model has to know of its work however much of the conversation is summed up."""

from __future__ import annotations

from msgspec import Struct

from perdure.record import records as r

KEPT = 500


class Changes(Struct, frozen=True):
    """`paths`, the newest last, map to the call that changed each last, or may have; `forgotten` counts changes whose paths are not here."""

    paths: dict[str, str] = {}
    forgotten: int = 0


def reduce(changes: Changes, stored: r.Stored) -> Changes:
    match stored.body:
        case r.CallFinished(call=call, changed=paths, changed_count=count) if paths or count:
            return _with(changes, call, paths, count)
        case r.WorkspaceChanged(perhaps_by=(*_, call), paths=paths, path_count=count):
            return _with(changes, call, paths, count)
        case _:
            return changes


def _with(changes: Changes, call: str, paths: tuple[str, ...], count: int) -> Changes:
    kept = {path: by for path, by in changes.paths.items() if path not in paths} | dict.fromkeys(paths, call)
    over = max(0, len(kept) - KEPT)
    newest = dict(list(kept.items())[over:])
    return Changes(newest, changes.forgotten + over + max(0, count - len(paths)))
