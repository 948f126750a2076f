"""Whatever happened before: after a compaction the next request is one that every provider takes, and holds what must not be forgotten."""

from __future__ import annotations

import itertools
import random

import pytest

from perdure.model.stream import Context
from perdure.model.validity import problem
from perdure.program import compaction
from perdure.program.context import Transcript
from perdure.record import codec
from perdure.record import records as r
from perdure.record.parts import Text, ToolCall, Usage, text_of
from perdure.record.records import Body, Draft
from perdure.state.state import State, fold
from perdure.state.threads import Thread

OUTCOMES: tuple[r.Outcome, ...] = ("ok", "ok", "ok", "error", "denied", "aborted", "interrupted", "unknown")


class History:
    """A main thread's records, made at random; what has to be in every request from some point on is in `words` and `newest`."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.state = State()
        self.words: list[str] = []
        self.newest: list[str] = []
        self.changed: list[str] = []
        self.submissions = 0
        self.add(r.SessionCreated("log", "agent", "conversation", 1, "scripted:x"), r.ThreadOpened("main"))

    def add(self, *bodies: Body) -> None:
        for body in bodies:
            stored = codec.stored(Draft(body, "main"), seq=self.state.seq + 1, at=float(self.state.seq), epoch=1, commit="c")
            self.state = fold(self.state, stored)

    @property
    def thread(self) -> Thread:
        return self.state.threads["main"]

    def say(self, mode: r.SubmissionMode = "follow_up") -> str:
        self.submissions += 1
        id, text = f"s{self.submissions}", f"<{mode} {self.submissions}>"
        self.add(r.SubmissionAdmitted(id, (Text(text),), mode), r.SubmissionPlaced(id, mode))
        if mode == "follow_up":
            self.newest = [text]
        elif mode == "steer":
            self.newest.append(text)
        if mode != "follow_up":
            self.add(r.SubmissionSettled(id, "noted"))
        return id

    def turn(self, submission: str) -> None:
        n = self.thread.turns + 1
        marks = self.thread.marks
        cut = self.chance.choice(marks)[0] if marks and self.chance.random() < 0.2 else 0
        self.add(r.TurnStarted(n, submission, "scripted:x", context_cut=max(cut, self.thread.cleared_before)))
        if self.chance.random() < 0.1:
            self.add(r.ModelFailed(n, 1, "retryable", "no", retry_at=0.0, partial="Some words"))
        count = self.chance.randint(0, 3)
        calls = [ToolCall(f"id_{n}_{i}", "bash", {"command": "x" * self.chance.randint(0, 900)}) for i in range(count)]
        said = (Text(f"turn {n} "),) if self.chance.random() < 0.7 or not calls else ()
        self.add(r.ModelResponded(n, 1, (*said, *calls), Usage(10, 5) if self.chance.random() < 0.5 else Usage()))
        for i, each in enumerate(calls):
            self.add(r.CallProposed(f"main.{n}.{i}", "bash", each.args, n, i, each.id, submission=submission))
        for i in self.chance.sample(range(count), count):
            outcome = self.chance.choice(OUTCOMES)
            words = f"<main.{n}.{i} ended {outcome}>"
            if outcome in ("unknown", "interrupted"):
                self.words.append(words)
            text = words + "y" * self.chance.choice((0, 0, 2000))
            self.add(r.CallFinished(f"main.{n}.{i}", outcome, r.Result(text), changed=(f"path{n}",), changed_count=1))

    def work(self) -> None:
        """A submission with its turns; compacted between two of them, at times."""
        id = self.say()
        for _ in range(self.chance.randint(1, 6)):
            self.turn(id)
            if self.chance.random() < 0.3:
                self.say(self.chance.choice(("steer", "note")))
            if self.chance.random() < 0.3:
                self.compact(id)
        if self.chance.random() < 0.2:
            self.cut_short(id)
        else:
            self.add(r.SubmissionSettled(id, "answered"))

    def cut_short(self, id: str) -> None:
        n = self.thread.turns + 1
        self.add(r.TurnStarted(n, id, "scripted:x"), r.ModelFailed(n, 1, "cut", "stop", partial="Half a"))
        self.add(r.SubmissionSettled(id, "aborted", "stop", advisory="[perdure] Your last turn was stopped: stop."))

    def compact(self, id: str) -> None:
        marks = self.thread.marks
        cut = self.chance.choice(marks)[0] if marks and self.chance.random() < 0.7 else 0
        n = self.thread.turns + 1
        self.add(r.TurnStarted(n, id, "scripted:x", context_cut=cut, purpose="compact"))
        turn = self.thread.turn
        assert turn is not None
        assert problem(compaction.request(self.thread, turn, {})) is None
        self.changed = list(self.state.changes.paths)
        self.add(r.Compacted(turn.cut, f"<summary {n}>", n, 1))

    def asked(self, transcript: Transcript) -> Context:
        transcript.read(self.thread)
        return transcript.context(self.thread, system="s", tools=(), blobs={}, options={})


@pytest.mark.parametrize("seed", range(200))
def test_a_request_after_any_compaction_is_whole_and_remembers(seed: int) -> None:
    history = History(seed)
    kept = Transcript()
    for _ in range(history.chance.randint(1, 5)):
        history.work()
        id = history.say()
        if history.chance.random() < 0.7:
            history.compact(id)
        history.add(r.TurnStarted(history.thread.turns + 1, id, "scripted:x", context_cut=history.thread.cleared_before))
        context = history.asked(kept)
        assert problem(context) is None
        assert context.messages == history.asked(Transcript()).messages, "another driver asks something else"
        roles = [type(message).__name__ for message in context.messages]
        assert ("UserMessage", "UserMessage") not in list(itertools.pairwise(roles))
        said = "\n".join(getattr(m, "text", "") or text_of(getattr(m, "parts", ())) for m in context.messages)
        assert [words for words in history.words if words not in said] == []
        assert [words for words in history.newest if words not in said] == []
        assert [path for path in history.changed if path not in said] == []
        history.add(r.ModelResponded(history.thread.turns, 1, (Text("Done."),)), r.SubmissionSettled(id, "answered"))
