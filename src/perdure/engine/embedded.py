"""Driving sessions from this process: a task each, until the session settles, waits, or is overtaken.

drive(session):  lock byte N → acquire epoch N → advance … advance → release
watch():         what is due → drive it; what a living driver holds → wait for the kernel to tell of its death
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable

from perdure.drive.driver import Driver, Paused, Released
from perdure.drive.events import Emit, Notice
from perdure.drive.places import Processes
from perdure.engine import lease, places
from perdure.engine.home import Home
from perdure.log.store import Binding, Due, SessionRow
from perdure.program.hooks import Hooks
from perdure.program.permissions import Rules
from perdure.program.tools import ToolSet
from perdure.record.errors import PerdureError, SessionBusyError, StaleEpochError, UsageError
from perdure.space.environment import command_environment
from perdure.spaced.steps import step
from perdure.state.state import State

LOOK_S = 1.0
FAILURE_CAP_S = 300.0
LEAVE_S = 1.5
"""A driver that is told to go has this long to commit what has ended."""


def silent(_: object) -> None:
    """An Emit that shows nothing."""


async def drive(home: Home, session: str, *, emit: Emit = silent, take: bool = False) -> Released:
    """Drive until there is nothing to do. A cancelled drive commits what has ended and lets go; what runs is adopted later.

    Raises SessionBusyError where a living driver holds the session (`take` overtakes it) and StaleEpochError when overtaken.
    """
    row = await home.store.row(session)
    if row.held_by is not None and not take:
        _refuse_living(home, row)
    return await _take(home, row, emit)


async def _take(home: Home, row: SessionRow, emit: Emit) -> Released:
    """Drive the session if it is still as in `row`: of two who found a driver dead, one gets a StaleEpochError.

    Whatever can be missing on this machine is looked for before there is an epoch that would end without progress.
    """
    session = row.session
    binding = await home.store.binding(session)
    if binding is None:
        raise UsageError(f"session {session} has no directory on this machine; name one with -C")
    state = await home.state(session)
    created = state.session.created
    assert created is not None
    tools, hooks, rules = home.tools(created), home.hooks(binding.directory), home.rules(binding.directory)
    epoch = max(row.epoch, home.spaces.floor(session)) + 1
    lock = lease.DriverLock(places.driver_lock(home.path, session))
    lock.hold(epoch)
    beginning = asyncio.ensure_future(_begin(home, row, epoch, binding, state, tools, hooks, rules, emit))
    try:
        try:
            driver = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            await _leave(await beginning)
            raise
        return await _loop(home, driver)
    finally:
        lock.drop(epoch)


async def _begin(
    home: Home,
    row: SessionRow,
    epoch: int,
    binding: Binding,
    state: State,
    tools: ToolSet,
    hooks: Hooks,
    rules: Rules | None,
    emit: Emit,
) -> Driver:
    """The right to drive, and who uses it. Not to be cancelled: an epoch that nobody releases counts as a crash."""
    created = state.session.created
    assert created is not None
    step("acquire.before")
    grant, _ = await home.store.acquire(row.session, home.owner, expected=row.epoch, at_least=epoch)
    step("acquire.after")
    environment = command_environment(home.spaces.environ)
    return Driver(
        home.store,
        grant,
        await home.state(row.session),
        live=home.live,
        spaces=home.spaces,
        binding=binding,
        tools=tools,
        models=home.models(created),
        place=Processes(environment, binding.directory),
        emit=emit,
        hooks=hooks,
        rules=rules,
        ask=home.ask,
        skill_folders=home.skills(binding.directory),
        environment=environment,
        clock=home.clock,
    )


def _refuse_living(home: Home, row: SessionRow) -> None:
    pid = lease.holder(places.driver_lock(home.path, row.session), row.epoch)
    if pid is not None:
        raise SessionBusyError(
            f"session {row.session} is driven by process {pid}; `perdure log --follow {row.session}` shows it at work, "
            "`--take` takes it over"
        )


async def _loop(home: Home, driver: Driver) -> Released:
    try:
        mark = await home.store.wait(-1, 0.0)
        while True:
            progress = await driver.advance()
            if isinstance(progress, Released):
                return progress
            if isinstance(progress, Paused):
                mark = await home.store.wait(mark, max(0.0, progress.until - home.clock()))
                await driver.refresh()
    except asyncio.CancelledError:
        await _leave(driver)
        raise
    finally:
        await driver.close()


async def _leave(driver: Driver) -> None:
    with contextlib.suppress(StaleEpochError, TimeoutError):
        async with asyncio.timeout(LEAVE_S):
            await driver.leave()


async def watch(home: Home, *, emit: Callable[[str], Emit] = lambda _: silent, once: bool = False) -> None:
    """Drive every session that needs it, as long as this runs; with `once`, until nothing is due that nobody else drives.

    One session's failure is told through its `emit` and tried again after a pause that doubles, the others go on.
    """
    await _Watch(home, emit).run(once=once)


class _Watch:
    def __init__(self, home: Home, emit: Callable[[str], Emit]) -> None:
        self._home = home
        self._emit = emit
        self._running: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}

    async def run(self, *, once: bool) -> None:
        async with asyncio.TaskGroup() as group:
            mark = await self._home.store.wait(-1, 0.0)
            while True:
                for due in await self._home.store.due(self._home.clock()):
                    if due.session in self._running or self._not_before.get(due.session, 0.0) > time.monotonic():
                        continue
                    if not (once and self._driven(due)):
                        self._running[due.session] = group.create_task(self._attend(due.session))
                if once and not self._running:
                    return
                looking = asyncio.create_task(self._home.store.wait(mark, LOOK_S))
                await asyncio.wait((*self._running.values(), looking), return_when=asyncio.FIRST_COMPLETED)
                if looking.done():
                    mark = looking.result()
                looking.cancel()
                self._running = {name: task for name, task in self._running.items() if not task.done()}

    def _driven(self, due: Due) -> bool:
        """Whether a living driver has it."""
        return due.reason == "held" and lease.holder(places.driver_lock(self._home.path, due.session), due.epoch) is not None

    async def _attend(self, session: str) -> None:
        """Drive it as soon as nobody does."""
        emit = self._emit(session)
        try:
            row = await self._home.store.row(session)
            if row.held_by is not None:
                await lease.lapse(places.driver_lock(self._home.path, session), row.epoch, row.held_by)
                if (await self._home.store.row(session)).held_by is None:
                    return  # it let go in order, and is due again if it left something to do
            released = await _take(self._home, row, emit)
            self._failures.pop(session, None)
            if released.rest.detail:
                emit(Notice(f"waits for {released.rest.waiting_for}: {released.rest.detail}"))
        except (SessionBusyError, StaleEpochError) as error:
            emit(Notice(str(error)))
        except Exception as error:  # a fault that meets one session must not end the others' watcher
            failures = self._failures[session] = self._failures.get(session, 0) + 1
            pause_s = min(FAILURE_CAP_S, 2.0**failures)
            self._not_before[session] = time.monotonic() + pause_s
            what = str(error) if isinstance(error, PerdureError) else f"unexpected {type(error).__name__}: {error}"
            emit(Notice(f"{what}; trying again in {pause_s:g} s"))
