"""`chat`: talk with a session in a terminal."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from perdure.cli import slash
from perdure.cli.conversation import Conversation
from perdure.cli.opening import session_argument
from perdure.config.settings import MODEL
from perdure.model.catalog import THINKING
from perdure.record.errors import UsageError


@click.command
@session_argument
@click.option("--new", is_flag=True, help="Begin a new session, although there is one on the directory.")
@click.option(
    "--model", metavar="MODEL", help=f"The model of a new session, as for run; by default ${MODEL}. Several are parted by commas."
)
@click.option("--base-url", metavar="URL", help="A server for that model, as for run.")
@click.option("--thinking", type=click.Choice(THINKING), help="How much the models think before they answer.")
@click.option("--space", metavar="KIND", help="Where commands of a new session run: host or sandbox.")
@click.option("--copy", is_flag=True, default=None, help="Let a new session work in a copy of the directory, as for run.")
def chat(session: str | None, directory: str | None, new: bool, **settings: Any) -> int:
    """Talk with a session, a line at a time.

    SESSION is the session to go on with, by default the newest one on the directory; where there is none, one is begun. While it works, a line that you type
    steers it. Ctrl-C stops the turn, a second one leaves at once, Ctrl-D leaves. Lines that begin with / are commands: /help lists them.
    """
    if new and session:
        raise UsageError("--new begins another session; leave the session's name out")
    with asyncio.Runner() as runner:
        conversation = Conversation(runner, slash.obey)
        try:
            runner.run(conversation.begin(session, directory, new, settings))
            return conversation.hold()
        finally:
            runner.run(conversation.end())
