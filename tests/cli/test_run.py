"""`run`: what it prints, where a prompt goes, and what its exit code says."""

from __future__ import annotations

import json

from tests.cli.desk import Desk, bash, call, turn


def test_the_session_is_named_first_then_what_happens_then_how_it_ended(desk: Desk) -> None:
    model = desk.script(turn("I write it.", call("write", path="a.txt", content="hello\n")), "Written.")
    done = desk.perdure("run", "write a file", "--model", model)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0] == desk.json("ls", "--json")[0]["session"]
    assert lines[-2:] == ["Written.", "· answered"]
    assert "I write it." in lines
    assert any(line.startswith("• write  a.txt") for line in lines)
    assert (desk.project / "a.txt").read_text() == "hello\n"
    assert "\x1b" not in done.stdout


def test_a_prompt_comes_from_standard_input_and_a_model_from_the_environment(desk: Desk) -> None:
    model = desk.script(turn("Understood.", expect="^line one\nline two"))
    done = desk.perdure("run", "-", "--session", "s", input="line one\nline two\n", PERDURE_MODEL=model)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "s")


def test_json_is_the_whole_log_a_record_a_line_and_the_settlement_last(desk: Desk) -> None:
    model = desk.script(turn("", bash("echo hi")), "It works.")
    done = desk.perdure("run", "x", "--session", "s", "--model", model, "--json")
    first, *records, last = map(json.loads, done.stdout.splitlines())
    assert first == {"session": "s"}
    assert records == desk.log("s")
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    (finished,) = [record for record in records if record["kind"] == "call_finished"]
    assert (finished["call"], finished["tool"], finished["outcome"], finished["exit_code"]) == ("main.1.0", "bash", "ok", 0)
    assert {"seq", "kind", "at", "epoch"} <= records[0].keys()
    assert last["settled"]["outcome"] == "answered"
    assert last["settled"]["text"] == "It works."


def test_a_prompt_for_an_existing_session_needs_nothing_else(desk: Desk) -> None:
    desk.perdure("run", "one", "--session", "s", "--model", desk.script("First.", turn("Second.", expect="^two$")))
    elsewhere = desk.folder / "elsewhere"
    elsewhere.mkdir()
    done = desk.perdure("run", "two", "--session", "s")
    assert (done.returncode, done.stdout.splitlines()[-2]) == (0, "Second."), done.stderr
    assert desk.kinds("s").count("session_created") == 1


def test_a_name_is_found_also_where_a_longer_one_begins_with_it(desk: Desk) -> None:
    model = desk.script("One.", "Two.")
    for name in ("ab", "abc"):
        assert desk.perdure("run", "x", "--session", name, "--model", model).returncode == 0
    assert "Two." in desk.perdure("run", "y", "--session", "ab").stdout


def test_the_same_request_is_answered_once(desk: Desk) -> None:
    model = desk.script("Once.", "Twice.")
    desk.perdure("run", "x", "--session", "s", "--model", model, "--request-id", "r1")
    again = desk.perdure("run", "x", "--session", "s", "--request-id", "r1", "--json")
    assert json.loads(again.stdout.splitlines()[-1])["settled"]["text"] == "Once."
    assert desk.kinds("s").count("model_responded") == 1
    assert desk.perdure("run", "y", "--session", "s", "--request-id", "r1").returncode == 2


def test_a_budget_ends_it_with_exit_code_1(desk: Desk) -> None:
    model = desk.script(*(turn("", bash(f"echo {n}")) for n in range(5)))
    done = desk.perdure("run", "x", "--model", model, "--max-turns", "2")
    assert done.returncode == 1
    assert "✗ failed: turn budget: turns of 2 is used up" in done.stdout


def test_a_model_that_will_refuse_again_is_permanent(desk: Desk) -> None:
    wrong = desk.perdure("run", "x", "--model", desk.script(turn("Never.", expect="something else")))
    refused = desk.perdure("run", "x", "--model", desk.script(turn("Never.", error={"status": 401})))
    assert (wrong.returncode, refused.returncode) == (78, 78)
    assert "expected /something else/ and was given: 'x'" in wrong.stdout
    assert "Traceback" not in wrong.stderr + refused.stderr


def test_an_unknown_tool_is_the_models_problem(desk: Desk) -> None:
    model = desk.script(turn("", call("teleport", to="mars")), turn("No such tool.", expect="no tool named 'teleport'"))
    done = desk.perdure("run", "x", "--model", model)
    assert done.returncode == 0
    assert "There is no tool named 'teleport'" in done.stdout


def test_names_and_outputs_can_not_drive_the_terminal(desk: Desk) -> None:
    model = desk.script(turn("", bash("printf 'a\\033[31mb'; touch \"$(printf 'f\\377\\033')\"")), "Done \x1b[2J.")
    done = desk.perdure("run", "x", "--model", model)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "a\\x1b[31mb" in done.stdout


def test_a_reader_that_leaves_does_not_hurt_the_session(desk: Desk) -> None:
    model = desk.script(turn("", bash("until [ -e go ]; do sleep 0.05; done")), "Done.")
    for options in ([], ["--json"]):
        (desk.project / "go").unlink(missing_ok=True)
        driver = desk.start("run", "x", "--session", f"s{len(options)}", "--model", model, *options)
        assert driver.stdout is not None and driver.stderr is not None
        driver.stdout.readline()
        driver.stdout.close()
        (desk.project / "go").touch()
        driver.wait(30)
        assert driver.stderr.read() == ""
        desk.end_supervisors()
    assert [row["status"] for row in desk.json("ls", "--json")] == ["settled", "settled"]


def test_a_reader_that_leaves_ends_what_only_prints(desk: Desk) -> None:
    desk.perdure("run", "x", "--session", "s", "--model", desk.script("Done."))
    printer = desk.start("log", "s")
    assert printer.stdout is not None and printer.stderr is not None
    printer.stdout.close()
    assert (printer.wait(30), printer.stderr.read()) == (1, "")


def test_the_next_model_is_asked_where_the_first_gives_nothing_and_what_it_took_is_shown(desk: Desk) -> None:
    first = desk.script(turn("never", error={"status": 401}), name="first.json")
    second = desk.script("From the second.", name="second.json")
    done = desk.perdure("run", "x", "--session", "s", "--model", first, "--model", second, "--thinking", "low")
    assert done.returncode == 0 and "From the second." in done.stdout, done.stderr
    assert f"from here on {second} is asked instead of {first}"[:90] in done.stdout
    (created,) = [record for record in desk.log("s") if record["kind"] == "session_created"]
    assert (created["model"], created["fallbacks"], created["model_options"]) == (first, [second], {"thinking": "low"})
    assert "tokens in" in desk.perdure("show", "s").stdout.splitlines()[-1]


def test_an_image_goes_with_the_prompt_and_a_wrong_one_makes_no_session(desk: Desk) -> None:
    (desk.project / "cat.png").write_bytes(b"\x89PNG\r\n\x1a\n...")
    (desk.project / "dog.png").write_text("no image")
    model = desk.script("A cat.")
    refused = desk.perdure("run", "x", "--model", model, "--image", "cat.png", "--image", "dog.png")
    assert (refused.returncode, desk.json("ls", "--json")) == (2, [])
    assert "dog.png is no PNG, JPEG, GIF or WebP image" in refused.stderr
    assert desk.perdure("run", "x", "--session", "s", "--model", model, "--image", "cat.png").returncode == 0
    assert desk.perdure("submit", "s", "and this?", "--image", "cat.png").returncode == 0
    assert desk.perdure("show", "s").stdout.count("[cat.png, 11 bytes]") == 2


def test_models_and_thinking_are_what_is_configured(desk: Desk) -> None:
    first = desk.script(turn("never", error={"status": 404}), name="first.json")
    second = desk.script("From the second.", name="second.json")
    (desk.folder / "mine.toml").write_text(f'model = ["{first}", "{second}"]\nthinking = "high"\n')
    done = desk.perdure("run", "x", "--session", "s", PERDURE_CONFIG=str(desk.folder / "mine.toml"))
    assert (done.returncode, "From the second." in done.stdout) == (0, True), done.stderr
    (started,) = [record for record in desk.log("s") if record["kind"] == "turn_started"]
    assert (started["model"], started["options"]) == (first, {"thinking": "high"})
