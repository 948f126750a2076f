"""`perdure config`, and what is configured at work in `run` and `chat`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.desk import Desk, bash, turn


def user_file(desk: Desk) -> Path:
    path = desk.folder / "config/perdure/perdure.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_config_shows_what_holds_and_where_from(desk: Desk) -> None:
    user_file(desk).write_text('# mine\nmodel = "openai:x"\n')
    (desk.project / "perdure.toml").write_text("budget.turns = 5\n")
    shown = desk.perdure("config")
    assert shown.returncode == 0, shown.stderr
    lines = dict(line.split("  # ") for line in shown.stdout.splitlines())
    where = {line.partition(" = ")[0].strip(): (line.partition(" = ")[2].strip(), place) for line, place in lines.items()}
    assert where["model"] == ('"openai:x"', f"{user_file(desk)}:2")
    assert where["budget.turns"] == ("5", f"{desk.project}/perdure.toml:1")
    assert where["space"] == ('"host"', "default")
    assert where["base_url"] == ("(not set)", "default")
    (one,) = desk.perdure("config", "model", PERDURE_MODEL="openai:y").stdout.splitlines()
    assert one == 'model = "openai:y"  # $PERDURE_MODEL'
    found = desk.json("config", "budget", "--json")[0]
    assert found["budget.turns"] == {"value": 5, "where": [f"{desk.project}/perdure.toml:1"]}
    assert found["budget.failures"] == {"value": 10, "where": ["default"]}


def test_config_of_another_directory_and_its_files(desk: Desk) -> None:
    other = desk.folder / "other"
    other.mkdir()
    (other / "perdure.toml").write_text("budget.turns = 7\n")
    assert desk.json("config", "budget.turns", "-C", str(other), "--json")[0]["budget.turns"]["value"] == 7
    lines = desk.perdure("config", "path", "-C", str(other)).stdout.splitlines()
    assert lines == [f"{user_file(desk)}  (there is none)", f"{other}/perdure.toml  (not trusted)"]
    assert desk.perdure("config", "path").stdout.splitlines() == [f"{user_file(desk)}  (there is none)"]


def test_faults_end_with_2_and_name_file_line_and_remedy(desk: Desk) -> None:
    assert "there is no key 'nonsense'" in desk.perdure("config", "nonsense").stderr
    user_file(desk).write_text('\nspace = "moon"\n')
    for command in (["config"], ["run", "x", "--model", desk.script("Done.")], ["chat"]):
        done = desk.perdure(*command)
        assert done.returncode == 2
        assert done.stderr.startswith(
            f'perdure: {user_file(desk)}:2: `space` is "moon" here; it must be one of "host", "sandbox"'
        )
    assert desk.json("ls", "--json") == []


def test_a_session_is_made_with_what_is_configured_and_keeps_it(desk: Desk) -> None:
    model = desk.script("One.", "Two.")
    user_file(desk).write_text(f'model = "{model}"\ncapture = "scan"\n[budget]\nturns = 3\ntokens = 5000\n')
    assert desk.perdure("run", "x", "--session", "s", "--max-turns", "2").returncode == 0
    user_file(desk).write_text('model = "openai:other"\ncapture = "strict"\n')
    again = desk.perdure("run", "y", "--session", "s")
    assert "Two." in again.stdout, again.stderr
    (created,) = [record for record in desk.log("s") if record["kind"] == "session_created"]
    assert (created["model"], created["capture"]) == (model, "scan")
    assert created["turn_budget"] == {"turns": 2, "tokens": 5000, "failures": 10}


def test_a_chat_begins_with_what_is_configured(desk: Desk) -> None:
    user_file(desk).write_text(f'model = "{desk.script("Hello.")}"\ncapture = "scan"\n')
    done = desk.perdure("chat", input="hi\n")
    assert "Hello." in done.stdout, done.stderr
    (row,) = desk.json("ls", "--json")
    assert next(r for r in desk.log(row["session"]) if r["kind"] == "session_created")["capture"] == "scan"


def test_a_strangers_project_file_is_told_of_and_trusted_by_a_command(desk: Desk) -> None:
    script = desk.script(turn("", bash("touch here")), "Done.")
    file = desk.project / "perdure.toml"
    file.write_text(f'model = "{script}"\n')
    refused = desk.perdure("run", "x")
    assert refused.returncode == 2
    assert f"{file} is not trusted, so it can't set `model` (line 1)" in refused.stderr
    assert "name a model" in refused.stderr
    assert not (desk.project / "here").exists()
    trusted = desk.perdure("config", "trust")
    assert (trusted.returncode, trusted.stdout) == (0, f'model = "{script}"\n')
    done = desk.perdure("run", "x")
    assert (done.returncode, "not trusted" in done.stderr) == (0, False), done.stderr
    assert (desk.project / "here").exists()
    desk.perdure("config", "distrust")
    assert desk.perdure("run", "x").returncode == 2
    assert "there is no perdure.toml" in desk.perdure("config", "trust", str(desk.folder)).stderr


def test_a_configured_server_is_not_asked_for_another_model(desk: Desk) -> None:
    user_file(desk).write_text('model = "openai:local"\nbase_url = "http://127.0.0.1:9/v1"\n')
    assert desk.perdure("run", "x", "--session", "s", "--model", desk.script("Done.")).returncode == 0
    (created,) = [record for record in desk.log("s") if record["kind"] == "session_created"]
    assert not created.get("model_options")


def test_what_is_configured_for_sandboxes_leaves_a_host_space_alone(desk: Desk) -> None:
    tools = desk.folder / "tools"
    tools.mkdir()
    user_file(desk).write_text(f"network = true\nbind = {json.dumps([str(tools)])}\n")
    done = desk.perdure("run", "x", "--model", desk.script("Done."))
    assert done.returncode == 0, done.stderr


def test_verify_leaves_out_what_the_log_leaves_out(desk: Desk) -> None:
    (desk.project / ".perdureignore").write_text("*.log\n")
    model = desk.script(turn("", bash("touch a.log a.txt")), "Done.")
    assert desk.perdure("run", "x", "--session", "s", "--model", model).returncode == 0
    verified = desk.perdure("verify", "s")
    assert (verified.returncode, "equal" in verified.stdout) == (0, True), verified.stdout
    (desk.project / "b.txt").touch()
    assert "differs: b.txt" in desk.perdure("verify", "s").stdout
