"""What sessions took is told by day, session and model, and adds up."""

from __future__ import annotations

from tests.cli.desk import Desk, bash, turn


def test_it_adds_up_by_session_and_by_day(desk: Desk) -> None:
    first = desk.script(turn("Looking.", bash("sleep 0.2")), "Done.", turn("More.", error={"status": 400}))
    assert desk.perdure("run", "x" * 400, "--session", "one", "--model", first).returncode == 0
    assert desk.perdure("run", "again", "--session", "one").returncode != 0
    assert desk.perdure("run", "hi", "--session", "two", "--model", desk.script("Hello.", name="two.json")).returncode == 0
    by_session = {line["session"]: line for line in desk.json("stats", "--json")}
    one = by_session["one"]
    assert (one["prompts"], one["requests"], one["failed"], one["calls"]) == (2, 2, 1, 1)
    assert one["tokens"]["input"] >= 200 and 0.2 <= one["calls_s"] < 5
    (day,) = desk.json("stats", "--by", "day", "--json")
    assert day["requests"] == sum(line["requests"] for line in by_session.values()) == 3
    models = desk.json("stats", "--by", "model", "--json")
    assert {line["model"].rpartition("/")[2]: line["requests"] for line in models} == {"script.json": 2, "two.json": 1}
    said = desk.perdure("stats").stdout.splitlines()
    assert said[0].startswith("two") and said[-1].startswith("together") and "3 requests (1 failed), 1 call " in said[-1]
    by_model = desk.perdure("stats", "--by", "model").stdout.splitlines()
    assert "3 requests (1 failed)" in by_model[-1] and "call" not in by_model[-1]
    assert desk.perdure("stats", "one").stdout.count("\n") == 1


def test_where_there_is_nothing_it_says_so(desk: Desk) -> None:
    ran = desk.perdure("stats")
    assert (ran.returncode, ran.stdout, "nothing was asked" in ran.stderr) == (0, "", True)
    assert desk.perdure("stats", "nobody").returncode == 2
