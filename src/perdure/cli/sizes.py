"""Sizes as people read them."""

from __future__ import annotations


def shown_bytes(size_bytes: float) -> str:
    """Decimal, as disks are sold: `0 bytes`, `12 kB`, `3.4 MB`."""
    for unit, scale in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            value = size_bytes / scale
            return f"{value:.1f} {unit}" if value < 10 else f"{value:,.0f} {unit}"
    return f"{size_bytes:.0f} byte{'' if size_bytes == 1 else 's'}"
