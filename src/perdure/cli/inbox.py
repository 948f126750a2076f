"""`submit` and `abort`: what anybody may tell a session at any time, whoever drives it."""

from __future__ import annotations

import asyncio
import sys

import click

from perdure.api import Opened, Session
from perdure.cli.opening import DIRECTORY, named, opened, prompt_text, session_argument, spelled
from perdure.cli.status import status_of
from perdure.record.errors import UsageError
from perdure.record.records import SubmissionMode


@click.command
@click.argument("words", nargs=-1, metavar="[SESSION] PROMPT")
@DIRECTORY
@click.option(
    "--steer", "mode", flag_value="steer", help="Say it as soon as the running call has ended; calls that wait are dropped."
)
@click.option("--note", "mode", flag_value="note", help="Let the model know with its next request; nothing is started.")
@click.option("--reject", "mode", flag_value="reject", help="Refuse if the session is busy.")
@click.option("--request-id", metavar="ID", help="Makes it idempotent: the same id again submits nothing new.")
@click.option(
    "--image", "images", multiple=True, metavar="FILE", help="A PNG, JPEG, GIF or WebP file that it speaks of; may be repeated."
)
def submit(
    words: tuple[str, ...], directory: str | None, mode: SubmissionMode | None, request_id: str | None, images: tuple[str, ...]
) -> None:
    """Tell a session something, without driving it.

    PROMPT is what to say; - reads it from standard input. It is durable when its id is printed. By default it is a follow-up: the session turns to
    it when it is done with what it has.
    """
    if not 1 <= len(words) <= 2:
        raise UsageError('give the session and the prompt: `perdure submit SESSION "also update the docs"`')
    name = words[0] if len(words) == 2 else None
    asyncio.run(_submit(name, directory, prompt_text(words[-1]), mode or "follow_up", request_id, images))


async def _submit(
    name: str | None, directory: str | None, text: str, mode: SubmissionMode, request_id: str | None, images: tuple[str, ...]
) -> None:
    async with opened() as home:
        if name is None and directory is None and any(row.session == text for row in await home.sessions()):
            raise UsageError(f'say what session {text} is to be told: `{spelled("submit", text)} "also update the docs"`')
        session = await named(home, name, directory)
        print(await session.submit(text, mode=mode, request_id=request_id, images=images))
        if mode != "note" or (await session.row()).rest.busy:
            await _hint(home, session)


@click.command
@session_argument
@click.option("--reason", metavar="TEXT", default="", help="What the model is told of it.")
def abort(session: str | None, directory: str | None, reason: str) -> None:
    """Stop what a session does and what it was given to do.

    The running command is stopped; the files stay as they are, and the session waits for you.
    """
    asyncio.run(_abort(session, directory, reason))


async def _abort(name: str | None, directory: str | None, reason: str) -> None:
    async with opened() as home:
        session = await named(home, name, directory)
        if not (await session.state()).submissions:
            print(f"perdure: session {session.id} has nothing to stop", file=sys.stderr)
            return
        await session.abort(reason=reason)
        await _hint(home, session)


async def _hint(home: Opened, session: Session) -> None:
    """Without a driver it is stored, and that is all."""
    if status_of(home.home.path, await session.row()).status != "running":
        print(f"perdure: nobody drives session {session.id} now; {spelled('resume', session.id)} does", file=sys.stderr)
