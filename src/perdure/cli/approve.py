"""`approve` and `deny`: a person's word on a call that a session waits with."""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Literal

import click

from perdure.api import Session
from perdure.cli.opening import DIRECTORY, named, opened, spelled
from perdure.cli.status import status_of
from perdure.history.line import plain
from perdure.record.errors import UsageError

ASK = click.option(
    "--ask",
    type=click.Choice(("wait", "deny")),
    default="wait",
    help="What becomes of a call that needs your approval: the session waits for it (at a terminal you are asked), or it is denied.",
)


@click.command
@click.argument("words", nargs=-1, metavar="[SESSION] [CALL]")
@DIRECTORY
@click.option("--always", is_flag=True, help="Also whenever this session makes exactly this call again.")
@click.option("--reason", metavar="TEXT", default="", help="Kept in the log.")
def approve(words: tuple[str, ...], directory: str | None, always: bool, reason: str) -> None:
    """Allow a call that a session waits with.

    CALL is its id or a unique beginning of it; left out, it is the only one that is waited with. The answer is durable when this returns, and about the
    call as it was asked about: where its arguments or its tool are other ones by now, the question is put again.
    """
    asyncio.run(_answer(words, directory, "allow", always=always, reason=reason))


@click.command
@click.argument("words", nargs=-1, metavar="[SESSION] [CALL]")
@DIRECTORY
@click.option("--reason", metavar="TEXT", default="", help="What the model is told.")
def deny(words: tuple[str, ...], directory: str | None, reason: str) -> None:
    """Deny a call that a session waits with.

    The model is told, and goes on without it.
    """
    asyncio.run(_answer(words, directory, "deny", always=False, reason=reason))


async def _answer(
    words: tuple[str, ...], directory: str | None, verdict: Literal["allow", "deny"], *, always: bool, reason: str
) -> None:
    if len(words) > 2 or (len(words) == 2 and directory):
        raise UsageError("give the session and the call: `perdure approve SESSION CALL`")
    name = None if directory or not words else words[0]
    call = words[0] if directory and words else (words[1] if len(words) == 2 else None)
    async with opened() as home:
        session = await named(home, name, directory)
        if verdict == "allow":
            question = await session.approve(call, always=always, reason=reason)
        else:
            question = await session.deny(call, reason=reason)
        done = "allowed" if verdict == "allow" else "denied"
        print(f"{done}{' for good' if always else ''}: {question.call} {plain(question.text)}")
        status = status_of(home.home.path, await session.row())
        if left := await session.questions():
            print(f"perdure: session {session.id} still asks about {', '.join(each.call for each in left)}", file=sys.stderr)
        elif status.status != "running":
            print(f"perdure: nobody drives session {session.id} now; {spelled('resume', session.id)} does", file=sys.stderr)


# ---- on the spot -------------------------------------------------------------------------------------------------------------


def at_terminal() -> bool:
    """Whether somebody is there who can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


async def asked(session: Session) -> bool:
    """Put the session's questions to the one at the terminal. False where they stay open: Ctrl-C, the end of input, or an answer that is none.

    Meanwhile somebody may have answered elsewhere; that answer counts, and the next question is put.
    """
    while open_ones := await session.questions():
        question = open_ones[0]
        print(f"perdure: {question.call} wants to run {plain(question.text)}", file=sys.stderr)
        word, _, reason = (_line("    allow it? [y]es, [n]o or no REASON, [a]lways; Ctrl-C leaves it open: ") or "").partition(
            " "
        )
        try:
            match word.lower():
                case "y" | "yes":
                    await session.approve(question.call, digest=question.digest)
                case "a" | "always":
                    await session.approve(question.call, always=True, digest=question.digest)
                case "n" | "no":
                    await session.deny(question.call, reason=reason.strip(), digest=question.digest)
                case _:
                    return not await session.questions()
        except UsageError as error:
            print(f"perdure: {error}", file=sys.stderr)
    return True


def _line(prompt: str) -> str | None:
    """What is typed; None where nothing is. Nothing else goes on meanwhile, so Ctrl-C is for this question alone."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stderr.write(prompt)
        sys.stderr.flush()
        return sys.stdin.readline().strip() or None
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        return None
    finally:
        signal.signal(signal.SIGINT, before)
