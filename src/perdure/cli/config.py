"""`config`: what holds for a directory and where it comes from, and whose project files are trusted."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from perdure.config import trust as trusting
from perdure.config.file import NAME, project_path, read, user_path
from perdure.config.keys import KEYS, TABLES, written
from perdure.config.settings import Held, Settings, settings
from perdure.engine.places import home_path
from perdure.program.permissions import Rule
from perdure.record.errors import UsageError

HERE = click.option("-C", "directory", metavar="DIR", default=".", help="The directory; by default the current one.")


class _Config(click.Group):
    """Whatever is no command is a key."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "-h", "--help"):
            args = ["show", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Config)
def config() -> None:
    """Show what is configured, and where from.

    `perdure config [KEY]` shows what holds for a directory: defaults, under the user's perdure.toml, under the project's, under the environment.
    """


@config.command()
@click.argument("key", required=False)
@HERE
@click.option("--json", "as_json", is_flag=True, help="As one JSON object, a member a key.")
def show(key: str | None, directory: str, as_json: bool) -> None:
    """Show what holds, or KEY alone: what `config` does by itself."""
    found = settings(directory, home_path(), os.environ)
    names = [name for name in KEYS if key is None or name == key or name.startswith(f"{key}.")]
    if not names:
        raise UsageError(f"there is no key '{key}'; there are {', '.join((*KEYS, *TABLES))}")
    shown = [(name, found.held[name]) for name in names]
    if as_json:
        print(json.dumps({name: {"value": _plain(held.value), "where": held.where} for name, held in shown}, ensure_ascii=False))
    else:
        _table(shown)
    _warn(found)


@config.command()
@HERE
def path(directory: str) -> None:
    """Show which files are read; the later holds over the earlier."""
    user, project = user_path(os.environ), project_path(Path(directory))
    print(f"{user}{'' if user.exists() else '  (there is none)'}")
    if project is not None:
        file = read(project)
        print(f"{project}{'' if file and trusting.trusted(home_path(), file) else '  (not trusted)'}")


@config.command()
@click.argument("directory", metavar="DIR", default=".")
def trust(directory: str) -> None:
    """Trust the project's perdure.toml, until it changes."""
    found = project_path(Path(directory).expanduser())
    file = read(found) if found else None
    if file is None:
        raise UsageError(f"there is no {NAME} for {Path(directory).expanduser().absolute()}")
    for name, value in file.values.items():
        print(f"{name} = {written(value)}")
    trusting.trust(home_path(), file)
    print(f"{file.path} is trusted as it is now; once it changes it has to be trusted again", file=sys.stderr)


@config.command()
@click.argument("directory", metavar="DIR", default=".")
def distrust(directory: str) -> None:
    """Stop trusting the project's perdure.toml."""
    found = project_path(Path(directory).expanduser()) or Path(directory).expanduser().absolute() / NAME
    was = trusting.distrust(home_path(), found)
    print(f"{found} {'is not trusted any more' if was else 'was not trusted'}", file=sys.stderr)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [str(each) if isinstance(each, Rule) else msgspec.to_builtins(each) for each in value]
    return msgspec.to_builtins(value)


def _table(shown: list[tuple[str, Held]]) -> None:
    rows = [(name, _text(held.value), ", ".join(held.where)) for name, held in shown]
    width = max(len(f"{name} = {text}") for name, text, _ in rows)
    for name, text, where in rows:
        print(f"{f'{name} = {text}':{min(width, 60)}}  # {where}")


def _text(value: Any) -> str:
    if value is None:
        return "(not set)"
    return written(value)


def _warn(found: Settings) -> None:
    if found.warning:
        print(f"perdure: {found.warning}", file=sys.stderr)
