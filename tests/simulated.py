"""Logs of sessions that never ran: the real program decides, chance plays model, tools, people and crashes. No I/O."""

from __future__ import annotations

import random
from collections.abc import Iterator

from perdure.program.builtin import BUILTIN
from perdure.program.conversation import Conversation
from perdure.program.program import Append, Ask, Calls, Settle, View, Wait
from perdure.program.tools import ToolSet
from perdure.record import codec
from perdure.record import records as r
from perdure.record.parts import Text, ToolCall, Usage
from perdure.record.records import Body, Draft, Image, Incarnation, Init, Owner, Stored, Window
from perdure.state.calls import Call
from perdure.state.state import State, fold

TOOLS = ToolSet(BUILTIN)
OWNER = Owner("host", "boot", 1, 1, 1)
HERE = Incarnation("g", "boot", "ledger")


class Simulation:
    """`records` is the log so far; `step` adds to it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.records: list[Stored] = []
        self.state = State()
        self.program = Conversation(TOOLS.effect)
        self.now = 1000.0
        self.epoch = 0
        self._inputs = 0
        self.write(r.SessionCreated("L", "coding", "conversation", 1, "m", turn_budget=r.Budget(turns=6, failures=4)))
        self.write(r.ThreadOpened("main"))
        self.crash()

    def write(self, body: Body, thread: str | None = "main") -> None:
        self.now += 1
        stored = codec.stored(Draft(body, thread), seq=len(self.records) + 1, at=self.now, epoch=self.epoch, commit="c")
        self.records.append(stored)
        self.state = fold(self.state, stored)

    def image(self) -> Image:
        digest = f"{self.random.getrandbits(256):064x}"
        return Image(digest, digest, int(self.now * 1e9))

    # ---- chance ------------------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        self.epoch += 1
        self.write(r.EpochRaised(OWNER))
        if self.random.random() < 0.5:
            self.write(r.SpaceOpened(HERE, self.epoch, Init(1, 1, 1), "pidns"))
        for call in [c for c in self.state.calls.values() if c.started]:
            self.recover(call)
        for thread in list(self.state.threads.values()):
            if thread.turn and not thread.turn.responded and self.random.random() < 0.8:
                partial = self.random.choice(["", "half an ans"])
                self.write(
                    r.Recovered("continue" if partial else "retry", "", turn=thread.turn.n, partial=partial), thread=thread.name
                )

    def recover(self, call: Call) -> None:
        decision = self.random.choice(["adopt", "start", "undo_start", "undo_interrupt", "unknown"])
        window, salvage = Window(1, 2), f"{self.random.getrandbits(256):064x}"
        self.write(
            r.Recovered(decision, "lost", call=call.id, window=window, taken_back=("a",), salvage=salvage),  # type: ignore[arg-type]
            call.thread,
        )
        if decision.startswith("undo") and self.random.random() < 0.8:
            self.write(r.SpaceRestored(call.id, self.image(), self.image()), call.thread)
        if decision in ("undo_interrupt", "unknown", "adopt"):
            outcome = {"undo_interrupt": "interrupted", "unknown": "unknown"}.get(decision, "ok")
            self.write(r.CallFinished(call.id, outcome, r.Result("told"), image=self.image()), call.thread)  # type: ignore[arg-type]

    def person(self) -> None:
        self._inputs += 1
        what = self.random.random()
        if what < 0.6:
            mode = self.random.choice(["follow_up", "steer", "note"])
            thread = self.random.choice(["main", "main", "other"])
            self.write(r.SubmissionAdmitted(f"q{self._inputs}", (Text(f"input {self._inputs}"),), mode), thread)  # type: ignore[arg-type]
        elif what < 0.7:
            self.write(r.AbortRequested(self.random.choice([None, *self.state.submissions])))
        elif what < 0.9:
            self.write(r.WorkspaceChanged(self.image(), ("theirs.txt",), 1, "recovery"), None)
        else:
            self.write(r.SettingsChanged(model="another", fallbacks=("one more",), thinking="low"), None)

    def answer(self, thread: str) -> None:
        turn = self.state.threads[thread].turn
        assert turn is not None
        if turn.attempts == 1 and int(self.now) % 7 == 0:
            self.write(r.Instructed(f"d{int(self.now)}/AGENTS.md", "rule"), thread)
        chance = self.random.random()
        if chance < 0.2:
            retry_at = self.now + 2 if turn.failures < 2 else None
            partial = self.random.choice(["", "some text "]) if retry_at else ""
            following = self.random.choice(["", "", "one more"]) if retry_at else ""
            failed = r.ModelFailed(
                turn.n, turn.attempts, "retryable", "busy", 429, retry_at, partial, model=turn.model, next_model=following
            )
            self.write(failed, thread)
            return
        names = self.random.choices(["read", "bash", "write", "nonsense"], k=self.random.randint(0, 3)) if chance < 0.8 else []
        calls = tuple(ToolCall(f"call_{turn.n}_{i}", name, {"path": "x"}) for i, name in enumerate(names))
        self.write(r.ModelResponded(turn.n, turn.attempts, (Text("words"), *calls), Usage(10, 5)), thread)
        for i, call in enumerate(calls):
            self.write(
                r.CallProposed(f"{thread}.{turn.n}.{i}", call.tool, call.args, turn.n, i, call.id, submission=turn.submission),
                thread,
            )

    def run_calls(self, ids: tuple[str, ...]) -> None:
        calls = [self.state.calls[id] for id in ids]
        for call in calls:
            if not call.started:
                key = f"L:{call.id}:{call.attempts + 1}"
                if self.random.random() < 0.2:
                    self.write(r.ApprovalRequested(call.id, "digest"), call.thread)
                    self.write(r.ApprovalAnswered(call.id, self.random.choice(["digest", "another"]), "allow"), call.thread)
                self.write(r.CallDecided(call.id, "allow"), call.thread)
                self.write(
                    r.CallStarted(call.id, call.attempts + 1, key, TOOLS.effect(call.tool), base=self.image(), incarnation=HERE),
                    call.thread,
                )
        if self.random.random() < 0.2:
            return self.crash()
        self.random.shuffle(calls)
        for call in calls:
            outcome = self.random.choice(["ok", "ok", "error"])
            self.write(r.CallFinished(call.id, outcome, r.Result("done"), image=self.image()), call.thread)  # type: ignore[arg-type]
        return None

    def step(self) -> None:
        chance = self.random.random()
        if chance < 0.15:
            return self.person()
        if chance < 0.2:
            return self.crash()
        action = self.program.next(View(self.state, None), self.now)
        match action:
            case Append(drafts) | Settle(drafts):
                for draft in drafts:
                    self.write(draft.body, draft.thread)
            case Ask(thread):
                self.answer(thread)
            case Calls(_, ids):
                self.run_calls(ids)
            case Wait(until=until):
                self.now = until or self.now
                self.person()
        return None

    def settle(self, limit: int = 500) -> bool:
        """Let the session run undisturbed until nothing is left to do."""
        for _ in range(limit):
            action = self.program.next(View(self.state, None), self.now)
            match action:
                case Append(drafts) | Settle(drafts):
                    for draft in drafts:
                        self.write(draft.body, draft.thread)
                case Ask(thread):
                    self.answer(thread)
                case Calls(_, ids):
                    self.run_calls(ids)
                case Wait(until=None):
                    return True
                case Wait(until=until):
                    self.now = until or self.now
        return False


def logs(count: int, steps: int) -> Iterator[Simulation]:
    for seed in range(count):
        simulation = Simulation(seed)
        for _ in range(steps):
            simulation.step()
        yield simulation
