"""Carrying out what `decide` decides: the order in which a new driver makes log and Space agree again.

    reach the Space → say what is to be adopted → fence → decide each open call → carry it out → compare the workspace with the log

Each decision is a record before it is carried out. A crash in here leads to new decisions from the evidence that is there then; only an undo that was
decided keeps its window, since the evidence for that is used up by the first look. People's work is never touched: the window rule is the Space's
(`perdure.spaced.restore`), and what it takes back is salvaged into the log first.
"""

from __future__ import annotations

import asyncio
import time

from msgspec import Struct
from msgspec.structs import replace

from perdure.drive import excluding, rebuilding, told
from perdure.drive.decide import Adopt, Decision, Evidence, Known, Start, Stay, Undo, Unknown, classify, decide
from perdure.drive.events import Emit, Notice
from perdure.drive.journal import Journal
from perdure.drive.site import Site
from perdure.drive.spaces import Opened
from perdure.drive.waits import Waits
from perdure.program.delegation import opens_thread
from perdure.program.tools import ToolSet
from perdure.record import records as r
from perdure.record.errors import RootRefusedError, SurvivorsError, UsageError
from perdure.record.parts import printable
from perdure.record.records import Draft, Image, Window
from perdure.space import image
from perdure.space.sandbox import failures
from perdure.space.space import Plan, Status
from perdure.spaced.steps import step
from perdure.state.calls import Call
from perdure.state.workspace import life

STAMP_SLACK_NS = 2_000_000_000
"""A running operation is stamped each second, so its end is known to two."""

FIRST_IMAGE_TOLD_S = 2.0
HELD_S = 60.0
"""A supervisor with nothing to do leaves a directory within a minute."""

NOT_HERMETIC = "this sandbox is not hermetic, so a command that is cut off may have reached outside and is not run again"
SALVAGE_ID_CHARS = 12
COMMANDS = ("bash",)


class _Found(Struct, frozen=True):
    """An open call, what is known of it, and what becomes of it."""

    call: Call
    status: Status | None
    evidence: Evidence
    decision: Decision


class Recovery:
    def __init__(self, journal: Journal, site: Site, tools: ToolSet, *, emit: Emit) -> None:
        self._journal = journal
        self._site = site
        self._tools = tools
        self._emit = emit

    async def run(self) -> None:
        """After this the Space is this epoch's, each open call is adopted, undone or finished, and the workspace is the log's."""
        step("recover.begin")
        try:
            opened = await self._site.open(accepted=self._accepted("survivors"))
        except SurvivorsError as error:
            raise Waits("survivors", f"{error}; end them, or `perdure resume --accept`") from error
        except RootRefusedError as error:
            raise Waits("space_unavailable", str(error), again_s=HELD_S) from error
        except UsageError as error:
            raise Waits("space_unavailable", str(error)) from error
        self._record_opening(opened)
        open_calls = [call for call in self._journal.view.calls.values() if call.started and not opens_thread(call)]
        adopt = await self._announce(open_calls)
        step("recover.announced")
        fenced = await self._site.space.fence(self._journal.grant.epoch, adopt)
        step("recover.fenced")
        survivors = (*opened.survivors, *fenced.survivors)
        if survivors and not self._accepted("survivors"):
            names = ", ".join(f"{p.command} (pid {p.pid})" for p in survivors)
            raise Waits(
                "survivors", f"processes of the last supervisor may still run: {names}; end them, or `perdure resume --accept`"
            )
        await excluding.hold(self._journal, self._site)
        await rebuilding.fill(self._journal, self._site, opened)
        found = await self._evidence(open_calls)
        for item in found:
            await self._carry_out(item)
        if not any(isinstance(item.decision, Adopt) for item in found):
            await excluding.renew(self._journal, self._site, self._emit)
            await self._compare()
        await self._journal.flush()
        step("recover.end")

    # ---- reaching the Space ------------------------------------------------------------------------------------------------

    def _record_opening(self, opened: Opened) -> None:
        space, before = opened.space, self._journal.view.workspace.space
        if before and (before.incarnation, before.instance) == (space.incarnation, space.instance):
            return
        if before and self._journal.view.workspace.lost is None:
            reason = _how_lost(before.incarnation, space.incarnation)
            dead_at_ns = opened.dead_at_ns if opened.dead_instance == before.instance else None
            self._journal.fact(Draft(r.SpaceLost(before.incarnation, before.instance, reason, dead_at_ns)))
        sandbox = bool(opened.self_test)
        if sandbox and not space.traits.hermetic:
            self._emit(Notice(f"{NOT_HERMETIC}: {'; '.join(failures(opened.self_test))}"))
        body = r.SpaceOpened(
            space.incarnation,
            space.instance,
            space.init,
            space.traits.custody,
            space.traits.hermetic,
            space.traits.own_workspace,
            opened.self_test,
            opened.mounts_left_out,
            scratch_gone=sandbox and self._journal.view.workspace.used,
        )
        self._journal.fact(Draft(body))

    async def _announce(self, open_calls: list[Call]) -> set[str]:
        """Commit which running operations are to be adopted: those that the log knows."""
        keys = {call.started.key: call for call in open_calls if call.started and call.started.ledgered}
        statuses = await self._site.space.status(set(keys)) if keys else {}
        running = {key for key, status in statuses.items() if status.state == "running"}
        for key in sorted(running):
            call = keys[key]
            if call.recovered is None or call.recovered.decision != "attach":
                body = r.Recovered("attach", "running", call=call.id, attempt=call.attempts)
                self._journal.fact(Draft(body, call.thread, call.seq))
        await self._journal.flush()
        return running

    async def _evidence(self, open_calls: list[Call]) -> list[_Found]:
        space = self._site.space
        keys = {call.started.key for call in open_calls if call.started and call.started.ledgered}
        statuses = await space.status(keys) if keys else {}
        logged = self._journal.view.workspace.position
        found = []
        for call in open_calls:
            assert call.started is not None
            status = statuses.get(call.started.key)
            known = Known(status, space.incarnation, space.position, logged, space.traits)
            evidence = classify(call.started, known)
            tool = self._tools.get(call.tool)
            decision = decide(
                call.started,
                evidence,
                command=call.tool in COMMANDS,
                reruns=call.undone,
                undo=tool.undo if tool else True,
            )
            found.append(_Found(call, status, evidence, decision))
        return found

    # ---- carrying out ------------------------------------------------------------------------------------------------------

    async def _carry_out(self, item: _Found) -> None:
        call = item.call
        match item.decision:
            case Adopt():
                if item.evidence == "ended":
                    self._decided(call, "adopt", "ended")
            case Start():
                self._decided(call, "start", item.evidence)
                await self._journal.flush()
            case Undo(rerun=rerun):
                await self._undo(item, rerun=rerun)
            case Unknown(why=why):
                await self._end_unknown(call, item.evidence, why)
            case Stay():
                raise Waits("survivors", "processes may still act")

    def _decided(self, call: Call, decision: str, evidence: str) -> None:
        body = r.Recovered(decision, evidence, call=call.id, attempt=call.attempts)  # type: ignore[arg-type]
        self._journal.fact(Draft(body, call.thread, call.seq))

    async def _undo(self, item: _Found, *, rerun: bool) -> None:
        call = item.call
        assert call.started is not None and call.started.base is not None
        base = call.started.base
        own = self._site.space.traits.own_workspace
        window = None if own else self._window(item)
        plan = await self._plan(call, base, window)
        if plan is None:
            return
        rerun = rerun and _whole(plan, call)
        await self._site.take(plan.chunks)
        decision = "undo_start" if rerun else "undo_interrupt"
        self._journal.fact(Draft(_recovered(call, decision, item.evidence, window, plan), call.thread, call.seq))
        await self._journal.flush()
        step("recover.undo")
        restored = await self._site.space.restore(base, self._site.source, plan)
        step("recover.undone")
        await self._site.take(restored.capture.chunks)
        self._site.settles(restored.capture.image)
        left = self._journal.view.workspace.left
        body = r.SpaceRestored(
            call.id,
            base,
            restored.capture.image,
            window,
            _shown(plan.take_back),
            _shown(plan.kept),
            plan.salvage,
            restored.processes_killed,
        )
        self._journal.fact(Draft(body, call.thread, call.seq))
        self._tell_kept(plan, restored.capture.image, call)
        if not rerun:
            now = self._journal.view.calls[call.id]
            count = max(len(now.taken_back), plan.take_back_count)
            salvages = tuple(s[:SALVAGE_ID_CHARS] for s in now.salvages)
            text = told.interrupted(now.taken_back, count, salvages, plan, left, runs=call.undone + 1, hermetic=_hermetic(call))
            self._finish(call, "interrupted", text, restored.capture.image)
        await self._journal.flush()

    def _tell_kept(self, plan: Plan, image: Image, call: Call | None = None) -> None:
        """What a restore left as it was is other people's work, and is told as such."""
        if plan.kept_count:
            body = r.WorkspaceChanged(image, _shown(plan.kept), plan.kept_count, "recovery", call.id if call else None)
            self._journal.fact(Draft(body, call.thread if call else None, -1))

    async def _plan(self, call: Call, base: Image, window: Window | None) -> Plan | None:
        """What is to be taken back; None where nothing is, since it can't be."""
        known = await image.digests(call.salvages, self._site.source)
        answer = self._answer("changed_after_crash")
        plan = await self._site.space.plan(base, self._site.source, window, known=known)
        if plan.blocked is not None:
            await self._end_unknown(call, "lost", plan.blocked, plan)
            return None
        if plan.doubtful and answer is None:
            paths = ", ".join(_shown(plan.doubtful)[:5])
            raise Waits(
                "changed_after_crash",
                f"{paths} changed after the last sign of life of {call.id}; `perdure resume --keep` keeps such files, "
                "`--restore` puts them back as before the call",
            )
        return _with_doubtful(plan) if answer == "restore" else plan

    def _window(self, item: _Found) -> Window:
        """When the lost call may have acted. A window that was decided on stays: its evidence is gone by now."""
        call, status = item.call, item.status
        if call.recovered is not None and call.recovered.window is not None:
            return call.recovered.window
        assert call.started is not None and call.started.incarnation is not None
        known = status is not None and status.state != "none"
        start_ns = status.started_ns if status and known else int(call.started_at * 1e9)
        if status and status.ended_ns:
            return Window(start_ns, status.ended_ns)
        dead_at_ns = self._journal.view.workspace.deaths.get(life(call.started.incarnation, call.started.instance))
        if dead_at_ns is not None:
            return Window(start_ns, dead_at_ns)
        seen_ns = max(status.seen_ns, start_ns) if status and known else start_ns
        return Window(start_ns, seen_ns + STAMP_SLACK_NS, proven=False)

    async def _end_unknown(self, call: Call, evidence: str, why: str, plan: Plan | None = None) -> None:
        base = call.started.base if call.started else None
        self._journal.fact(
            Draft(r.Recovered("unknown", evidence, call=call.id, attempt=call.attempts, detail=why), call.thread, call.seq)
        )
        found: Image | None = None
        changed: tuple[str, ...] = ()
        count = 0
        if base is not None:
            capture = await self._site.space.capture(base)
            await self._site.take(capture.chunks)
            found = capture.image
            changed, count = await self._site.changed(capture, base)
        text = told.unknown(why, changed=changed, count=count, plan=plan)
        self._finish(call, "unknown", text, found, changed, count)
        await self._journal.flush()

    def _finish(
        self, call: Call, outcome: r.Outcome, text: str, image: Image | None, changed: tuple[str, ...] = (), count: int = 0
    ) -> None:
        body = r.CallFinished(
            call.id,
            outcome,
            r.Result(text),
            attempt=call.attempts,
            cause="lost",
            image=image,
            changed=changed,
            changed_count=count,
        )
        self._journal.fact(Draft(body, call.thread, call.seq))

    # ---- comparing ---------------------------------------------------------------------------------------------------------

    async def _compare(self) -> None:
        """A difference is somebody's work. After another boot it may be a file that the power cut tore."""
        workspace = self._journal.view.workspace
        if workspace.image is None:
            await self._first_image()
            return
        if self._rebooted() and not self._synced():
            await self._mend_torn(workspace.image)
        await self._site.compare("recovery")

    async def _first_image(self) -> None:
        """All of the directory goes into the log once; where that takes a while, people are told why."""
        began, pause_s = time.monotonic(), FIRST_IMAGE_TOLD_S
        taking = asyncio.create_task(self._site.compare("open"))
        try:
            while not (await asyncio.wait((taking,), timeout=pause_s))[0]:
                self._emit(Notice(f"storing the directory's files for the first time ({time.monotonic() - began:.0f} s so far)"))
                pause_s *= 2
            await taking
        finally:
            taking.cancel()

    def _rebooted(self) -> bool:
        return self._journal.view.workspace.image_boot not in ("", self._site.space.incarnation.boot_id)

    def _synced(self) -> bool:
        workspace = self._journal.view.workspace
        return workspace.synced is not None and workspace.image is not None and workspace.synced.same(workspace.image)

    async def _mend_torn(self, image: Image) -> None:
        """Restore what differs and did not change since the newest capture's clock: the disk lost it, nobody edited it."""
        if image.clock_ns > time.time_ns():
            raise Waits("ambiguous_after_reboot", "the clock is behind the log's newest image: set it, then `perdure resume`")
        window = Window(0, image.clock_ns)
        plan = await self._site.space.plan(image, self._site.source, window)
        if not plan.take_back_count:
            return
        await self._site.take(plan.chunks)
        kept = f"; what was there is salvage {_salvage_id(plan)}" if plan.salvage else ""
        self._journal.fact(Draft(r.NoteAdded(f"{plan.take_back_count} file(s) that the power cut had torn are put back{kept}")))
        await self._journal.flush()
        restored = await self._site.space.restore(image, self._site.source, plan)
        await self._site.take(restored.capture.chunks)
        body = r.SpaceRestored(
            None, image, restored.capture.image, window, _shown(plan.take_back), _shown(plan.kept), plan.salvage
        )
        self._journal.fact(Draft(body))
        self._tell_kept(plan, restored.capture.image)

    # ---- answers -----------------------------------------------------------------------------------------------------------

    def _answer(self, wait: str) -> str | None:
        return next((a.answer for a in reversed(self._journal.view.session.answers) if a.wait == wait), None)

    def _accepted(self, wait: str) -> bool:
        return self._answer(wait) == "accept"


def _recovered(call: Call, decision: str, evidence: str, window: Window | None, plan: Plan) -> r.Recovered:
    return r.Recovered(
        decision,  # type: ignore[arg-type]
        evidence,
        call=call.id,
        attempt=call.attempts,
        window=window,
        taken_back=_shown(plan.take_back),
        taken_back_count=plan.take_back_count,
        kept=_shown(plan.kept),
        salvage=plan.salvage,
    )


def _hermetic(call: Call) -> bool:
    """As its start recorded it: only of a command that can't reach outside it says `workspace`."""
    return call.tool in COMMANDS and call.started is not None and call.started.effect == "workspace"


def _how_lost(before: r.Incarnation, now: r.Incarnation) -> str:
    if before.boot_id != now.boot_id:
        return "the machine was started anew"
    return "its process ended" if before == now else "its memory of what it ran is gone"


def _whole(plan: Plan, call: Call) -> bool:
    """Whether the call may run again after this undo. What is kept as other people's may hold some of a command's work, which would then be done
    twice; and by what leads out of the workspace it may have reached somebody."""
    return call.tool not in COMMANDS or not (plan.kept_count or plan.reaching)


def _with_doubtful(plan: Plan) -> Plan:
    """A person said that what changed after the last sign of life is the call's as well. It is salvaged already; git's own files are never put back."""
    also = set(plan.doubtful) & set(plan.kept)
    taken = tuple(sorted({*plan.take_back, *also}))
    kept = tuple(path for path in plan.kept if path not in also)
    return replace(plan, take_back=taken, take_back_count=len(taken), kept=kept, kept_count=len(kept))


def _salvage_id(plan: Plan) -> str | None:
    return plan.salvage[:SALVAGE_ID_CHARS] if plan.salvage else None


def _shown(paths: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(printable(path) for path in paths[:1000])
