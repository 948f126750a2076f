"""Long conversations: old results are cleared, what came before a cut is summed up, and nothing that counts is lost on the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import perdure
from perdure.drive.virtual import Virtual
from perdure.history import statistics
from perdure.model.scripted import Scripted
from perdure.model.stream import Context, Request, ToolMessage, UserMessage
from perdure.record import records as r
from perdure.record.parts import text_of
from tests.stage import Stage, bash, call, play, stage, turn

WINDOW = 4000


def write(path: Path, turns: list[Any], *, window: int | None = WINDOW, summaries: list[Any] | None = None) -> str:
    script = {"turns": [{"text": t} if isinstance(t, str) else t for t in turns], "summaries": summaries or []}
    path.write_text(json.dumps({**script, **({"window": window} if window else {})}))
    return f"scripted:{path}"


class Watched(Scripted):
    """Keeps what it is asked."""

    asked: list[Context]

    def prepare(self, context: Context) -> Request:
        self.asked.append(context)
        return super().prepare(context)


def watched(the: Stage, path: Path) -> Watched:
    model = Watched(path)
    model.asked = []
    the.home.models = lambda _: lambda name: model  # type: ignore[method-assign, assignment]
    return model


def texts(context: Context) -> str:
    return "\n".join(m.text if isinstance(m, ToolMessage) else text_of(m.parts) for m in context.messages)


def turns_of(count: int, chars: int = 1200) -> list[Any]:
    return [turn(f"Step {n}.", bash(f"printf 'n%04d ' {n}; head -c {chars} /dev/zero | tr '\\0' x")) for n in range(count)]


def test_three_hundred_turns_never_overflow_and_every_output_stays_readable(tmp_path: Path) -> None:
    count = 300

    async def story() -> None:
        model = write(tmp_path / "long.json", [*turns_of(count), "Done."])
        async with stage(tmp_path, "unused", model=model, model_options={"context_tokens": WINDOW}) as the:
            scripted = watched(the, tmp_path / "long.json")
            answer = await the.session.run("Count, and say Done.")
            assert (answer.outcome, answer.text) == ("answered", "Done."), answer
            assert not await the.bodies(r.ModelFailed)
            compacted = await the.bodies(r.Compacted)
            assert 3 < len(compacted) < count / 4
            assert all(
                "Count, and say Done." in texts(context) for context in scripted.asked if "compaction" not in context.options
            )
            thread = (await the.session.state()).threads["main"]
            assert len(thread.entries) < 120 and len(thread.marks) < 60
            virtual = Virtual(the.home.store)
            for n in range(0, count, 6):
                state = await the.session.state()
                read = await virtual.read(state, the.session.id, {"path": f"output:main.{await number(the, n)}.0"})
                assert read.ok and read.text.startswith(f"n{n:04d} xxx") and len(read.text) > 1200

    numbers: list[int] = []

    async def number(the: Stage, n: int) -> int:
        """The n-th turn's number, compactions counted."""
        if not numbers:
            numbers.extend(body.turn for body in await the.bodies(r.ModelResponded))
        return numbers[n]

    play(story())


def test_old_results_are_cleared_many_at_once_and_say_where_to_read_them(tmp_path: Path) -> None:
    async def story() -> None:
        model = write(tmp_path / "long.json", [*turns_of(9), "Done."])
        async with stage(tmp_path, "unused", model=model, model_options={"context_tokens": WINDOW}) as the:
            scripted = watched(the, tmp_path / "long.json")
            await the.run()
            cuts = [body.context_cut for body in await the.bodies(r.TurnStarted)]
            assert len(set(cuts)) == 2, cuts
            assert 'read with path "output:main.1.0"' in texts(scripted.asked[-1])
            assert "n0008 x" in texts(scripted.asked[-1])
            for earlier, later in zip(scripted.asked, scripted.asked[1:], strict=False):
                if len(later.messages) > len(earlier.messages) and "cleared" not in texts(later):
                    assert later.messages[: len(earlier.messages)] == earlier.messages

    play(story())


def test_a_context_found_too_long_is_summed_up_and_the_prompt_is_not_run_twice(tmp_path: Path) -> None:
    """The runtime believes in a window of 128,000 tokens; the model has fewer."""

    async def story() -> None:
        model = write(tmp_path / "long.json", [*turns_of(14), "Done."], summaries=[{"text": "The steps went well."}])
        async with stage(tmp_path, "unused", model=model) as the:
            scripted = watched(the, tmp_path / "long.json")
            answer = await the.run("Do all steps.")
            assert answer.text == "Done."
            assert {body.failure for body in await the.bodies(r.ModelFailed)} == {"overflow"}
            assert len(await the.bodies(r.SubmissionPlaced)) == 1
            assert len(await the.bodies(r.CallStarted)) == 14
            last = texts(scripted.asked[-1])
            assert "The steps went well." in last and last.count("Do all steps.") == 1
            assert isinstance(scripted.asked[-1].messages[0], UserMessage)

    play(story())


def test_a_prompt_that_is_too_long_by_itself_fails_with_what_to_do_and_the_next_goes_on(tmp_path: Path) -> None:
    async def story() -> None:
        model = write(tmp_path / "long.json", ["Done."])
        async with stage(tmp_path, "unused", model=model) as the:
            first = await the.run("x" * 40_000)
            assert first.outcome == "failed" and "context_tokens" in first.reason
            second = await the.run("Shorter now.")
            assert (second.outcome, second.text) == ("answered", "Done."), second

    play(story())


def test_what_a_person_asks_to_sum_up_is_summed_up_when_nothing_runs(tmp_path: Path) -> None:
    async def story() -> None:
        model = write(tmp_path / "long.json", [*turns_of(3), "Done.", "More."], window=None)
        async with stage(tmp_path, "unused", model=model) as the:
            assert await settles(the) == "there is nothing to compact yet"
            await the.run("Go on.")
            before = (await the.session.state()).threads["main"].tokens
            assert await settles(the) == "compacted"
            state = await the.session.state()
            assert state.threads["main"].tokens < before / 2 and not state.submissions
            scripted = watched(the, tmp_path / "long.json")
            assert (await the.run("And more.")).text == "More."
            assert "Summary 1" in texts(scripted.asked[0])

    async def settles(the: Stage) -> str:
        answer_to = await the.session.compact()
        await the.session.drive()
        return (await the.settled())[answer_to].reason

    play(story())


def test_changed_paths_and_uncertain_calls_and_steers_outlive_every_summary(tmp_path: Path) -> None:
    turns = [
        turn("", call("write", path="kept/a.txt", content="a\n")),
        turn("", bash("echo b > b.txt")),
        "First.",
        "Second.",
        "Third.",
    ]

    async def story() -> None:
        model = write(tmp_path / "long.json", turns, window=None)
        async with stage(tmp_path, "unused", model=model) as the:
            scripted = watched(the, tmp_path / "long.json")
            await the.run("Begin.")
            for text in ("Second, please.", "Third, please."):
                await the.session.compact()
                await the.run(text)
            last = texts(scripted.asked[-1])
            assert "kept/a.txt" in last and "b.txt" in last and "Third, please." in last

    play(story())


def test_an_abort_ends_a_summary_and_its_failures_are_tried_again(tmp_path: Path) -> None:
    async def story() -> None:
        summaries = [{"text": "Slow.", "delay_s": 60, "chunks": 600}]
        model = write(tmp_path / "long.json", ["Done.", "More."], window=None, summaries=summaries)
        async with stage(tmp_path, "unused", model=model) as the:
            await the.run("Go on.")
            id = await the.session.compact()

            def stop(event: perdure.Event) -> None:
                if isinstance(event, perdure.Recorded) and isinstance(event.stored.body, r.TurnStarted):
                    import asyncio

                    stopping.append(asyncio.ensure_future(the.session.abort(reason="enough")))

            stopping: list[Any] = []
            await the.session.drive(emit=stop)
            settled = (await the.settled())[id]
            assert (settled.outcome, settled.reason) == ("aborted", "enough")
            assert not await the.bodies(r.Compacted)
            assert (await the.run("More?")).text == "More."

    play(story())


def test_tokens_of_a_summary_are_spent(tmp_path: Path) -> None:
    async def story() -> None:
        model = write(tmp_path / "long.json", ["Done."], window=None)
        async with stage(tmp_path, "unused", model=model) as the:
            await the.run("Go on.")
            before = (await the.session.state()).usage.session
            await the.session.compact()
            await the.session.drive()
            after = (await the.session.state()).usage.session
            assert after.tokens.total > before.tokens.total and after.turns == before.turns
            taken = [item.taken async for item in statistics.items(the.session.records())]
            assert sum(each.tokens.total for each in taken) == after.tokens.total
            assert (sum(each.prompts for each in taken), sum(each.requests for each in taken)) == (1, 2)

    play(story())
