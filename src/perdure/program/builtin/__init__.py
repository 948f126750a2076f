"""The tools that every coding agent has."""

from perdure.program.builtin.files import EDIT, LIST, READ, SEARCH, WRITE
from perdure.program.builtin.shell import BASH
from perdure.program.builtin.task import TASK
from perdure.program.tools import Tool

BUILTIN: tuple[Tool, ...] = (READ, WRITE, EDIT, LIST, SEARCH, BASH, TASK)
