"""`perdure config`, and what is configured at work in `run` and `chat`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.desk import Desk, bash, call, finish, turn, until


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


def test_hooks_of_the_user_run_and_those_of_a_stranger_do_not(desk: Desk) -> None:
    user_file(desk).write_text(f'[hooks]\nbefore_call = ["cat > {desk.folder}/mine"]\n')
    (desk.project / "perdure.toml").write_text('[hooks]\nbefore_call = ["touch pwned"]\n')
    model = desk.script(turn("", bash("touch x")), "Done.", turn("", bash("touch y")), "Again.")
    done = desk.perdure("run", "x", "--session", "s", "--model", model)
    assert (done.returncode, done.stderr.count("is not trusted")) == (0, 1), done.stderr
    assert json.loads((desk.folder / "mine").read_text())["args"] == {"command": "touch x"}
    assert not (desk.project / "pwned").exists()
    desk.perdure("config", "trust")
    user_file(desk).write_text(f'[hooks]\nbefore_call = ["cat > {desk.folder}/changed"]\n')
    assert desk.perdure("run", "y", "--session", "s").returncode == 0
    assert (desk.folder / "changed").exists()
    assert (desk.project / "pwned").exists()


def test_a_hook_can_be_an_entry_point_of_a_package(desk: Desk) -> None:
    package = desk.folder / "site"
    (package / "careful-1.0.dist-info").mkdir(parents=True)
    (package / "careful-1.0.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: careful\nVersion: 1.0\n")
    (package / "careful-1.0.dist-info/entry_points.txt").write_text("[perdure.hooks]\ncareful = careful:check\n")
    (package / "careful.py").write_text(
        "import perdure\n\n"
        "def check(call: perdure.BeforeCall) -> perdure.Ruling:\n"
        "    return perdure.Ruling('deny', f'{call.tool} is too dangerous')\n"
    )
    user_file(desk).write_text('hooks.before_call = [{ python = "careful", tools = ["bash"] }]\n')
    model = desk.script(turn("", bash("touch x")), turn("Understood.", expect="bash is too dangerous"))
    done = desk.perdure("run", "x", "--model", model, PYTHONPATH=str(package))
    assert (done.returncode, "Understood." in done.stdout) == (0, True), done.stdout + done.stderr
    assert not (desk.project / "x").exists()


def test_a_faulty_file_stops_a_driver_before_it_begins(desk: Desk) -> None:
    model = desk.script("Done.", "Again.")
    desk.perdure("run", "x", "--session", "s", "--model", model)
    user_file(desk).write_text("[hooks]\nbefore = []\n")
    records = len(desk.log("s"))
    desk.perdure("submit", "y", "-C", str(desk.project))
    done = desk.perdure("resume", "s")
    assert (done.returncode, "there is no key `hooks.before` (`hooks.before_call`?)" in done.stderr) == (2, True), done.stderr
    assert len(desk.log("s")) == records + 1
    user_file(desk).unlink()
    assert "Again." in desk.perdure("resume", "s").stdout


def test_gc_goes_by_the_users_retention_where_it_is_not_told_otherwise(desk: Desk) -> None:
    for name in ("a", "b"):
        desk.perdure("run", "x", "--session", name, "--model", desk.script("Done."))
    user_file(desk).parent.mkdir(parents=True, exist_ok=True)
    user_file(desk).write_text('retention.older_than = "1000d"\n')
    assert "would remove" not in desk.perdure("gc", "--dry-run").stdout
    user_file(desk).write_text('retention.older_than = "0s"\n')
    assert desk.perdure("gc", "--dry-run").stdout.count("would remove") == 2
    assert "would remove" not in desk.perdure("gc", "--dry-run", "--older-than", "1000d").stdout


def test_skills_of_the_user_and_of_configured_folders_are_read(desk: Desk) -> None:
    for folder, name in (
        (user_file(desk).parent / "skills", "mine"),
        (desk.folder / "team", "ours"),
        (desk.project / "loose", "stranger"),
    ):
        (folder / name).mkdir(parents=True)
        (folder / name / "SKILL.md").write_text(f"---\ndescription: What is {name}\n---\nThis is {name}.\n")
    user_file(desk).write_text(f'skills.folders = ["{desk.folder}/team"]\n')
    (desk.project / "perdure.toml").write_text('skills.folders = ["loose"]\n')
    reads = [call("read", path=f"skill:{name}/SKILL.md") for name in ("mine", "ours", "stranger")]
    told = r"This is mine(?s:.*)This is ours(?s:.*)There is no skill 'stranger'"
    done = desk.perdure("run", "x", "--session", "s", "--model", desk.script(turn("", *reads), turn("Done.", expect=told)))
    assert done.returncode == 0, done.stdout + done.stderr
    (settings,) = [record["skills"] for record in desk.log("s") if record.get("skills")]
    assert [skill["name"] for skill in settings] == ["ours", "mine"]


@pytest.mark.parametrize("kind", ["command", "python"])
def test_a_killed_driver_leaves_no_hook_behind_and_the_next_one_asks_again(desk: Desk, kind: str) -> None:
    asked = desk.folder / "asked"
    if kind == "command":
        hook = json.dumps(f"echo $$ >> {asked}; test -e {desk.folder}/go || sleep 600")
    else:
        (desk.folder / "careful.py").write_text(
            "import os, time\n"
            "def check(call):\n"
            f"    open({str(asked)!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
            f"    time.sleep(0 if os.path.exists({str(desk.folder / 'go')!r}) else 600)\n"
        )
        desk.environment["PYTHONPATH"] = str(desk.folder)
        hook = '{ python = "careful:check" }'
    user_file(desk).write_text(f"hooks.before_call = [{hook}]\n")
    driver = desk.start("run", "x", "--session", "s", "--model", desk.script(turn("", bash("echo once >> x")), "Done."))
    (pid,) = until(lambda: asked.exists() and asked.read_text().split())
    driver.kill()
    finish(driver)
    until(lambda: not Path(f"/proc/{pid}").exists())
    (desk.folder / "go").touch()
    assert desk.perdure("resume", "s").returncode == 0
    assert len(asked.read_text().split()) == 2
    assert (desk.project / "x").read_text() == "once\n"
