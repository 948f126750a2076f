"""The shape of the code: layers, sizes, and what an import costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "perdure"
MODULES = sorted(p for p in SOURCE.rglob("*.py") if "demo/project" not in p.as_posix())
SUPERVISOR = sorted((SOURCE / "spaced").glob("*.py"))
VENDORS = ("pydantic_ai", "pydantic", "openai", "anthropic", "httpx", "httpx2", "apsw", "starlette", "uvicorn", "click")


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def test_a_layer_imports_only_what_stands_below_it() -> None:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
        "--no-logo",
        "--no-cache",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_fits_in_a_readers_mind_or_says_why_not(path: Path) -> None:
    text = path.read_text()
    if text.count("\n") > 400:
        docstring = ast.get_docstring(ast.parse(text)) or ""
        assert "one long module" in docstring.lower(), (
            f"{name(path)} has over 400 lines and its docstring has no 'One long module: <why>'"
        )


def test_importing_perdure_loads_no_vendor() -> None:
    program = "import sys, perdure; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert "perdure" in loaded
    assert not {m for m in loaded if m.partition(".")[0] in VENDORS}


@pytest.mark.parametrize("path", SUPERVISOR, ids=name)
def test_the_supervisor_needs_only_python_3_9_and_its_library(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    imported = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add("perdure.spaced" if node.level else node.module or "")
    foreign = {m for m in imported if m.partition(".")[0] not in sys.stdlib_module_names and not m.startswith("perdure.spaced")}
    assert not foreign


def test_nothing_knows_the_machine_it_was_written_on() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    homes = re.compile(rb"/(?:home|Users)/(?!ada/)[a-z]\w*/|/root/(?!\W)")
    guilty = []
    for entry in listed.split(b"\0"):
        path = ROOT / entry.decode()
        if entry and path.is_file() and path != Path(__file__) and (found := homes.search(path.read_bytes())):
            guilty.append(f"{entry.decode()}: {found.group().decode()}")
    assert not guilty


def test_the_map_names_every_module_and_no_other() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text().partition("## Map")[2]
    for line in text.splitlines():
        found = re.match(r"\| (?:`api`, )?`(\w+)/` \| (.*)", line)
        if found is None or found[1] == "demo":
            continue
        there = {path.stem for path in (SOURCE / found[1]).glob("*.py")} - {"__init__", "__main__"}
        named = set(re.findall(r"`(\w+)`", found[2]))
        assert named <= there, f"{found[1]}/ has no {named - there}"
        assert found[1] == "cli" or named == there, f"the map does not say what {there - named} of {found[1]}/ are for"


def test_the_cases_from_practice_name_tests_that_there_are() -> None:
    named = re.findall(r"`([a-z]+/test_\w+)`", (ROOT / "docs" / "adversity.md").read_text())
    assert named and not [each for each in named if not (ROOT / "tests" / f"{each}.py").exists()]
