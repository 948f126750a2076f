"""Figures as a table: for a terminal, and as the page docs/numbers.md."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Sequence
from pathlib import Path

import apsw

from bench.figure import Figure

HEAD = ("", "measured", "ratio", "asked for", "")


def plain(figures: Sequence[Figure]) -> str:
    rows = [HEAD]
    for part, of_part in _parts(figures):
        rows += [(part, "", "", "", ""), *((f"  {row[0]}", *row[1:]) for row in map(_cells, of_part))]
    widths = [max(len(row[n]) for row in rows) for n in range(len(HEAD))]
    return "\n".join("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def page(figures: Sequence[Figure], command: str) -> str:
    """The whole of docs/numbers.md."""
    lines = [
        "# Numbers",
        "",
        f"Measured on {time.strftime('%Y-%m-%d')} by `{command}`, which writes this page: {_machine()}.",
        "Everything in one run on one machine, so compare the ratios and not the milliseconds. Medians where nothing else is said; models are",
        "scripted and answer at once. `make rivals` installs the other systems, with pinned versions; one that is missing says so.",
    ]
    for part, of_part in _parts(figures):
        lines += ["", f"## {part}", "", "| | measured | ratio | asked for | |", "| --- | ---: | --- | --- | --- |"]
        lines += ["| " + " | ".join(cell.strip().replace("|", "\\|") for cell in _cells(figure)) + " |" for figure in of_part]
    return "\n".join(lines) + "\n"


def _parts(figures: Sequence[Figure]) -> list[tuple[str, list[Figure]]]:
    return [(part, [f for f in figures if f.part == part]) for part in dict.fromkeys(f.part for f in figures)]


def _cells(figure: Figure) -> tuple[str, str, str, str, str]:
    value = "–" if math.isnan(figure.value) else f"{figure.value:,.2f} {figure.unit}".strip()
    ratio = "" if figure.ratio is None else f"{figure.ratio:,.{_decimals(figure.ratio)}f} × {figure.against}"
    return figure.name, value, ratio, figure.target, figure.note


def _decimals(ratio: float) -> int:
    return 0 if ratio >= 100 else 1 if ratio >= 1 else 2


def _machine() -> str:
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0] if names else model
    return (
        f"{os.cpu_count()} × {model}, {platform.system()} {platform.release()}, "
        f"Python {platform.python_version()}, SQLite {apsw.sqlite_lib_version()}"
    )
