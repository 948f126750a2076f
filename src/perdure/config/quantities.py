"""Sizes and times as people write them."""

from __future__ import annotations

import re

SIZE = r"^(\d+(?:\.\d+)?)\s*(?:([KMGTkmgt])(i?))?[Bb]?$"
AGE = r"^(\d+(?:\.\d+)?)\s*(s|min|h|d|w)$"

_DECIMAL = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "T": 1000**4}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86400, "w": 604800}


def size_bytes(text: str) -> int:
    """`500MB`, `5GiB`, `5G` (decimal, unless it says i). ValueError says how it is written."""
    found = re.match(SIZE, text)
    if found is None:
        raise ValueError(f"'{text}' is no size; write it as 500MB or 5GiB")
    return int(float(found[1]) * (_BINARY if found[3] else _DECIMAL)[(found[2] or "").upper()])


def age_s(text: str) -> float:
    """`30d`, `12h`, in seconds. ValueError says how it is written."""
    found = re.match(AGE, text)
    if found is None:
        raise ValueError(f"'{text}' is no time; write it as 30d, 12h, 90min or 2w")
    return float(found[1]) * _SECONDS[found[2]]
