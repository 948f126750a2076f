"""From a command's arguments to an open home and the session that is meant.

The API is imported when it is needed: a list of the sessions needs the log alone, and half of the time to start.
"""

from __future__ import annotations

import asyncio
import functools
import os
import shlex
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from perdure.engine.places import home_path
from perdure.record.errors import UsageError
from perdure.record.parts import printable

if TYPE_CHECKING:
    from perdure.api import Opened, Session
    from perdure.log.sqlite import SqliteStore
    from perdure.program.hooks import Hooks
    from perdure.program.permissions import Rules

DIRECTORY = click.option("-C", "directory", metavar="DIR", help="The session's directory, instead of its name.")


def session_argument(command: Callable[..., Any], directory: Callable[..., Callable[..., Any]] = DIRECTORY) -> Callable[..., Any]:
    """`[SESSION]` and `-C DIR`: one of them, or neither for the session on the current directory."""
    return click.argument("session", required=False, shell_complete=_sessions)(directory(command))


def _sessions(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """For a shell that completes: the home's sessions that begin so, with what each is doing. None where there is no home yet."""
    home = context.find_root().params.get("home")
    if home is not None:
        os.environ["PERDURE_HOME"] = str(Path(home).expanduser().absolute())
    return asyncio.run(_named(incomplete)) if (home_path() / "log.db").exists() else []


async def _named(incomplete: str) -> list[CompletionItem]:
    async with await opened_store() as store:
        rows = sorted(await store.rows(), key=lambda row: row.changed_at, reverse=True)
    return [CompletionItem(row.session, help=row.rest.status) for row in rows if row.session.startswith(incomplete)]


def prompt_text(given: str) -> str:
    """A prompt as it was given, or read from standard input for `-`. Bytes that are no UTF-8 become visible escapes."""
    return printable(sys.stdin.read() if given == "-" else given)


@asynccontextmanager
async def opened() -> AsyncIterator[Opened]:
    """The home. Its drivers do what is configured for their directories."""
    from perdure import api

    async with api.open() as home:
        home.home.hooks = functools.partial(_hooks, home.home.path)
        home.home.rules = functools.partial(_rules, home.home.path)
        home.home.skills = functools.partial(_skills, home.home.path)
        yield home


def _hooks(home: Path, directory: str) -> Hooks:
    from perdure.cli.choosing import configured

    return configured(directory, home).hooks


def _rules(home: Path, directory: str) -> Rules:
    from perdure.cli.choosing import configured

    return configured(directory, home).permissions


def _skills(home: Path, directory: str) -> tuple[Path, ...]:
    from perdure.cli.choosing import configured

    return configured(directory, home).skill_folders


async def opened_store() -> SqliteStore:
    """The home's log, and nothing else of it; a context manager."""
    from perdure.log.sqlite import SqliteStore

    return await SqliteStore.open(home_path())


async def named(home: Opened, session: str | None, directory: str | None) -> Session:
    """The session that was meant. UsageError if there is none, several, or if both ways were used."""
    if session and directory:
        raise UsageError(f"name the session by its id ({session}) or by its directory ({directory}), not by both")
    return await home.session(session, directory=directory)


@functools.cache
def _prefix() -> str:
    context = click.get_current_context(silent=True)
    home = context.find_root().obj if context else None
    return f"perdure --home {shlex.quote(home)}" if home else "perdure"


def spelled(*words: str) -> str:
    """A command line of ours that a person can copy: with the home, if this one was given it."""
    return " ".join((_prefix(), *map(shlex.quote, words)))
