"""`resume`: drive what needs a driver, one session or all of them."""

from __future__ import annotations

import asyncio
import os
import sys

import click

from perdure.api import Opened, Session
from perdure.cli import driving
from perdure.cli.approve import ASK, asked, at_terminal
from perdure.cli.opening import named, opened, session_argument, spelled
from perdure.cli.screen import Careful, Plain, Screen, as_it_is
from perdure.cli.screen import screen as fitting_screen
from perdure.cli.signals import attended
from perdure.cli.status import ANSWERS, APPROVAL, NEEDS_DRIVER, status_of
from perdure.drive.deciding import Ask
from perdure.drive.driver import Released
from perdure.drive.events import Emit, Event
from perdure.history.redaction import Redaction
from perdure.record import records as r
from perdure.record.errors import UsageError


@click.command
@session_argument
@click.option(
    "--watch", is_flag=True, help="Stay: drive every session that comes to need it, and take over those whose driver dies."
)
@ASK
@click.option("--take", is_flag=True, help="Take the session over from a living driver.")
@click.option(
    "--keep", "answer", flag_value="keep", help="Keep files that changed after the crash (ends the wait changed_after_crash)."
)
@click.option(
    "--restore", "answer", flag_value="restore", help="Put such files back as before the call; what is lost is salvaged."
)
@click.option("--accept", "answer", flag_value="accept", help="Go on although processes may still run (ends the wait survivors).")
def resume(session: str | None, directory: str | None, watch: bool, ask: Ask, take: bool, answer: str | None) -> int:
    """Go on with a session, or with all that need it, after whatever happened.

    Without SESSION and -C: every session that needs a driver, until none does.
    """
    one = session is not None or directory is not None
    if watch and one:
        raise UsageError("--watch is for all sessions of the home; leave the session out")
    if not one and (take or answer):
        raise UsageError(f"say which session --{answer or 'take'} is for; `perdure ls` lists them")
    return asyncio.run(_one(session, directory, take, answer, ask) if one else _all(watch, ask))


# ---- one ---------------------------------------------------------------------------------------------------------------------


async def _one(name: str | None, directory: str | None, take: bool, answer: str | None, ask: Ask) -> int:
    async with opened() as home:
        home.home.ask = ask
        session = await named(home, name, directory)
        before = await session.row()
        status = status_of(home.home.path, before)
        if answer is not None:
            if status.waiting_for != ANSWERS[answer]:
                waits = f"it waits for {status.waiting_for}" if status.waiting_for else f"it is {status.status}"
                raise UsageError(f"session {session.id} does not wait for {ANSWERS[answer]}, which --{answer} answers: {waits}")
            await session.answer(ANSWERS[answer], answer)
        elif status.status in ("settled", "failed"):
            print(f"session {session.id} is {status.status}; there is nothing to go on with", file=sys.stderr)
            print(f"    {spelled('run', '--session', session.id)} PROMPT  tells it what to do next", file=sys.stderr)
            return 0
        screen = fitting_screen(Redaction(os.environ))
        await driving.recall(session, screen)
        released = await driving.shown(session, session.drive(emit=screen, take=take), screen)
        while released.rest.waiting_for == APPROVAL and at_terminal() and await asked(session):
            screen = fitting_screen(Redaction(os.environ))
            await driving.recall(session, screen)
            released = await driving.shown(session, session.drive(emit=screen), screen)
        return await _ended(session, released, before.last_seq)


async def _ended(session: Session, released: Released, after: int) -> int:
    if released.rest.status == "waiting":
        driving.explain_wait(session.id, released.rest.waiting_for, released.rest.detail)
        return driving.FAILED
    settled = [s.body async for s in session.records(after) if isinstance(s.body, r.SubmissionSettled)]
    return max([await driving.exit_code(session, body.submission, body.outcome, after) for body in settled], default=0)


# ---- all ---------------------------------------------------------------------------------------------------------------------


async def _all(watch: bool, ask: Ask) -> int:
    async with opened() as home:
        home.home.ask = ask
        out, driven = Careful(sys.stdout), list[_Recalling]()
        redact = as_it_is if out.isatty() else Redaction(os.environ)

        def emit(id: str) -> Emit:
            driven.append(_Recalling(Session(home.home, id), Plain(out, f"[{id}] ", redact=redact)))
            return driven[-1]

        await attended(home.watch(emit=emit, once=not watch))
        for screen in driven:
            await screen.recalled
        return await _report(home, list(dict.fromkeys(screen.session for screen in driven)))


class _Recalling:
    """A screen that first has to recall its session's calls; what comes meanwhile is shown then."""

    def __init__(self, session: Session, screen: Screen) -> None:
        self.session = session.id
        self._screen = screen
        self._early: list[Event] | None = []
        self.recalled = asyncio.create_task(self._recall(session))

    def __call__(self, event: Event) -> None:
        if self._early is not None:
            self._early.append(event)
        else:
            self._screen(event)

    async def _recall(self, session: Session) -> None:
        await driving.recall(session, self._screen)
        early, self._early = self._early or (), None
        for event in early:
            self._screen(event)


async def _report(home: Opened, driven: list[str]) -> int:
    """What became of each; 1 if one failed or waits."""
    code = 0
    for id in driven:
        status = status_of(home.home.path, await Session(home.home, id).row())
        if status.status == "waiting":
            driving.explain_wait(id, status.waiting_for or NEEDS_DRIVER, status.detail)
        if status.status in ("waiting", "failed"):
            code = driving.FAILED
    if not driven:
        print("no session needs a driver", file=sys.stderr)
    return code
