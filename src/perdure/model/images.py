"""Images that a person gives to a model: what they are is told by their first bytes, never by their names."""

from __future__ import annotations

MAX_BYTES = 5_000_000
"""Of one image; providers take no larger ones."""

MAX_IMAGES = 20
"""Of one input."""


def media_type(data: bytes) -> str | None:
    """`image/png`, `image/jpeg`, `image/gif` or `image/webp`, which every provider takes; None for anything else."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if data[:4] == b"RIFF" and data[8:12] == b"WEBP" else None
