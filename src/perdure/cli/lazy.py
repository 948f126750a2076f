"""A click group that knows its commands by name and imports one only to run it: `perdure ls` must not pay for what `run` needs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import click


class Lazy(NamedTuple):
    """Where a command is (`module:attribute`) and the line that the list of commands shows."""

    target: str
    help: str


class LazyGroup(click.Group):
    """`lazy` maps the commands' names, in the order in which help lists them."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        known = self.lazy.get(cmd_name)
        if known is None:
            return None
        module, _, attribute = known.target.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, known.help) for name, known in self.lazy.items()])
