"""One measured number, and how numbers are condensed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Figure(NamedTuple):
    """`target` is what the design asks for, in words; `samples` are the raw numbers behind `value`, in the same unit.

    `ratio` is this number against another one of the same run, and `against` says which. A `value` of NaN was not measured; `note` says why, or
    what else was seen.
    """

    part: str
    name: str
    value: float
    unit: str
    target: str = ""
    samples: tuple[float, ...] = ()
    ratio: float | None = None
    against: str = ""
    note: str = ""


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that so large a share does not exceed; 0.5 is the median."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def median(samples: Sequence[float]) -> float:
    return percentile(samples, 0.5)
