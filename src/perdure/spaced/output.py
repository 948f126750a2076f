"""What a command printed, and the bounded view of it that a model gets."""

from __future__ import annotations

import os

VIEW_BYTES = 50 * 1024
VIEW_LINES = 2000
READ_BYTES = 256 * 1024


def view(fd: int, call: str) -> tuple[str, bool]:
    """At most 50 KiB and 2,000 lines, from head and tail in equal parts, and whether something was left out."""
    size = os.fstat(fd).st_size
    half = VIEW_BYTES // 2
    if size <= VIEW_BYTES:
        lines = _text(os.pread(fd, size, 0)).splitlines(keepends=True)
        if len(lines) <= VIEW_LINES:
            return "".join(lines), False
        head, tail = lines[: VIEW_LINES // 2], lines[-VIEW_LINES // 2 :]
    else:
        head = _text(os.pread(fd, half, 0)).splitlines(keepends=True)[: VIEW_LINES // 2]
        tail = _text(os.pread(fd, half, size - half)).splitlines(keepends=True)[-VIEW_LINES // 2 :]
        # Cut at line ends where there are any, so that no half line passes for a whole one.
        head = head[:-1] or head
        tail = tail[1:] or tail
    shown_bytes = sum(len(line.encode()) for line in head + tail)
    if not head[-1].endswith("\n"):
        head.append("\n")
    note = "[… about %d bytes left out; `read` of `output:%s` shows the whole …]\n" % (max(size - shown_bytes, 0), call)
    return "".join(head) + note + "".join(tail), True


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
