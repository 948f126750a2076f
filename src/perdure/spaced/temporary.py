"""Names of files that are not finished yet. Nobody else makes such names; a scan leaves them out, the next change sweeps them."""

from __future__ import annotations

import os
import re

_PATTERN = re.compile(r"\.perdure-[0-9a-f]{16}\.tmp")


def temporary_name() -> str:
    return ".perdure-%s.tmp" % os.urandom(8).hex()


def is_temporary(name: str) -> bool:
    return name[0] == "." and _PATTERN.fullmatch(name) is not None


def is_nameless(name: str) -> bool:
    """What events call a file that was made without a name (O_TMPFILE of open(2)); it gets one by a link, which is an event of its own."""
    return name[0] == "#" and name[1:].isdigit()
