"""`run`: a prompt, a session for it, and a driver until it settles."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, get_args

import click
import msgspec

from perdure.api import Answer, Opened, Session
from perdure.cli import choosing, driving
from perdure.cli.approve import ASK, asked, at_terminal
from perdure.cli.opening import opened, prompt_text, spelled
from perdure.cli.screen import Careful, Quiet
from perdure.cli.screen import screen as fitting_screen
from perdure.cli.status import APPROVAL, status_of
from perdure.cli.telling import Records, json_line
from perdure.config.settings import MODEL
from perdure.drive.deciding import Ask
from perdure.engine import attaching
from perdure.engine.home import DEFAULT_BUDGET
from perdure.model.catalog import THINKING
from perdure.record.errors import UsageError
from perdure.space.launch import Custody
from perdure.spaced.engine import CHOICES


@click.command
@click.argument("prompt", required=False)
@click.option("-C", "directory", metavar="DIR", help="The directory to work in; by default the current one.")
@click.option("--session", metavar="ID", help="A name for the new session, or the session to go on with.")
@click.option(
    "--model",
    multiple=True,
    metavar="MODEL",
    callback=lambda _context, _parameter, given: given or None,
    help=f"anthropic:MODEL, openai:MODEL, google:MODEL, PROVIDER:MODEL or scripted:FILE; by default ${MODEL}, or the model of perdure.toml. Given again, or "
    "after a comma: the one to ask where the first gives no answer.",
)
@click.option(
    "--base-url",
    metavar="URL",
    help="Another server for the first model's provider: openai, openai-responses, anthropic or google.",
)
@click.option("--thinking", type=click.Choice(THINKING), help="How much the models think before they answer.")
@click.option(
    "--image",
    "images",
    multiple=True,
    metavar="FILE",
    help="A PNG, JPEG, GIF or WebP file that the prompt speaks of; may be repeated.",
)
@click.option("--space", metavar="KIND", help="Where commands run: host (as you) or sandbox (the directory alone, no network).")
@click.option("--network", is_flag=True, default=None, help="Let the commands of a sandbox reach the network.")
@click.option(
    "--bind",
    "binds",
    multiple=True,
    metavar="PATH",
    callback=lambda _context, _parameter, given: given or None,
    help="A path outside that the commands of a sandbox can read, as a toolchain; may be repeated.",
)
@click.option(
    "--custody",
    type=click.Choice(get_args(Custody)),
    help="How the death of its processes is proven; by default auto.",
)
@click.option(
    "--capture",
    type=click.Choice(CHOICES),
    help="How the directory is looked at after a call: by events (watch), in full (scan), or by events and in full before each changing call "
    "(strict); by default by events where they can be had.",
)
@click.option(
    "--copy", is_flag=True, default=None, help="Work in a copy of the directory, in the home; `perdure apply` brings the changes."
)
@click.option("--max-turns", type=click.IntRange(1), metavar="N", help="Model responses a prompt may take.")
@click.option("--max-tokens", type=click.IntRange(1), metavar="N", help="Tokens a prompt may take, input and output together.")
@click.option(
    "--max-seconds", type=click.FloatRange(0, min_open=True), metavar="S", help="Time a prompt may take, commands included."
)
@click.option(
    "--max-failures",
    type=click.IntRange(1),
    metavar="N",
    help=f"Identical failures in a row; by default {DEFAULT_BUDGET.failures}.",
)
@click.option("--request-id", metavar="ID", help="Makes the prompt idempotent: the same id again submits nothing new.")
@ASK
@click.option("--take", is_flag=True, help="Take the session over from a living driver.")
@click.option("--detach", is_flag=True, help="Let a process of its own drive, and return as soon as it does.")
@click.option("--json", "as_json", is_flag=True, help='Records as JSON lines, then {"settled": …}.')
def run(prompt: str | None, **options: Any) -> int:
    """Give a session something to do, and drive it until that is done.

    PROMPT is what is to be done; - reads it from standard input. The session's id is printed first. With --session and the id of an existing session
    the prompt goes there, and is the next thing that session does.

    Ctrl-C stops the command and the turn, and the session waits for you; a second Ctrl-C leaves at once, as a crash would. After SIGTERM what has
    ended is committed, what runs goes on under its supervisor, and `perdure resume` takes it over.
    """
    return asyncio.run(_run(_prompt(prompt), **options))


def _prompt(given: str | None) -> str:
    if given is None:
        raise UsageError('say what is to be done: `perdure run "fix the failing test"`, or - to read it from standard input')
    text = prompt_text(given)
    if not text.strip():
        raise UsageError("the prompt is empty; say what is to be done")
    return text


async def _run(
    prompt: str,
    *,
    images: tuple[str, ...],
    request_id: str | None,
    ask: Ask,
    take: bool,
    detach: bool,
    as_json: bool,
    **options: Any,
) -> int:
    attaching.looked_at(images)  # before there is a session
    async with opened() as home:
        home.home.ask = ask
        session = await _session(home, **options)
        out = Careful(sys.stdout)
        out.write((json_line({"session": session.id}) if as_json else session.id) + "\n")
        row = await session.row()
        before = row.last_seq if row.inbox_seq else 0  # a new session is shown from its beginning
        submission = await session.submit(prompt, request_id=request_id, images=images)
        if detach:
            return await _detached(session, take, ask)
        after = 0 if request_id else before  # it may have been submitted long ago
        screen = Quiet() if as_json else fitting_screen()
        await driving.recall(session, screen)
        work = driving.settle(session, submission, after, screen, take=take)
        if as_json:
            work = _recorded(Records(session, out, before), work)
        answer = await driving.shown(session, work, screen)
        while answer.waiting_for == APPROVAL and not as_json and at_terminal() and await asked(session):
            screen = fitting_screen()
            await driving.recall(session, screen)
            answer = await driving.shown(session, driving.settle(session, submission, after, screen, take=take), screen)
        if as_json:
            out.write(json_line({"settled": {"session": session.id, **msgspec.to_builtins(answer)}}) + "\n")
        if answer.outcome == "waiting":
            driving.explain_wait(session.id, answer.waiting_for, answer.detail)
        return await driving.exit_code(session, submission, answer.outcome, after)


async def _detached(session: Session, take: bool, ask: Ask) -> int:
    from perdure.cli.detached import detach

    if status_of(session.home.path, await session.row()).status == "running" and not take:
        print("perdure: another process drives it already", file=sys.stderr)
    else:
        print(f"perdure: process {await detach(session, take=take, ask=ask)} drives it", file=sys.stderr)
    print(f"    {spelled('attach', session.id)}   shows it at work", file=sys.stderr)
    return 0


async def _recorded(records: Records, work: Coroutine[Any, Any, Answer]) -> Answer:
    """The work's answer, every record of it written before."""
    following = asyncio.create_task(records.follow())
    try:
        answer = await work
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
    await records.catch_up()
    return answer


# ---- which session -----------------------------------------------------------------------------------------------------------


async def _session(
    home: Opened, *, session: str | None, directory: str | None, model: tuple[str, ...] | None, **settings: Any
) -> Session:
    """The existing one of that name, or a new one."""
    names = [row.session for row in await home.sessions()] if session else []
    if session in names:
        return await _existing(Session(home.home, session), directory, {"model": model, **settings})
    if longer := next((name for name in names if name.startswith(session or "")), None):
        raise UsageError(
            f"'{session}' is the beginning of session {longer}: name that one in full to go on with it, or choose another name"
        )
    held = choosing.configured(directory or ".", home.home.path)
    arguments = choosing.session_arguments(held, model=model, **settings)
    return await home.session(session, directory=directory or ".", **arguments)


async def _existing(session: Session, directory: str | None, settings: dict[str, Any]) -> Session:
    """Its directory and settings are what they are."""
    if directory is not None and os.path.realpath(Path(directory).expanduser()) != (root := await session.directory()):
        raise UsageError(
            f"session {session.id} works in {root}, not in {directory}; leave -C out, or start another session there"
        )
    if given := [
        f"--{'bind' if name == 'binds' else name.replace('_', '-')}" for name, value in settings.items() if value is not None
    ]:
        what = ", ".join(given)
        raise UsageError(f"session {session.id} exists: {what} can only be chosen for a new one; leave it out, or start one")
    return session
