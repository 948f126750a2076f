"""`doctor`: what Perdure stands on, on this machine, and what is missing."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import apsw
import click
import msgspec
from msgspec import Struct

import perdure
from perdure.api import Opened
from perdure.cli.opening import opened
from perdure.cli.sizes import shown_bytes
from perdure.cli.telling import json_line
from perdure.config.settings import settings
from perdure.engine.disk import usage
from perdure.engine.places import check_root, home_path
from perdure.history.line import Style, plain
from perdure.history.paint import Paint
from perdure.log.connection import WAL_LIMIT_BYTES
from perdure.log.filesystem import kind_of
from perdure.record.errors import CorruptLogError, UsageError
from perdure.space import sandbox
from perdure.space.launch import bubblewrap, namespace_problem
from perdure.spaced.boot import boot_id
from perdure.spaced.engine import probe

Verdict = Literal["good", "note", "bad"]
_STYLES: dict[Verdict, Style] = {"good": "plus", "note": "workspace", "bad": "failure"}


COUNTING_S = 2.0
WORTH_BYTES = 100_000_000
"""Below this nobody need be told to collect."""


class Finding(Struct, frozen=True):
    """`note`: it works, and something is less than it could be. `bad`: it does not work here."""

    name: str
    value: str
    verdict: Verdict = "good"
    remedy: str = ""


@click.command
@click.option(
    "-C", "directory", metavar="DIR", default=".", help="A directory to look at as a workspace; by default the current one."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def doctor(directory: str, as_json: bool) -> int:
    """Look at what Perdure stands on, on this machine.

    Exit code 1 if something keeps it from working.
    """
    return asyncio.run(_doctor(directory, as_json))


async def _doctor(directory: str, as_json: bool) -> int:
    async with opened() as home:
        findings = [
            *_program(),
            *await _home(home),
            *await _store(home),
            *_workspace(Path(directory), home),
            *_custody(),
            _sandbox(),
            *_tools(),
        ]
    if as_json:
        print(json_line({finding.name: msgspec.to_builtins(finding) for finding in findings}))
    else:
        _show(findings)
    return 1 if any(finding.verdict == "bad" for finding in findings) else 0


def _show(findings: list[Finding]) -> None:
    paint = Paint(sys.stdout)
    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        mark = {"good": "✓", "note": "·", "bad": "✗"}[finding.verdict]
        print(f"{paint.text(_STYLES[finding.verdict], mark)} {finding.name:<{width}}  {plain(finding.value)}")
        if finding.remedy:
            print(f"  {'':<{width}}  {plain(finding.remedy)}")


# ---- what is looked at -------------------------------------------------------------------------------------------------------


def _program() -> list[Finding]:
    python = f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"
    kernel = f"{platform.system()} {platform.release()} {platform.machine()}"
    return [Finding("perdure", perdure.__version__), Finding("python", python), Finding("kernel", f"{kernel}, boot {boot_id()}")]


async def _home(home: Opened) -> list[Finding]:
    """That it could be opened says most: SQLite's version and pragmas were verified, and its file system is none that is refused."""
    path = home.home.path
    pragmas = await home.home.store.pragmas()
    said = ", ".join(f"{name} {value}" for name, value in pragmas.items())
    count, free = len(await home.sessions()), shutil.disk_usage(path).free
    return [
        Finding("sqlite", f"{apsw.sqlite_lib_version()}: {said}"),
        Finding("home", f"{path} ({kind_of(path)}), {count} session{'' if count == 1 else 's'}, {free / 1e9:.1f} GB free"),
    ]


async def _store(home: Opened) -> list[Finding]:
    used = await asyncio.to_thread(usage, home.home.path)
    store = ", ".join(f"{name} {shown_bytes(size_bytes)}" for name, size_bytes in used.store.items())
    kept = f"{shown_bytes(used.spaces)}, outputs {shown_bytes(used.outputs)}, not yet in the log {shown_bytes(used.staged)}"
    found = [
        _within_limit(store, max((size for name, size in used.store.items() if name.endswith("-wal")), default=0)),
        Finding("spaces", f"{used.folders} state folder{'' if used.folders == 1 else 's'}: {kept}"),
        await _collectable(home),
    ]
    if used.aside:
        remedy = "`perdure salvage ls SESSION` shows where they are; they belong to whoever takes them away"
        what = f"{used.aside_files} file{'' if used.aside_files == 1 else 's'} too large to be stored, {shown_bytes(used.aside)}"
        found.append(Finding("moved aside", what, "note", remedy))
    return found


def _within_limit(store: str, wal_bytes: int) -> Finding:
    if wal_bytes <= WAL_LIMIT_BYTES:
        return Finding("store", store)
    return Finding("store", store, "note", "a process reads for very long, so that a WAL can't be written back: end it")


async def _collectable(home: Opened) -> Finding:
    """Counted, as long as that is quick."""
    try:
        async with asyncio.timeout(COUNTING_S):
            would = await home.collect(dry_run=True)
    except TimeoutError:
        return Finding("garbage", "there is much to look through; `perdure gc --dry-run` counts it")
    except CorruptLogError as error:
        return Finding("garbage", str(error), "note")
    size = shown_bytes(would.bytes)
    if would.bytes < WORTH_BYTES:
        return Finding("garbage", f"{size} that no session needs")
    return Finding("garbage", f"{size} that no session needs", "note", "`perdure gc` frees it")


def _workspace(directory: Path, home: Opened) -> list[Finding]:
    try:
        root = check_root(directory, home.home.path)
    except UsageError as error:
        return [Finding("directory", str(error), "note")]
    return [
        Finding("directory", f"{root} ({kind_of(root)})"),
        _capture(root),
    ]


def _capture(root: Path) -> Finding:
    told = probe(root)
    if told == "watch":
        return Finding(
            "engine", "watch: a capture looks at what inotify told of; a scan of the whole tree when the session settles"
        )
    return Finding("engine", f"{told}: every capture stats the whole tree and hashes what differs", "note")


def _custody() -> list[Finding]:
    problem, wrap = namespace_problem(), bubblewrap()
    found = Finding("bubblewrap", wrap) if wrap else Finding("bubblewrap", "not found", "note", "install bubblewrap (`bwrap`)")
    if problem is None:
        return [found, Finding("custody", "pidns: the death of every process of a session can be proven")]
    remedy = "after a supervisor's violent death a session waits, naming what may still run, until you accept"
    return [found, Finding("custody", f"unproven, since there is no PID namespace here: {problem}", "note", remedy)]


def _sandbox() -> Finding:
    """Whether one can be had, and holds: a throw-away one is tried."""
    wrap = bubblewrap()
    why = sandbox.problem(wrap)
    if wrap is None or why is not None:
        return Finding(
            "sandbox", f"none here: {why}", "note", "sessions work with --space host, whose commands can do what you can"
        )
    try:
        failures = sandbox.failures(sandbox.tried(wrap))
    except (UsageError, OSError, subprocess.TimeoutExpired) as error:
        return Finding("sandbox", str(error), "note", "sessions work with --space host, whose commands can do what you can")
    if failures:
        remedy = "a command that is cut off there may have reached outside, and is not run again"
        return Finding("sandbox", f"not hermetic: {'; '.join(failures)}", "note", remedy)
    return Finding("sandbox", "hermetic: what is cut off there can be run again")


def _tools() -> list[Finding]:
    shell, ripgrep = shutil.which("bash"), shutil.which("rg")
    return [
        Finding("bash", shell) if shell else Finding("bash", "not found", "note", "commands are run by sh"),
        Finding("ripgrep", ripgrep)
        if ripgrep
        else Finding("ripgrep", "not found", "note", "`search` reads every file by itself"),
        _model(),
    ]


def _model() -> Finding:
    try:
        named = settings(".", home_path(), os.environ).model
    except UsageError as error:
        return Finding("model", str(error), "bad", "mend the file: a driver does not begin with it")
    if not named:
        return Finding("model", "neither PERDURE_MODEL nor perdure.toml names one", "note", "`run` needs --model")
    return Finding("model", named if isinstance(named, str) else ", ".join(named))
