"""task."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from perdure.program.delegation import TASK as NAME
from perdure.program.tools import Tool


class TaskArgs(Struct, frozen=True):
    prompt: Annotated[
        str,
        Meta(
            description="All that it has to know: it sees nothing of this conversation, and only its answer comes back",
            min_length=1,
        ),
    ]


TASK = Tool(
    NAME,
    "Give a piece of work to a subagent that works in the same directory with the same tools, and get its answer. For searches and changes whose "
    "details you do not need to see.",
    TaskArgs,
    "none",
    place="thread",
)
