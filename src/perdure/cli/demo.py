"""`demo`."""

from __future__ import annotations

import importlib

import click


@click.command
@click.option("--model", metavar="MODEL", help="A real model instead of the scripted one, such as anthropic:MODEL.")
@click.option("--keep", is_flag=True, help="Leave the folder with the project and its home.")
def demo(model: str | None, keep: bool) -> int:
    """See an agent mend a small project while it is killed three times."""
    # By name, since the demonstration stands beside the command line, not below it.
    code = importlib.import_module("perdure.demo.demo").main(model, keep=keep)
    return int(code)
