"""Asking the model: one attempt at a turn's request, streamed, and what its end means.

Text is stored before it is shown (`LiveText`), so after any crash the next attempt knows what people have already read and goes on from there. A
failure is a fact with the time of the next try, and with the model that is asked then; attempts are counted in the log, so no restart resets them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Literal

from perdure.drive.events import Emit, TextShown
from perdure.drive.interrupt import Stopped, either, watch
from perdure.drive.journal import Journal
from perdure.drive.waits import Waits
from perdure.log.live import LiveText, Piece
from perdure.model.stream import Context, Delta, Final, Model, ModelError, Overflow, Refused, Retryable
from perdure.program import compaction
from perdure.program.context import Transcript
from perdure.program.stopping import deadline_of
from perdure.program.tools import ToolSet
from perdure.record import records as r
from perdure.record.errors import BlobGoneError, CorruptLogError, UsageError
from perdure.record.parts import Digest, ToolCall, Usage, text_of
from perdure.record.records import Draft
from perdure.space import content
from perdure.spaced.steps import step
from perdure.state.state import lineage
from perdure.state.threads import Thread, Turn, tool_calls

_END = object()
REQUEST_S = 1800.0
MODEL_TRIES = 3
RETRY_BASE_S = 2.0
RETRY_CAP_S = 60.0
MAX_CONTINUATIONS = 3


class Asking:
    def __init__(
        self,
        journal: Journal,
        live: LiveText,
        tools: ToolSet,
        models: Callable[[str], Model],
        *,
        system: Callable[[], str],
        emit: Emit,
    ) -> None:
        self._journal = journal
        self._live = live
        self._tools = tools
        self._models = models
        self._system = system
        self._emit = emit
        self._transcripts: dict[str, Transcript] = {}
        self._blobs: dict[Digest, bytes] = {}
        self._inherited = journal.state.seq
        self._streamed = False

    async def ask(self, thread_name: str) -> None:
        """One attempt; its facts are pending when this returns."""
        await self._journal.flush()
        state = self._journal.state
        thread = state.threads[thread_name]
        turn = thread.turn
        assert turn is not None
        self._model(turn.model)
        submission = state.submissions[turn.submission]
        stop = watch(
            self._journal.store,
            self._journal.grant.session,
            submissions=lineage(state, thread_name),
            after=state.seq,
            left_s=self._journal.left_s(deadline_of(state, submission)),
        )
        step("ask.before")
        try:
            answer = await either(self._stream(thread, turn), stop)
        except ModelError as error:
            step("ask.failed")
            await self._failed(thread, turn, error)
            return
        step("ask.after")
        if isinstance(answer, Stopped):
            await self._cut(thread, turn, answer.reason)
        elif _blank(answer, turn) and not turn.partial:
            await self._failed(thread, turn, Retryable("the model's reply was blank"), answer.usage)
        else:
            self._responded(thread, turn, answer)

    async def _stream(self, thread: Thread, turn: Turn) -> Final:
        model = self._model(turn.model)
        request = model.prepare(await self._context(thread, turn))
        writer = self._live.writer(self._journal.grant.session, thread.name, turn.n, turn.attempts)
        final: Final | None = None
        try:
            async with model.stream(request, REQUEST_S) as stream:
                async for piece in _ticking(stream, lambda: writer.due_in_s):
                    if turn.purpose == "compact" and not isinstance(piece, Final):
                        continue  # no answer, and nobody's to read
                    if piece is None:
                        self._show(thread, turn, await writer.flush())
                    elif isinstance(piece, Final):
                        final = piece
                    else:
                        self._show(thread, turn, await writer.add(piece.text, piece.channel))
            if final is None:
                raise Retryable("the answer ended without an end")
        except ModelError:
            # What came before the failure was paid for, and can be continued.
            self._streamed = True
            self._show(thread, turn, await writer.flush())
            raise
        if writer.begun:
            self._streamed = True
            self._show(thread, turn, await writer.flush())
        return final

    async def _context(self, thread: Thread, turn: Turn) -> Context:
        options = {**turn.options, "attempt": turn.attempts, "cache_key": self._journal.state.session.log_id}
        if turn.purpose == "compact":
            return compaction.request(thread, turn, options)
        transcript = self._transcripts.setdefault(thread.name, Transcript())
        if transcript.read(thread):
            used = set[Digest]().union(*(each.blobs for each in self._transcripts.values()))
            self._blobs = {digest: whole for digest, whole in self._blobs.items() if digest in used}
        blobs = await self._needed(transcript)
        return transcript.context(thread, system=self._system(), tools=self._tools.specs, blobs=blobs, options=options)

    def _show(self, thread: Thread, turn: Turn, pieces: list[Piece]) -> None:
        for piece in pieces:
            step("shown")
            self._emit(TextShown(thread.name, turn.n, piece.text, piece.channel))

    def _model(self, name: str) -> Model:
        try:
            return self._models(name)
        except UsageError as error:
            raise Waits("model_unavailable", str(error)) from error

    async def _needed(self, transcript: Transcript) -> Mapping[Digest, bytes]:
        missing = {digest: size for digest, size in transcript.blobs.items() if digest not in self._blobs}
        if missing:
            get = self._journal.store.blobs.get
            found, lost = await get(missing), set[Digest]()
            for digest, whole in found.items():
                try:
                    found[digest] = whole if len(whole) == missing[digest] else await content.load(digest, missing[digest], get)
                except BlobGoneError as error:
                    lost.update(error.digests)
            if gone := sorted((missing.keys() - found.keys()) | lost):
                raise CorruptLogError(
                    f"{len(gone)} chunk(s) of the transcript are lost or damaged, the first is {gone[0]}: it can't be sent any more. "
                    "The records can be read (`perdure show`); go on in a new session"
                )
            self._blobs.update(found)
        return self._blobs

    # ---- what it ended with ------------------------------------------------------------------------------------------------

    def _responded(self, thread: Thread, turn: Turn, final: Final) -> None:
        fact = self._journal.fact
        if turn.purpose == "compact":
            name = self._model(turn.model).name
            summary = text_of(final.parts).strip()
            fact(Draft(r.Compacted(turn.cut, summary, turn.n, turn.attempts, final.usage, name), thread.name, turn.started_seq))
            return
        body = r.ModelResponded(
            turn.n, turn.attempts, final.parts, final.usage, final.stop, self._model(turn.model).name, final.extra
        )
        fact(Draft(body, thread.name, turn.started_seq))
        for index, call in enumerate(tool_calls(final.parts)):
            fact(Draft(self._proposed(thread, turn, index, call), thread.name, -1 - index))

    def _proposed(self, thread: Thread, turn: Turn, index: int, call: ToolCall) -> r.CallProposed:
        tool = self._tools.get(call.tool)
        return r.CallProposed(
            f"{thread.name}.{turn.n}.{index}",
            call.tool,
            call.args,
            turn.n,
            index,
            call.id,
            tool.place if tool else "driver",
            submission=turn.submission,
            problem=tool.problem(call.args, call.raw) if tool else None,
        )

    async def _failed(self, thread: Thread, turn: Turn, error: ModelError, usage: Usage | None = None) -> None:
        partial = await self.partial(thread, turn)
        retry_at = None
        if isinstance(error, Retryable) and turn.failures + 1 < MODEL_TRIES:
            retry_at = self._journal.clock() + _pause_s(turn.failures, error.after_s)
        if isinstance(error, Overflow) and turn.purpose == "compact" and turn.failures + 1 < len(compaction.SHARES):
            retry_at = self._journal.clock()  # with less of the conversation
        following = "" if retry_at is not None else self._following(turn, error)
        if following:
            retry_at = self._journal.clock()
        body = r.ModelFailed(
            turn.n,
            turn.attempts,
            _failure(error),
            str(error),
            error.status,
            retry_at,
            partial if retry_at is not None else "",
            usage or Usage(),
            turn.model,
            following,
        )
        self._journal.fact(Draft(body, thread.name, turn.started_seq))

    def _following(self, turn: Turn, error: ModelError) -> str:
        """Who is asked instead of a model that gives nothing: the next of the list, or its first where a person has chosen another list meanwhile.

        What is too long or refused is a matter of the request, and goes to nobody else.
        """
        session = self._journal.state.session
        models = (session.model, *session.fallbacks)
        if isinstance(error, Overflow | Refused):
            return ""
        following = models[models.index(turn.model) + 1 :] if turn.model in models else models
        return following[0] if following else ""

    async def _cut(self, thread: Thread, turn: Turn, reason: str) -> None:
        """Aborted, or out of time: what people have read stays in the transcript."""
        partial = await self.partial(thread, turn)
        body = r.ModelFailed(turn.n, turn.attempts, "cut", reason, partial=partial, model=turn.model)
        self._journal.fact(Draft(body, thread.name, turn.started_seq))

    async def partial(self, thread: Thread, turn: Turn) -> str:
        """Text of the turn's newest attempt that may be continued: not blank, and without a call begun."""
        if turn.continued >= MAX_CONTINUATIONS:
            return ""
        pieces = await self._live.read(self._journal.grant.session, thread.name, turn.n, turn.attempts)
        if any(piece.channel == "call" for piece in pieces):
            return ""
        text = "".join(piece.text for piece in pieces if piece.channel == "text")
        return text if text.strip() else ""

    async def forget(self) -> None:
        """Everything is answered: the records have the text, and nobody continues it."""
        if self._streamed:
            await self._live.forget(self._journal.grant.session)
            self._streamed = False

    async def recover(self) -> None:
        """Turns whose request an earlier driver's crash cut off: counted, and continued where text had been shown."""
        for thread in self._journal.view.threads.values():
            turn = thread.turn
            if turn is None or turn.responded or turn.started_seq > self._inherited:
                continue
            if turn.failed is not None and (turn.failed.retry_at is None or turn.failed.retry_at > self._journal.clock()):
                continue
            self._streamed = True
            partial = await self.partial(thread, turn)
            decision = "continue" if partial else "retry"
            evidence = f"{len(partial)} characters had been shown" if partial else "no answer was committed"
            body = r.Recovered(decision, evidence, turn=turn.n, attempt=turn.attempts + 1, partial=partial)  # type: ignore[arg-type]
            self._journal.fact(Draft(body, thread.name, turn.started_seq))
        self._inherited = 0


async def _ticking(
    stream: AsyncIterator[Delta | Final], due_in_s: Callable[[], float | None]
) -> AsyncIterator[Delta | Final | None]:
    """The stream's pieces, and None whenever held-back text is due while the next piece is not there yet."""
    following: asyncio.Future[Any] | None = None
    try:
        while True:
            if following is None and due_in_s() is None:
                piece = await anext(stream, _END)  # nothing is held back that could become due
            else:
                following = following or asyncio.ensure_future(anext(stream, _END))
                done, _ = await asyncio.wait((following,), timeout=due_in_s())
                if not done:
                    yield None
                    continue
                piece, following = following.result(), None
            if piece is _END:
                return
            yield piece  # type: ignore[misc]
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


def _blank(answer: Final, turn: Turn) -> bool:
    """Nothing to read and nothing to do, and no reason given for it."""
    if turn.purpose == "compact":
        return not text_of(answer.parts).strip()
    return answer.stop not in ("length", "refused") and not tool_calls(answer.parts) and not text_of(answer.parts).strip()


def _pause_s(failures: int, after_s: float | None) -> float:
    """Doubling from the base, or what the provider asked for; never beyond the cap."""
    return min(RETRY_CAP_S, RETRY_BASE_S * 2**failures if after_s is None else max(after_s, 0.0))


def _failure(error: ModelError) -> Literal["retryable", "overflow", "refused", "permanent"]:
    if isinstance(error, Overflow):
        return "overflow"
    if isinstance(error, Refused):
        return "refused"
    return "retryable" if isinstance(error, Retryable) else "permanent"
