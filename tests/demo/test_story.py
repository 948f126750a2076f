"""The demonstration's story holds together without Perdure: the project is broken, the script's calls mend it, and being cut off matters."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import perdure.demo
from perdure.model.scripted import Scripted
from perdure.program.builtin import BUILTIN

DEMO = Path(perdure.demo.__file__).parent
GENERATOR = "python3 tools/make_cases.py 8"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO / "project", tmp_path / "work"))


def run(project: Path, command: str) -> str:
    done = subprocess.run(
        ["bash", "-c", command], cwd=project, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )
    return done.stdout


def files(project: Path) -> set[str]:
    return {path.relative_to(project).as_posix() for path in project.rglob("*")}


def play(project: Path, call: dict[str, object]) -> str:
    """What the tools do, in as few words as a test needs."""
    args: dict[str, object] = call["args"]  # type: ignore[assignment]
    path = project / str(args.get("path", "."))
    match call["tool"]:
        case "bash":
            return run(project, str(args["command"]))
        case "read":
            return path.read_text()
        case "list":
            return "\n".join(sorted(files(path)))
        case "write":
            path.write_text(str(args["content"]))
        case "edit":
            text = path.read_text()
            for edit in args["edits"]:  # type: ignore[attr-defined]
                assert text.count(edit["old_text"]) == 1
                text = text.replace(edit["old_text"], edit["new_text"])
            path.write_text(text)
    return ""


def test_every_call_is_one_that_the_tools_accept() -> None:
    Scripted(DEMO / "script.json")
    for turn in json.loads((DEMO / "script.json").read_text())["turns"]:
        for call in turn.get("calls", ()):
            tool = next(tool for tool in BUILTIN if tool.name == call["tool"])
            assert tool.problem(call["args"]) is None


def test_the_script_mends_the_project_and_is_told_what_it_expects(project: Path) -> None:
    turns = json.loads((DEMO / "script.json").read_text())["turns"]
    before = files(project)
    told = "A discount over several lines loses a cent."
    skipped = next(n for n, turn in enumerate(turns) if turn.get("calls", [{}])[0].get("args", {}).get("command") == GENERATOR)
    for n, turn in enumerate(turns):
        if n != skipped + 1:  # it expects to be told of the crash, which only Perdure can say
            assert re.search(turn.get("expect", ""), told, re.DOTALL), f"turn {n + 1}: {turn['expect']} in {told}"
        told = "" if n == skipped else "\n".join(play(project, call) for call in turn.get("calls", ()))
    assert "OK" in run(project, "sh check")
    assert (project.parent / "acceptance.log").read_text() == "acceptance run\n"
    assert files(project) - before == {"tests/test_split.py", *(f"cases/{n:02}.json" for n in range(3, 11))}


def test_a_generator_that_is_cut_off_and_simply_run_again_leaves_the_tests_red(project: Path) -> None:
    """So the demonstration shows something: without the undo, the second run can't mend what the first one left."""
    script = json.loads((DEMO / "script.json").read_text())["turns"][2]["calls"][0]
    play(project, script)
    assert "OK" in run(project, "sh check")
    child = subprocess.Popen(GENERATOR.split(), cwd=project)
    index = project / "cases" / "INDEX"
    while index.read_text().count("\n") < 4:
        assert child.poll() is None
    child.kill()
    child.wait()
    run(project, GENERATOR)
    assert "FAILED" in run(project, "sh check")
