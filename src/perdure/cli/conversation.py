"""A conversation with a session, a line at a time.

    nobody works      the line editor waits for a prompt, with history; nothing of the session runs
    a turn is on      what happens is shown; what is typed meanwhile steers it (`perdure.cli.typist`); Ctrl-C stops the turn

A prompt is a submission like any other and this process its driver, unless another one drives: then that one is followed. So a chat that is
killed loses nothing, and a second one on the same session joins in.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from typing import Any, TypeVar

from perdure.api import Opened, Session
from perdure.cli import choosing, driving
from perdure.cli.approve import asked
from perdure.cli.editor import LineEditor
from perdure.cli.opening import named, opened, spelled
from perdure.cli.recap import recap
from perdure.cli.screen import Careful, Plain, Screen
from perdure.cli.status import APPROVAL, NEEDS_DRIVER, status_of
from perdure.cli.typist import TypingScreen, Typist
from perdure.history.line import shorten
from perdure.history.paint import Paint
from perdure.record.errors import PerdureError, UsageError
from perdure.record.records import Seq

T = TypeVar("T")
WELCOME = "/help lists the commands; Ctrl-C stops a turn, Ctrl-D leaves"

Next = tuple[str, int] | None
"""After a command: as of a turn, what is typed already and the exit code. None: nothing was driven."""


class Leave(Exception):
    """The person has asked to go."""


class Conversation:
    """Belongs to the thread that holds it: its prompts are read between two runs of the loop, so nothing of it waits meanwhile."""

    def __init__(self, runner: asyncio.Runner, obey: Callable[[Conversation, str], Awaitable[Next]]) -> None:
        """`obey` carries out a line that begins with a slash. UsageError for one that means nothing; Leave ends the conversation."""
        self._runner = runner
        self._obey = obey
        self._stack = AsyncExitStack()
        self._screen: Screen
        self.home: Opened
        self.session: Session
        self.out = Careful(sys.stdout)
        self.interactive = sys.stdin.isatty() and sys.stdout.isatty()

    # ---- beginning and end -------------------------------------------------------------------------------------------------

    async def begin(self, name: str | None, directory: str | None, new: bool, settings: dict[str, Any]) -> None:
        self.home = await self._stack.enter_async_context(opened())
        found = None if new else await self._found(name, directory)
        self.session = found or await self._new(directory, settings)
        self._screen = TypingScreen(self.out) if self.interactive else Plain(self.out)
        if found is not None:
            paint = Paint(self.out)
            for line in await recap(found):
                self.out.write(paint.line(line) + "\n")
        self.say(f"session {self.session.id} in {await self.session.directory()}")
        if self.interactive:
            self.say(WELCOME)
        await driving.recall(self.session, self._screen)

    async def _found(self, name: str | None, directory: str | None) -> Session | None:
        """The session that was named, else the newest one on the directory, if there is one."""
        try:
            return await named(self.home, name, directory)
        except UsageError:
            if name is not None:
                raise
            return None

    async def _new(self, directory: str | None, settings: dict[str, Any]) -> Session:
        held = choosing.configured(directory or ".", self.home.home.path)
        return await self.home.session(directory=directory or ".", **choosing.session_arguments(held, **settings))

    async def end(self) -> None:
        await self._stack.aclose()

    # ---- between the turns -------------------------------------------------------------------------------------------------

    def hold(self) -> int:
        """Until the person leaves. 1 if the last turn did not end well and nobody is there to see it."""
        with LineEditor(self.home.home.path, self.interactive) as editor:
            typed, code = self._runner.run(self._resume())
            while (line := self._next(editor, typed)) is not None:
                try:
                    typed, code = self._runner.run(self._heard(line))
                except Leave:
                    break
                except UsageError as error:  # theirs to mend in the next line; anything else ends the chat as it ends a run
                    self.say(str(error))
                    typed, code = "", driving.FAILED
        return 0 if self.interactive else code

    def _next(self, editor: LineEditor, typed: str) -> str | None:
        self.out.flush()
        return editor.line(typed)

    async def _resume(self) -> tuple[str, int]:
        """Whatever was left undone goes on first. What is typed already for the next line, and the exit code so far."""
        status = status_of(self.home.home.path, await self.session.row())
        if status.waiting_for == NEEDS_DRIVER or (status.waiting_for == APPROVAL and await self._approved()):
            return await self._late(*await self.drive())
        self._screen.close()
        if status.status == "waiting":
            driving.explain_wait(self.session.id, status.waiting_for, status.detail)
        if status.status == "running":
            self.say(f"another process drives it; {spelled('attach', self.session.id)} shows it at work")
        return "", 0

    async def _heard(self, line: str) -> tuple[str, int]:
        """What is typed already for the next line, and the exit code so far."""
        if line.startswith("/"):
            return await self._obey(self, line) or ("", 0)
        before = (await self.session.row()).last_seq
        return await self.settled(await self.session.submit(line), before)

    async def settled(self, submission: str, before: Seq) -> tuple[str, int]:
        """Drive until this submission, whose record lies behind `before`, has settled."""
        answer, typed = await self.attended(driving.settle(self.session, submission, before, self._screen, take=False))
        while answer.waiting_for == APPROVAL and await self._approved():
            answer, typed = await self.attended(driving.settle(self.session, submission, before, self._screen, take=False))
        code = await driving.exit_code(self.session, submission, answer.outcome, before)
        if answer.outcome == "waiting":
            driving.explain_wait(self.session.id, answer.waiting_for, answer.detail)
            return typed, code
        return await self._late(typed, code)

    async def _late(self, typed: str, code: int) -> tuple[str, int]:
        """What steered when the driver had let go already is worked on as what came next."""
        while self.interactive and status_of(self.home.home.path, await self.session.row()).waiting_for == NEEDS_DRIVER:
            more, code = await self.drive()
            typed += more
            if code:
                break
        return typed, code

    async def drive(self) -> tuple[str, int]:
        """Go on with what there is to do, without a prompt."""
        released, typed = await self.attended(self.session.drive(emit=self._screen))
        while released.rest.waiting_for == APPROVAL and await self._approved():
            released, typed = await self.attended(self.session.drive(emit=self._screen))
        if released.rest.status == "waiting":
            driving.explain_wait(self.session.id, released.rest.waiting_for, released.rest.detail)
        return typed, driving.FAILED if released.rest.status != "settled" else 0

    async def _approved(self) -> bool:
        """Whether the person has answered what is asked about calls."""
        self._screen.close()
        return self.interactive and await asked(self.session)

    def say(self, text: str) -> None:
        if isinstance(self._screen, TypingScreen):
            self._screen.say(text)
        else:
            self.out.write(f"· {text}\n")

    # ---- while it works ----------------------------------------------------------------------------------------------------

    async def attended(self, work: Coroutine[Any, Any, T]) -> tuple[T, str]:
        """The work's outcome, and what was typed and not sent until then."""
        screen = self._screen
        if not isinstance(screen, TypingScreen):
            return await driving.shown(self.session, work, screen), ""
        sending: set[asyncio.Task[None]] = set()

        def send(line: str) -> None:
            task = asyncio.create_task(self._steer(line))
            sending.add(task)

        with ExitStack() as stack:
            typist = stack.enter_context(Typist(send, screen.type))
            outcome = await driving.shown(self.session, work, screen, leaving=typist.restore)
            await asyncio.gather(*sending)
            return outcome, typist.typed

    async def _steer(self, line: str) -> None:
        if line.startswith("/"):
            self.say("commands wait for the end of the turn; Ctrl-C stops it")
            return
        try:
            await self.session.submit(line, mode="steer")
        except PerdureError as error:
            self.say(f"not sent: {error}")
        else:
            self.say(f"sent, for after the running call: {shorten(line, 60)}")
