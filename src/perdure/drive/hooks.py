"""Running people's hooks, in the driver's place: what has happened is durable before one sees it, and one that hangs or fails holds nothing up for long.

A `before_call` hook that fails denies the call, since nobody knows what it would have said; the failure of another is a notice. After a crash a hook
may see the same point again, or never: `before_call` is repeated for a call that had not started, the rest are told once or not at all.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from perdure.drive.children import child, importing
from perdure.drive.events import Emit, Notice, Recorded
from perdure.drive.events import Event as Shown
from perdure.drive.interrupt import Stopped, either, watch
from perdure.drive.journal import Journal, Redecide
from perdure.program.hooks import AfterCall, BeforeCall, BeforeRequest, Event, Hook, Hooks, OnAnswer, Ruling
from perdure.program.tools import ToolSet
from perdure.record import records as r
from perdure.record.parts import printable, text_of
from perdure.state.calls import Call, reduce
from perdure.state.state import lineage

MAX_ANSWER_BYTES = 1 << 20
TOLD_CHARS = 500


_ENDING = """\
{ read -r _ < "/dev/fd/$1"; kill -KILL 0; } > /dev/null 2>&1 &
/bin/sh -c "$2"
code=$?
kill -KILL $! 2> /dev/null
exit $code"""
"""A command and all of its group end when the driver does, however that comes: nobody else has the other end of that pipe."""


class HookFailedError(Exception):
    """What happened, for people and the model."""


class Hooking:
    """One driver's hooks. `emit` shows what `seen` is given, and notices."""

    def __init__(
        self,
        hooks: Hooks,
        session: str,
        directory: str,
        calls: Mapping[str, Call],
        *,
        environment: Mapping[str, str],
        tools: ToolSet,
        emit: Emit,
    ) -> None:
        self._hooks = hooks
        self._session = session
        self._directory = directory
        self._environment = {**environment, "PERDURE_SESSION": session}
        self._tools = tools
        self._emit = emit
        self._waiting: list[tuple[tuple[Hook, ...], Event]] = []
        self._calls = dict(calls)
        self._answers: dict[str, str] = {}
        self._ruled: dict[str, Ruling] = {}

    def seen(self, event: Shown) -> None:
        """An Emit: what became durable, for the hooks that are told of it."""
        if self._hooks and isinstance(event, Recorded):
            self._note(event.stored)
        self._emit(event)

    def _note(self, stored: r.Stored) -> None:
        thread = stored.thread or "main"
        match stored.body:
            case r.CallFinished(call=call) as body if call in self._calls:
                made = self._calls[call]
                end = (body.outcome, body.result.text, body.exit_code, body.changed)
                told = AfterCall(self._session, thread, call, made.tool, made.args, *end)
                self._waiting.append((_for(self._hooks.after_call, made.tool), told))
            case r.ModelResponded(parts=parts):
                self._answers[thread] = text_of(parts)
            case r.SubmissionSettled(submission=submission, outcome="answered"):
                text = self._answers.pop(thread, "")
                self._waiting.append((self._hooks.on_answer, OnAnswer(self._session, thread, submission, text)))
            case _:
                pass
        self._calls = reduce(self._calls, stored)

    async def tell(self, journal: Journal) -> None:
        """Run the hooks for what has become durable. The thread of a subagent is gone by then where its answer was taken over."""
        waiting, self._waiting = self._waiting, []
        for hooks, event in waiting:
            if isinstance(event, OnAnswer) and event.thread in journal.state.threads:
                event = replace(event, text=journal.state.threads[event.thread].answer)
            await self._all(hooks, event)

    async def before_request(self, journal: Journal, thread: str) -> None:
        if not self._hooks:
            return
        await journal.flush()
        await self.tell(journal)
        turn = journal.state.threads[thread].turn
        if self._hooks.before_request and turn is not None:
            told = BeforeRequest(self._session, thread, turn.n, turn.attempts, turn.model)
            await self._all(self._hooks.before_request, told)

    async def _all(self, hooks: tuple[Hook, ...], event: Event) -> None:
        for hook in hooks:
            try:
                await self._run(hook, event)
            except HookFailedError as error:
                self._emit(Notice(str(error)))

    # ---- deciding ----------------------------------------------------------------------------------------------------------

    async def before_call(self, journal: Journal, call: Call) -> Ruling:
        """What they say to a call that is not decided yet. What has happened is committed first. Raises Redecide where the work was stopped meanwhile."""
        hooks = _for(self._hooks.before_call, call.tool)
        if not hooks or call.id in self._ruled:
            return self._ruled.get(call.id, Ruling())
        await journal.flush()
        ids = lineage(journal.state, call.thread)
        stop = watch(journal.store, self._session, submissions=ids, after=journal.state.seq, left_s=None)
        ruled = await either(self._ruling(hooks, call), stop)
        if isinstance(ruled, Stopped):
            await journal.refresh()
            raise Redecide
        self._ruled[call.id] = ruled
        return ruled

    async def _ruling(self, hooks: tuple[Hook, ...], call: Call) -> Ruling:
        """What they say together: each sees the arguments as the one before left them, and the first denial is the last word."""
        tool, args = self._tools.get(call.tool), call.args
        assert tool is not None
        said = Ruling()
        for hook in hooks:
            try:
                answer = await self._run(hook, BeforeCall(self._session, call.thread, call.id, call.tool, args))
            except HookFailedError as error:
                return Ruling("deny", f"Not run: {error}.")
            if answer.decision == "deny":
                return Ruling("deny", answer.reason or f"The hook `{hook.name}` does not allow this call.")
            if answer.args is not None:
                if problem := tool.problem(answer.args):
                    return Ruling("deny", f"Not run: the hook `{hook.name}` gave it other arguments, which are wrong: {problem}")
                args = answer.args
            if answer.decision == "allow":
                said = answer
        return Ruling(said.decision, said.reason, None if args is call.args else args)

    # ---- one ---------------------------------------------------------------------------------------------------------------

    async def _run(self, hook: Hook, event: Event) -> Ruling:
        """Its answer. HookFailedError says what it did instead."""

        def command(life: int) -> tuple[str, ...]:
            if hook.python:
                return sys.executable, "-P", "-m", "perdure.program.hookhost", hook.python, str(life)
            return "/bin/sh", "-c", _ENDING, "sh", str(life), hook.command

        environment = {**self._environment, **(importing() if hook.python else {})}
        try:
            async with child(command, self._directory, environment) as process, asyncio.timeout(hook.timeout_s):
                out, err = await _talk(process, msgspec.json.encode(event))
        except TimeoutError:
            raise HookFailedError(f"the hook `{hook.name}` took more than {hook.timeout_s:g} s and was killed") from None
        except OSError as error:
            raise HookFailedError(f"the hook `{hook.name}` can't be run: {error.strerror}") from error
        if process.returncode != 0:
            said = printable(err.decode(errors="replace").strip()[-TOLD_CHARS:])
            raise HookFailedError(f"the hook `{hook.name}` failed: {said or f'exit code {process.returncode}'}")
        return _answered(hook, out)


def _answered(hook: Hook, out: bytes) -> Ruling:
    if not out.strip():
        return Ruling()
    try:
        return msgspec.json.decode(out, type=Ruling)
    except msgspec.MsgspecError as error:
        said = printable(out.decode(errors="replace").strip()[:TOLD_CHARS])
        raise HookFailedError(f"the hook `{hook.name}` printed no answer ({error}): {said}") from error


def _for(hooks: tuple[Hook, ...], tool: str) -> tuple[Hook, ...]:
    return tuple(hook for hook in hooks if not hook.tools or tool in hook.tools)


async def _talk(process: asyncio.subprocess.Process, data: bytes) -> tuple[bytes, bytes]:
    """Its output and its complaints, as far as anybody will look at them. A hook need not read what it is told."""
    assert process.stdin and process.stdout and process.stderr
    out, err, _ = await asyncio.gather(_read(process.stdout), _read(process.stderr), _write(process.stdin, data))
    await process.wait()
    return out, err


async def _read(stream: asyncio.StreamReader) -> bytes:
    kept = bytearray()
    while piece := await stream.read(1 << 16):
        kept += piece[: MAX_ANSWER_BYTES - len(kept)]
    return bytes(kept)


async def _write(stream: asyncio.StreamWriter, data: bytes) -> None:
    try:
        stream.write(data)
        await stream.drain()
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        stream.close()
