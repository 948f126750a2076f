"""bash."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from perdure.program.tools import DEFAULT_TIMEOUT_S, Tool
from perdure.space import space


class BashArgs(Struct, frozen=True):
    command: Annotated[str, Meta(description="Run by bash in the working directory", min_length=1)]
    timeout_s: Annotated[float, Meta(description="Killed after this many seconds", gt=0, le=86400)] = DEFAULT_TIMEOUT_S
    background: Annotated[bool, Meta(description="Start it and go on; for servers and watchers")] = False


BASH = Tool(
    "bash",
    "Run a command. Output is shown up to 50 KiB and 2,000 lines; `read` of `output:CALL` has the whole.",
    BashArgs,
    "external",
    operation=lambda a: space.Exec(a.command, a.timeout_s, background=a.background),
)
