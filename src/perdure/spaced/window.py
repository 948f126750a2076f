"""Whose change is it? The rule by which an undo takes back the lost call's changes and nobody else's.

A lost call acted between the two ends of its window. Nobody can set a ctime, so a path that differs from the base is the call's only if its own ctime is
not after the end, and it or a parent below the root was changed between the ends (the children of a moved directory keep their ctime; a parent that was
changed later may have been moved or filled by anybody since). A missing path has no ctime; the nearest directory that is still there stands for it.

A window from 0 is a power cut's, which tears what was written before it: there nothing at or above the path may have been changed later.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Optional, Tuple

OURS, EARLIER, LATER = "ours", "earlier", "later"


class Window(NamedTuple):
    """Wall-clock nanoseconds. `proven`: a process saw the end itself, it is not just the last stamp."""

    start_ns: int
    end_ns: int
    proven: bool = True


def window_of(told: Optional[dict[str, Any]]) -> Optional[Window]:
    """From the shape of records.Window."""
    return None if told is None else Window(told["start_ns"], told["end_ns"], told.get("proven", True))


def judge(window: Optional[Window], own_ns: int, above_ns: Tuple[int, ...] = ()) -> str:
    """`own_ns` is the path's ctime, `above_ns` are those of its parents below the root. Without a window everything is ours."""
    if window is None:
        return OURS
    later = any(ns > window.end_ns for ns in above_ns)
    if own_ns > window.end_ns or (later and window.start_ns == 0):
        return LATER
    if any(window.start_ns <= ns <= window.end_ns for ns in (own_ns, *above_ns)):
        return OURS
    return LATER if later else EARLIER
