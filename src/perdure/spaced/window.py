"""Whose change is it? The rule by which an undo takes back the lost call's changes and nobody else's.

A lost call acted between the two ends of its window. Nobody can set a ctime, so a path that differs from the base is the call's only if its own ctime is
not after the end, and it or a parent below the root was changed since the start (the children of a moved directory keep their ctime). A missing path
has no ctime; the nearest directory that is still there stands for it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

OURS, EARLIER, LATER = "ours", "earlier", "later"


class Window(NamedTuple):
    """Wall-clock nanoseconds. `proven`: a process saw the end itself, it is not just the last stamp."""

    start_ns: int
    end_ns: int
    proven: bool = True


def window_of(told: Optional[dict[str, Any]]) -> Optional[Window]:
    """From the shape of records.Window."""
    return None if told is None else Window(told["start_ns"], told["end_ns"], told.get("proven", True))


def judge(window: Optional[Window], own_ns: int, greatest_ns: int) -> str:
    """`own_ns` is the path's ctime, `greatest_ns` the greatest of it and its parents below the root. Without a window everything is ours."""
    if window is None:
        return OURS
    if own_ns > window.end_ns:
        return LATER
    return OURS if greatest_ns >= window.start_ns else EARLIER
