"""The calls of a turn: decided, started, carried out and finished.

What a call is about to do is durable before it does it (`call_started`, with the image before it); what it did is a fact with the image that the
Space took when it ended. Calls of class `none` run together; their results keep the model's order in the log all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any

from msgspec.structs import replace

from perdure.drive import excluding, told
from perdure.drive.events import Emit, OutputShown
from perdure.drive.interrupt import Stopped, either, watch
from perdure.drive.journal import Journal
from perdure.drive.places import DriverPlace
from perdure.drive.site import Site
from perdure.drive.virtual import Virtual
from perdure.program import delegation
from perdure.program.conversation import effect_of
from perdure.program.program import Calls
from perdure.program.stopping import deadline_of
from perdure.program.tools import Tool, ToolSet
from perdure.record import records as r
from perdure.record.errors import RootReplacedError, SpaceGoneError, StaleEpochError, StoreFullError
from perdure.record.parts import printable
from perdure.record.records import Draft
from perdure.space.space import Capture, Edit, Exec, Expect, Op, OpResult, Status, Write
from perdure.spaced.steps import step
from perdure.state.calls import Call, signature
from perdure.state.state import lineage

TEXT = "text/plain; charset=utf-8"
INLINE_TEXT_BYTES = 16 * 1024
LARGEST_VIEW_BYTES = 60 * 1024
"""Above what the Space's own views come to, and below what rides in a commit."""

PREVIEW_CHARS = 2000
SHORT_S = 0.05
"""What an operation prints is shown, and who might stop it is looked after, once it has run so long; of a shorter one the record tells all."""


class _DiffersError(Exception):
    """The workspace is not what the call was to begin with."""

    def __init__(self, call: Call, capture: Capture) -> None:
        super().__init__(call.id)
        self.call, self.capture = call, capture


class Rounds:
    def __init__(self, journal: Journal, site: Site, tools: ToolSet, place: DriverPlace, virtual: Virtual, *, emit: Emit) -> None:
        self._journal = journal
        self._site = site
        self._tools = tools
        self._place = place
        self._virtual = virtual
        self._emit = emit
        self._readers: set[str] = set()
        self._expect: Expect | None = None

    async def run(self, action: Calls) -> None:
        """Carry the calls out: those that were begun are waited for, the others decided and started."""
        calls = [self._journal.view.calls[id] for id in action.calls]
        if all(call.started for call in calls):
            await self._carry(calls, begun=True)
            return
        startable = [call for call in calls if self._startable(call)]
        if startable and (started := await self._start(startable)):
            await self._carry(started, begun=False)

    def _startable(self, call: Call) -> bool:
        """Finish what can't run, with what the model has to know."""
        tool = self._tools.get(call.tool)
        if call.problem is not None:
            self._finish_unrun(call, "error", call.problem)
        elif tool is None:
            self._finish_unrun(call, "error", f"There is no tool named '{call.tool}'. Tools: {', '.join(self._tools.names)}.")
        elif delegation.opens_thread(call) and self._journal.view.threads[call.thread].call is not None:
            self._finish_unrun(call, "error", delegation.NOT_NESTED)
        elif call.verdict is not None and call.verdict.verdict == "deny":
            self._finish_unrun(call, "denied", call.verdict.reason or "This call is not allowed.")
        else:
            return True
        return False

    def _finish_unrun(self, call: Call, outcome: r.Outcome, text: str) -> None:
        self._journal.fact(Draft(r.CallFinished(call.id, outcome, r.Result(text)), call.thread, call.seq))

    # ---- starting ----------------------------------------------------------------------------------------------------------

    async def _start(self, calls: list[Call]) -> list[Call]:
        base = None
        self._expect = None
        if any(self._effect(call) != "none" for call in calls):
            base = await self._base(calls[0])
        for call in calls:
            self._journal.decide(Draft(self._started(call, base), call.thread, call.seq))
            if delegation.opens_thread(call):
                self._journal.decide(*delegation.opening(call))
        await self._journal.flush()
        return [self._journal.state.calls[call.id] for call in calls if not delegation.opens_thread(call)]

    async def _base(self, call: Call) -> r.Image:
        """The image before the call. Where the Space can, it looks itself whether that is what there is, when it is asked to begin.

        It is asked so once: what a server writes all the time would be another at each look.
        """
        tool = self._tools.get(call.tool)
        if tool is not None and tool.place == "space" and not self._readers and not call.attempts:
            self._expect = self._site.expected()
        known = self._journal.view.workspace.image
        if self._expect is not None and known is not None:
            return known
        image = await self._site.compare("before_call", call.id)
        self._doubt(known, image)
        return image

    def _doubt(self, before: r.Image | None, image: r.Image) -> None:
        """What changed while one foreign reader was all that ran is held against that tool from now on."""
        readers, self._readers = self._readers, set()
        if before is not None and not image.same_files(before) and len(readers) == 1:
            doubted = tuple(sorted({*self._journal.view.session.doubted, *readers}))
            self._journal.fact(Draft(r.SettingsChanged(doubted=doubted)))

    def _started(self, call: Call, base: r.Image | None) -> r.CallStarted:
        tool = self._tools.get(call.tool)
        assert tool is not None
        attempt = call.attempts + 1
        ledgered = tool.place == "space"
        effect = self._effect(call)
        return r.CallStarted(
            call.id,
            attempt,
            key=f"{self._journal.state.session.log_id}:{call.id}:{attempt}",
            effect=effect,
            ledgered=ledgered,
            policy={} if tool.undo else {"undo": "never"},
            place=tool.place,
            base=base if effect != "none" else None,
            incarnation=self._site.space.incarnation if ledgered else None,
            instance=self._site.space.instance if ledgered else 0,
            position=self._site.space.position if ledgered else 0,
            exclude_digest=excluding.digest(self._journal.view.session.exclude),
        )

    def _effect(self, call: Call) -> r.EffectClass:
        """A command in a proven hermetic Space changes nothing but the workspace, where nothing in there leads further."""
        effect = effect_of(self._journal.view, call.tool, self._tools.effect(call.tool))
        hermetic = self._site.is_open and self._site.space.traits.hermetic and not self._site.reaching
        tool = self._tools.get(call.tool)
        return "workspace" if effect == "external" and hermetic and tool and tool.place == "space" else effect

    # ---- carrying out ------------------------------------------------------------------------------------------------------

    async def _carry(self, calls: list[Call], *, begun: bool) -> None:
        """`begun` calls were met under way by this driver; the Space knows their keys."""
        try:
            if len(calls) == 1:
                finished = [await self._one(calls[0], begun)]
            else:
                finished = await _together(self._one(call, begun) for call in calls)
        except _DiffersError as other:
            await self._begin_again(other.call, other.capture)
            return
        for call, body in zip(calls, finished, strict=True):
            self._journal.fact(Draft(body, call.thread, call.seq))

    async def _begin_again(self, call: Call, found: Capture) -> None:
        """Somebody has changed the workspace since the log's image; nothing has begun, and the next attempt is against what there is."""
        await self._site.found(found, "before_call", call.id)
        body = r.Recovered("start", r.CHANGED_BEFORE, call=call.id, attempt=call.attempts)
        self._journal.fact(Draft(body, call.thread, call.seq))

    async def _one(self, call: Call, begun: bool) -> r.CallFinished:
        tool = self._tools.get(call.tool)
        assert tool is not None and call.started is not None
        if tool.place != "space":
            return await self._outside(call, tool)
        if self._virtual.serves(call.tool, call.args):
            result = await self._virtual.read(self._journal.state, self._journal.grant.session, call.args)
            return await self._finished(call, Status("ended", cause="self", result=result), result)
        return await self._inside(call, tool, begun)

    async def _inside(self, call: Call, tool: Tool, begun: bool) -> r.CallFinished:
        assert call.started is not None
        space, key = self._site.space, call.started.key
        ended: Status | Stopped
        if begun:
            ended = await space.wait(key, SHORT_S)
        else:
            step(f"op.before:{call.tool}")
            expect = self._expect if call.started.base is not None else None
            op = self._operation(call, tool)
            ended = await space.start(key, op, base=call.started.base, wait_s=SHORT_S, expect=expect)
            if ended.differs is not None:
                raise _DiffersError(call, ended.differs)
            step(f"op.started:{call.tool}")
        if ended.state == "running":
            ended = await either(self._end(call), self._watch(call))
        reason = ""
        if isinstance(ended, Stopped):
            reason = ended.reason
            ended = await space.stop(key)
        step(f"op.ended:{call.tool}")
        result = ended.result or OpResult(False, "The Space has no result for this call.")
        if ended.capture is not None:
            await self._site.take(ended.capture.chunks)
            self._site.settles(ended.capture.image)
        return await self._finished(call, ended, result, reason)

    def _operation(self, call: Call, tool: Tool) -> Op:
        """The Space's operation, with what the driver knows: the time that is left, the key, what the model last saw."""
        assert tool.operation is not None and call.started is not None
        op = tool.operation(tool.convert(call.args))
        seen = self._journal.state.threads[call.thread].seen
        if isinstance(op, Exec):
            left_s = self._left_s(call)
            timeout_s = op.timeout_s if left_s is None else max(0.1, min(op.timeout_s, left_s))
            env = {"PERDURE_CALL_KEY": _repeatable_key(call.started)}
            return Exec(op.command, timeout_s, env, op.background, op.mutating, op.max_output_bytes)
        if isinstance(op, Write):
            return Write(op.path, op.content, seen.get(op.path))
        if isinstance(op, Edit):
            return Edit(op.path, op.edits, seen.get(op.path))
        return op

    def _deadline(self, call: Call) -> float | None:
        submission = self._journal.state.submissions.get(call.submission or "")
        return deadline_of(self._journal.state, submission) if submission else None

    def _left_s(self, call: Call) -> float | None:
        return self._journal.left_s(self._deadline(call))

    async def _watch(self, call: Call) -> Stopped:
        state, session = self._journal.state, self._journal.grant.session
        ids = lineage(state, call.thread)
        for submission in (state.submissions[id] for id in ids if id in state.submissions):
            if submission.aborted is not None:
                return Stopped("abort", submission.aborted)
        return await watch(self._journal.store, session, submissions=ids, after=state.seq, left_s=self._left_s(call))

    async def _end(self, call: Call) -> Status:
        """Its end. What it prints until then is shown."""
        assert call.started is not None
        showing = asyncio.create_task(self._show(call)) if call.tool == "bash" else None
        try:
            return await self._site.space.wait(call.started.key)
        finally:
            if showing:
                await _within(showing, 0.2)

    async def _show(self, call: Call) -> None:
        assert call.started is not None
        async for data in self._site.space.output(call.started.key):
            self._emit(OutputShown(call.id, data))

    async def _outside(self, call: Call, tool: Tool) -> r.CallFinished:
        """A tool in the driver's place: no ledger; it is killed at its deadline and then unknown."""
        assert call.started is not None
        left_s = self._left_s(call)
        timeout_s = tool.timeout_s if left_s is None else max(0.1, min(tool.timeout_s, left_s))
        if call.started.effect == "none":
            self._readers.add(tool.name)
        step(f"op.before:{call.tool}")
        # No fence out there holds a driver that was frozen up to here and overtaken; the log's does.
        await self._journal.store.renew(self._journal.grant)
        key = _repeatable_key(call.started)
        ended = await either(self._place.run(tool, call.args, key, timeout_s), self._watch(call))
        step(f"op.ended:{call.tool}")
        if isinstance(ended, Stopped):
            status, result = Status("ended", cause="abort"), OpResult(False, told.stopped_outside(ended.reason))
            outcome: r.Outcome | None = "unknown"
        else:
            status, result = ended.status, ended.result
            outcome = "unknown" if ended.lost else None
        body = await self._finished(call, status, result)
        return await self._looked(call, replace(body, outcome=outcome or body.outcome))

    async def _looked(self, call: Call, body: r.CallFinished) -> r.CallFinished:
        """With what it changed in the workspace. If that can't be looked at by now, what it answered is a fact all the same."""
        assert call.started is not None
        if call.started.base is None:
            return body
        try:
            capture = await self._site.space.capture(call.started.base)
            await self._site.take(capture.chunks)
        except (SpaceGoneError, StoreFullError, RootReplacedError):
            self._journal.fact(Draft(body, call.thread, call.seq))
            raise
        return _imaged(body, capture)

    # ---- finishing ---------------------------------------------------------------------------------------------------------

    async def _finished(self, call: Call, status: Status, result: OpResult, stopped: str = "") -> r.CallFinished:
        note = told.aborted(stopped or "aborted") if status.cause == "abort" else ""
        body = r.CallFinished(
            call.id,
            _outcome(status, result),
            await self._result(call, result, note),
            attempt=call.attempts,
            exit_code=result.exit_code,
            cause=status.cause or "self",
            duration_s=result.duration_s,
            position=status.position,
            seen={printable(path): digest for path, digest in result.seen.items()},
        )
        return _imaged(body, status.capture) if status.capture else body

    async def _result(self, call: Call, result: OpResult, note: str) -> r.Result:
        """What the model sees of it; the whole is kept where that is a part."""
        assert call.started is not None
        text, output = printable(result.text), None
        if earlier := self._journal.view.uncertain.get(signature(call.tool, call.args)):
            text = f"{told.repeated(earlier)}\n{text}"
        if result.truncated and result.output_bytes:
            output = await self._virtual.keep(self._journal, self._site.space.output(call.started.key), TEXT)
        if len(text.encode()) > LARGEST_VIEW_BYTES:
            output = output or await self._virtual.keep(self._journal, _whole(text), TEXT)
            text = _cut(text, call.id)
        text = f"{text}\n{note}".strip("\n") if note else text
        data = text.encode()
        if len(data) <= INLINE_TEXT_BYTES:
            return r.Result(text, output=output)
        return r.Result(text[:PREVIEW_CHARS], self._virtual.blob(self._journal, data, TEXT), output)


def _repeatable_key(started: r.CallStarted) -> str:
    """What the tool may show to a service. Every attempt of an idempotent call has the same, so that a repetition is known as one."""
    return started.key.rpartition(":")[0] if started.effect == "idempotent" else started.key


def _imaged(body: r.CallFinished, capture: Capture) -> r.CallFinished:
    return replace(
        body,
        image=capture.image,
        changed=tuple(map(printable, capture.changed)),
        changed_count=capture.changed_count,
        left=capture.left,
        opaque=tuple(map(printable, capture.opaque)),
        opaque_changed=tuple(map(printable, capture.opaque_changed)),
    )


def _outcome(status: Status, result: OpResult) -> r.Outcome:
    if status.cause == "abort":
        return "aborted"
    return "ok" if result.ok and status.cause == "self" else "error"


async def _whole(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


def _cut(text: str, call: str) -> str:
    """What its own tool did not bound."""
    data = text.encode()
    note = f"\n[… {len(data)} bytes in all; `read` of `output:{call}` shows the whole …]"
    return data[: LARGEST_VIEW_BYTES - len(note)].decode(errors="ignore") + note


async def _together(works: Iterable[Coroutine[Any, Any, r.CallFinished]]) -> list[r.CallFinished]:
    """All at once, in their order. Where one fails the others are cancelled, and its own error goes on, not a group of one."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as errors:
        stale = (error for error in errors.exceptions if isinstance(error, StaleEpochError))
        raise next(stale, errors.exceptions[0]) from None
    return [task.result() for task in tasks]


async def _within(task: asyncio.Task[None], seconds: float) -> None:
    """Let a display catch up; it must never hold the work up."""
    _, pending = await asyncio.wait((task,), timeout=seconds)
    for late in pending:
        late.cancel()
    await asyncio.gather(task, return_exceptions=True)
