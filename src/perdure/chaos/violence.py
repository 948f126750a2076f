"""Carrying a plan out: drivers are started, killed, frozen, thawed and raced, people work beside them, and then everything is driven to its end in peace."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import time
from dataclasses import dataclass, field

from perdure.chaos import people
from perdure.chaos.people import Done
from perdure.chaos.plan import FENCING, TURN, Act, Duel, Life, Step
from perdure.chaos.world import FIRST, SESSION, HangingError, Started, World, command_of, wait_for
from perdure.log.sqlite import SqliteStore
from perdure.log.store import SessionRow
from perdure.record.errors import PerdureError, UsageError

STEP_S = 1.5
"""So long a step is waited for at which something was to happen; a process that never comes to it lives on."""

SETTLE_S = 60.0
"""A command that nobody disturbs any more ends within this time."""

ROUNDS = 14
ROW_LOOK_S = 0.02
AGAIN_S = 0.3
"""Between two looks at what may be over by itself."""

QUIET_S = 15.0
WINDOW_S = 2.1
"""Behind the last sign of life of a lost call, nothing is taken for its work any more."""

LAST = "last"
WORD = {"changed_after_crash": "--keep", "survivors": "--accept"}


@dataclass
class Happened:
    """What was done, and what was promised meanwhile. `acknowledged` are submissions whose id was printed, `deaths_ns` when supervisors were killed.

    `dropped`: the Space's folder was deleted, and with it what an undo had still to do.
    """

    kills: int = 0
    stops: int = 0
    calls_killed: int = 0
    aborts: int = 0
    dropped: bool = False
    done: list[Done] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    deaths_ns: list[int] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Violence:
    def __init__(self, world: World) -> None:
        self.world = world
        self.happened = Happened()
        self._rng = random.Random(world.plan.seed + 1)
        self._deeds = list(world.plan.deeds)
        self._asking: list[tuple[str, Started]] = []
        self._asked = 0
        self._known = False
        self._begun = False
        self._last_alive_s = 0.0

    def run(self) -> None:
        """Everything that was planned; afterwards the session has settled, or a problem says why not."""
        try:
            for life in self.world.plan.lives:
                self._live(life)
            self._calm()
            self._settle()
        except HangingError as hanging:
            self.happened.problems.append(f"hangs: {hanging}")
        finally:
            self._hear()

    # ---- one life ----------------------------------------------------------------------------------------------------------

    def _live(self, life: Life) -> None:
        if life.drop_state:
            self._drop_state()
        if life.rested:
            wait_for(lambda: time.time() > self._last_alive_s + WINDOW_S, "the end of the window", 10.0)
        for _ in range(life.people_before):
            self._people()
        if life.duel is not None:
            self._duel(life.duel)
        else:
            self._drive(life.step)
            if life.step is not None:
                self._await_step(life.step)
        for pause_s, act in life.acts:
            self._pause(pause_s)
            self._act(act)
        for started in self.world.alive():
            self._kill(started)
        self._last_alive_s = time.time()

    def _duel(self, duel: Duel) -> None:
        first = self._drive(duel.frozen)
        if not self._await_step(duel.frozen):
            return
        if duel.kind == "late":
            second = self.world.start("resume", SESSION, "--take")
            with contextlib.suppress(HangingError):
                self.world.finish(second, duel.pause_s)
        else:
            self.world.start("resume", SESSION, "--take", step=FENCING)
            if self._await_step(FENCING):
                self.world.thaw(first)
                self._pause(duel.pause_s)
        self.world.thaw()

    def _drive(self, step: Step | None) -> Started:
        """A driver: the first makes the session and says what is to be done, until that is known to be stored."""
        plan = self.world.plan
        if self._known:
            return self.world.start("resume", SESSION, *(["--take"] if self._rng.random() < 0.3 else []), step=step)
        if self._exists():
            first = self.world.start("run", "--session", SESSION, "--request-id", FIRST, FIRST, step=step)
        else:
            options = ["--session", SESSION, "--request-id", FIRST, "-C", str(self.world.root)]
            options += ["--model", f"scripted:{self.world.script}", "--space", plan.space, "--capture", plan.capture]
            first = self.world.start("run", *options, FIRST, step=step)
        with contextlib.suppress(HangingError):
            wait_for(lambda: self.world.status(first) is not None or self._first_is_stored(first), "the first submission", STEP_S)
        self._known = self._submitted()
        return first

    def _exists(self) -> bool:
        return self._row() is not None

    def _submitted(self) -> bool:
        row = self._row()
        return row is not None and row.inbox_seq > 0

    def _first_is_stored(self, first: Started) -> bool:
        time.sleep(ROW_LOOK_S)
        return bool(first.said()) and self._submitted()

    def _row(self) -> SessionRow | None:
        if not (self.world.home / "log.db").exists():
            return None
        return asyncio.run(_row(self.world))

    def _await_step(self, step: Step) -> bool:
        """Until it was come to, and whether it was; a stopped supervisor is stopped from outside, as PID 1 can't do it itself."""
        traced = self.world.living[-1].steps if self.world.living else None
        if traced is None:
            return False
        fired = traced.with_name(f"{traced.name}.fired")
        started = self.world.living[-1]
        with contextlib.suppress(HangingError):
            wait_for(lambda: fired.exists() or self.world.status(started) is not None, "the step", STEP_S)
        if not fired.exists():
            return False
        if step.action == "kill":
            self.happened.kills += 1
            if step.role == "spaced":
                self.happened.deaths_ns.append(time.time_ns())
            return True
        self.happened.stops += 1
        if step.role == "spaced":
            self._stop_supervisor()
            traced.with_name(f"{traced.name}.go").touch()
        elif started in self.world.living:
            self.world.send(started, signal.SIGSTOP)
        return True

    def _pause(self, pause_s: float) -> None:
        until = time.monotonic() + pause_s
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.02))

    # ---- acts --------------------------------------------------------------------------------------------------------------

    def _act(self, act: Act) -> None:
        self.world.note(f"act {act}")
        match act:
            case "kill_driver" | "stop_driver" | "term_driver":
                self._at_a_driver(act)
            case "kill_supervisor":
                self._kill_supervisor()
            case "kill_both":
                for started in self.world.alive():
                    self._kill(started)
                self._kill_supervisor()
            case "stop_supervisor":
                self._stop_supervisor()
            case "stop_both":
                self._at_a_driver("stop_driver")
                self._stop_supervisor()
            case "kill_command" | "stop_command":
                self._at_a_command(act)
            case "thaw":
                self.world.thaw()
            case "race":
                self.world.start("resume", SESSION)
                self.world.start("resume", SESSION)
            case "take":
                self.world.start("resume", SESSION, "--take")
            case "watch":
                self.world.start("resume", "--watch")
            case "submit" | "submit_killed" | "steer" | "abort":
                self._say(act)
            case "hold_lock":
                self.world.hold_lock()
                self.happened.stops += 1
            case "people":
                self._people()

    def _at_a_driver(self, act: Act) -> None:
        alive = self.world.alive()
        if not alive:
            return
        started = self._rng.choice(alive)
        if act == "kill_driver":
            self._kill(started)
        elif act == "stop_driver":
            self.happened.stops += 1
            self.world.send(started, signal.SIGSTOP)
        else:
            self.world.send(started, signal.SIGTERM)

    def _kill(self, started: Started) -> None:
        self.happened.kills += 1
        self.world.send(started, signal.SIGKILL)
        self.world.finish(started, 10.0)

    def _kill_supervisor(self) -> None:
        pid = self.world.supervisor()
        if pid is not None and self.world.strike(pid, signal.SIGKILL, "the supervisor"):
            self.happened.kills += 1
            self.happened.deaths_ns.append(time.time_ns())

    def _stop_supervisor(self) -> None:
        pid = self.world.supervisor()
        if pid is not None and self.world.strike(pid, signal.SIGSTOP, "the supervisor"):
            self.happened.stops += 1

    def _at_a_command(self, act: Act) -> None:
        running = [pid for pid, of_a_call in self.world.processes().items() if of_a_call]
        if not running:
            return
        if act == "kill_command":
            self.happened.calls_killed += self.world.strike(self._rng.choice(running), signal.SIGKILL, "a command")
        else:
            self.happened.stops += self.world.strike(self._rng.choice(running), signal.SIGSTOP, "a command")

    def _drop_state(self) -> None:
        """The Space's folder goes, with or without its supervisor."""
        if self._rng.random() < 0.5:
            self._kill_supervisor()
        self.world.note("the state folder is deleted")
        self.happened.dropped = True
        shutil.rmtree(self.world.state_folder, ignore_errors=True)

    def _people(self) -> None:
        if not self._deeds:
            return
        done = people.work(self._deeds.pop(0), self.world.root)
        self.world.note(f"people: {done}")
        self.happened.done.append(done)

    def _say(self, act: Act) -> None:
        if not self._known:
            return
        self._asked += 1
        id = f"{act}-{self._asked}"
        if act == "abort":
            self._asking.append((id, self.world.start("abort", SESSION)))
            self.happened.aborts += 1
            return
        options = ["--steer"] if act == "steer" else []
        started = self.world.start("submit", "--request-id", id, *options, SESSION, f"also {id}")
        self._asking.append((id, started))
        if act == "submit_killed":
            with contextlib.suppress(HangingError):
                wait_for(
                    lambda: started.said() or self.world.status(started) is not None, "the receipt", self._rng.uniform(0, 0.06)
                )
            self._kill(started)

    def _hear(self) -> None:
        """Which submissions were acknowledged: their id is printed once they are durable."""
        for id, started in self._asking:
            if id in started.said().splitlines():
                self.happened.acknowledged.append(id)
        if self._known:
            self.happened.acknowledged.append(FIRST)
        self._asking.clear()

    # ---- peace -------------------------------------------------------------------------------------------------------------

    def _calm(self) -> None:
        """Nothing is stopped any more, and nobody drives; who was overtaken has to find out by himself."""
        self.world.disarm()
        self.world.thaw()
        for started in self.world.alive():
            if "--watch" in started.arguments:
                self.world.send(started, signal.SIGTERM)
        for started in self.world.alive():
            self.world.finish(started, SETTLE_S)
        while self._deeds and self._rng.random() < 0.3:
            self._people()

    def _settle(self) -> None:
        if not self._known:
            self._drive(None)
            for started in self.world.alive():
                self.world.finish(started, SETTLE_S)
            self._known = self._submitted()
        self._drive_on()
        for n in range(len(self.world.plan.turns) + 2):
            self._await_quiet()
            if not self._last_word(f"{LAST}-{n}"):
                break
        self._end_supervisor()

    def _last_word(self, id: str) -> bool:
        """One more prompt, so that the workspace is looked at once more; whether the script had turns left for it."""
        code, said = self.world.run("run", "--session", SESSION, "--request-id", id, "the last word", timeout_s=SETTLE_S)
        self.world.note(f"{id}: {code}")
        self.happened.acknowledged.append(id)
        self._drive_on()
        return f"{TURN} " in said

    def _drive_on(self) -> None:
        """Resume until it has settled, answering as a person would."""
        row, said = self._row(), ""
        for _ in range(ROUNDS):
            if row is not None and _settled(row):
                return
            waiting = row.rest.waiting_for if row is not None and row.held_by is None and not row.needs_driver else None
            word = [WORD[waiting]] if waiting in WORD else []
            if waiting is not None and row is not None and row.rest.due_at is not None:
                time.sleep(AGAIN_S)
            _, said = self.world.run("resume", SESSION, *word, timeout_s=SETTLE_S)
            row = self._row()
        waits = f"{row.rest.waiting_for}: {row.rest.detail}" if row else "there is no session"
        raise HangingError(
            f"the session does not settle in {ROUNDS} rounds; it waits for {waits}; the last one said {said[-300:]!r}"
        )

    def _await_quiet(self) -> None:
        """What commands left in the background ends by itself."""
        wait_for(lambda: not any(self.world.processes().values()), "the end of all background processes", QUIET_S)

    def _end_supervisor(self) -> None:
        """It may stay a minute when all is done; told to go, it goes, and nothing is left."""
        pid = self.world.supervisor()
        if pid is not None:
            self.world.strike(pid, signal.SIGTERM, "the supervisor")
        try:
            wait_for(lambda: not self.world.processes(), "the end of all processes", QUIET_S)
        except HangingError as error:
            left = {pid: command_of(pid) for pid in self.world.processes()}
            raise HangingError(f"{error}: {left}") from None


async def _row(world: World) -> SessionRow | None:
    try:
        store = await SqliteStore.open(world.home)
    except PerdureError:
        return None
    try:
        return await store.row(SESSION)
    except UsageError:
        return None
    finally:
        await store.close()


def _settled(row: SessionRow) -> bool:
    return row.held_by is None and not row.needs_driver and row.rest.status in ("settled", "failed")
