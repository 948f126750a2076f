"""`chaos`."""

from __future__ import annotations

import importlib
import secrets
import sys
from pathlib import Path
from typing import Any

import click

SEED_BITS = 32


@click.command
@click.option("--runs", type=click.IntRange(1), default=20, show_default=True, metavar="N", help="Sessions to disturb.")
@click.option(
    "--seed", type=click.IntRange(0), metavar="S", help="Where the choices come from; by default a new one, which is shown."
)
@click.option("--calls", type=click.IntRange(1, 100), default=6, show_default=True, metavar="N", help="Calls in each session.")
@click.option("--space", type=click.Choice(("host", "sandbox")), default="host", show_default=True, help="Where commands run.")
@click.option(
    "--engine",
    "capture",
    type=click.Choice(("auto", "scan", "watch", "strict")),
    help="How the workspace is captured; by default chosen by each run's seed.",
)
@click.option("--jobs", type=click.IntRange(1, 64), default=1, show_default=True, metavar="J", help="Runs at a time.")
@click.option("--keep", is_flag=True, help="Leave every run's folder, not only those of inconsistent ones.")
def chaos(**options: Any) -> int:
    """Kill, freeze and race sessions at random, and check that nothing is lost.

    Nothing is to happen twice either. The processes are real, in folders of their own. The exit code is 0 only if every run was consistent; an inconsistent one
    is told with its folder and the command that repeats it. The choices follow from the seed, the instants from this machine.
    """
    # By name, since the campaign stands beside the command line, not below it.
    campaign = importlib.import_module("perdure.chaos.campaign")
    if options["seed"] is None:
        options["seed"] = secrets.randbits(SEED_BITS)
        print(f"seed {options['seed']}")
    progress = _Progress(options)
    summary = campaign.run(campaign.Options(**options), progress.show)
    progress.clear()
    print(summary.line())
    return 1 if summary.inconsistent or len(summary.results) < options["runs"] else 0


class _Progress:
    """A line on a terminal that is written over, and lines that stay for what was inconsistent."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._on = sys.stderr.isatty()

    def show(self, result: Any, folder: Path, summary: Any) -> None:
        self.clear()
        if result.findings:
            given = " ".join(f"--{name} {self._options[name]}" for name in ("calls", "space") if self._options[name] is not None)
            for finding in result.findings:
                print(f"INCONSISTENT seed {result.seed}: {finding}")
            print(f"    its folder: {folder}")
            print(f"    again: perdure chaos --runs 1 --seed {result.seed} {given}", flush=True)
        elif self._options["keep"]:
            print(f"seed {result.seed}: consistent, {folder}", flush=True)
        if self._on:
            print(
                f"{len(summary.results)} of {self._options['runs']} runs, {summary.inconsistent} inconsistent",
                end="",
                file=sys.stderr,
                flush=True,
            )

    def clear(self) -> None:
        if self._on:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
