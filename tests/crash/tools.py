"""Tools outside of the Space, as an MCP server's would be: each leaves one line a run in a file that nobody takes back."""

from __future__ import annotations

import os
from pathlib import Path


def charge(amount: int) -> str:
    """Charge somebody's card. Must not happen twice."""
    return _note("charge", f"{amount}")


def publish(name: str) -> str:
    """Publish under a name. May be repeated with the same key."""
    return _note("publish", name)


def _note(counter: str, what: str) -> str:
    with open(Path(os.environ["EFFECTS"]) / counter, "a") as file:
        file.write(f"{os.environ['PERDURE_CALL_KEY']}\n")
    return f"{counter} {what}: done"
