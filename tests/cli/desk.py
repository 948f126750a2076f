"""A person at a terminal: a home and a directory of their own, and `perdure` as real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perdure.space import death, supervisor

PATIENCE_S = 30.0
PERDURE = [sys.executable, "-m", "perdure.cli.main"]


def call(tool: str, **args: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args}


def bash(command: str, **args: Any) -> dict[str, Any]:
    return call("bash", command=command, **args)


def turn(text: str = "", *calls: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"text": text, "calls": list(calls), **fields}


class Desk:
    """`project` is the directory, and where commands are typed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "home"
        self.project = folder / "project"
        self.project.mkdir()
        kept = {
            name: value for name, value in os.environ.items() if "KEY" not in name and not name.startswith(("PERDURE", "OPENAI"))
        }
        self.environment = {
            **kept,
            "PERDURE_HOME": str(self.home),
            "XDG_CONFIG_HOME": str(folder / "config"),
            "COLUMNS": "100",
        }

    def script(self, *turns: dict[str, Any] | str, name: str = "script.json") -> str:
        """A model's name; a bare string is an answer without calls."""
        path = self.folder / name
        path.write_text(json.dumps({"turns": [{"text": t} if isinstance(t, str) else t for t in turns]}))
        return f"scripted:{path}"

    def perdure(self, *arguments: str, input: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run to its end."""
        return subprocess.run(
            [*PERDURE, *arguments],
            cwd=self.project,
            env=self.environment | environment,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        """Run beside; `finish` has its end."""
        return subprocess.Popen(
            [*PERDURE, *arguments],
            cwd=self.project,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def json(self, *arguments: str) -> list[dict[str, Any]]:
        """What a command prints, a JSON object a line."""
        return [json.loads(line) for line in self.perdure(*arguments).stdout.splitlines()]

    def log(self, session: str) -> list[dict[str, Any]]:
        return self.json("log", session, "--json")

    def kinds(self, session: str) -> list[str]:
        return [record["kind"] for record in self.log(session)]

    def end_supervisors(self) -> None:
        """None of them outlives its test."""
        for folder in self.home.glob("spaces/*"):
            known = supervisor.recorded(folder)
            if known is not None and death.dead(known.init, known.boot_id) is False:
                os.kill(known.init.pid, signal.SIGKILL)


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    out, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, out, errors


def until(fact: Callable[[], Any]) -> Any:
    """Waits for something to be true; what it then is."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := fact()):
        assert time.monotonic() < deadline, f"not within {PATIENCE_S:g} s"
        time.sleep(0.02)
    return found
