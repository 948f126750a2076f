"""read, write, edit, list, search."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from perdure.program.tools import Tool
from perdure.space import space

Path = Annotated[str, Meta(description="Path relative to the working directory", min_length=1)]


class ReadArgs(Struct, frozen=True):
    path: Path
    offset: Annotated[int, Meta(description="First line, from 1", ge=1)] = 1
    limit: Annotated[int, Meta(description="Number of lines", ge=1)] = 2000


class WriteArgs(Struct, frozen=True):
    path: Path
    content: Annotated[str, Meta(description="The whole new content")]


class Replacement(Struct, frozen=True):
    old_text: Annotated[str, Meta(description="Text that occurs exactly once in the file", min_length=1)]
    new_text: str


class EditArgs(Struct, frozen=True):
    path: Path
    edits: Annotated[tuple[Replacement, ...], Meta(description="Applied together or not at all", min_length=1)]


class ListArgs(Struct, frozen=True):
    path: Path = "."
    depth: Annotated[int, Meta(description="How many levels", ge=1)] = 1


class SearchArgs(Struct, frozen=True):
    pattern: Annotated[str, Meta(description="Regular expression", min_length=1)]
    path: Path = "."
    glob: Annotated[str | None, Meta(description="Only files whose name matches, such as *.py")] = None


def _edit(args: EditArgs) -> space.Op:
    return space.Edit(args.path, tuple(space.Replacement(e.old_text, e.new_text) for e in args.edits))


READ = Tool(
    "read",
    "Read a text file, whole or some lines of it. `output:CALL` reads the whole output of an earlier command, "
    "`salvage:ID/PATH` what recovery took back.",
    ReadArgs,
    "none",
    operation=lambda a: space.Read(a.path, a.offset, a.limit),
)
WRITE = Tool(
    "write",
    "Create a file or replace its whole content. Parent directories are made.",
    WriteArgs,
    "workspace",
    operation=lambda a: space.Write(a.path, a.content),
)
EDIT = Tool(
    "edit",
    "Replace exact texts in a file. Each old_text must occur exactly once; all replacements are made or none.",
    EditArgs,
    "workspace",
    operation=_edit,
)
LIST = Tool("list", "List a directory.", ListArgs, "none", operation=lambda a: space.List(a.path, a.depth))
SEARCH = Tool(
    "search",
    "Search file contents with a regular expression.",
    SearchArgs,
    "none",
    operation=lambda a: space.Search(a.pattern, a.path, a.glob),
)
