"""Runs the parts that were named, or all, and prints one table."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bench import machine, starting, store, takeover, turns
from bench.figure import Figure

PARTS: dict[str, Callable[[Path], Iterator[Figure]]] = {
    "machine": machine.measure,
    "turn": turns.measure,
    "takeover": takeover.measure,
    "starting": starting.measure,
    "store": store.measure,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What Perdure costs on this machine.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--json", metavar="FILE", type=Path, help="append every figure with its samples, a JSON object a line")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    figures: list[Figure] = []
    for name in options.parts or PARTS:
        folder = Path(tempfile.mkdtemp(prefix=f"perdure-bench-{name}-"))
        try:
            figures += _told(PARTS[name](folder))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    _print(figures)
    if options.json:
        with open(options.json, "a") as file:
            file.writelines(json.dumps(figure._asdict()) + "\n" for figure in figures)
    return 0


def _told(figures: Iterable[Figure]) -> Iterator[Figure]:
    """Show that something happens; the table comes at the end."""
    for figure in figures:
        print(f"{figure.part}: {figure.name}", file=sys.stderr)
        yield figure


def _print(figures: list[Figure]) -> None:
    rows = [("", "", "", "asked for")]
    part = ""
    for figure in figures:
        if figure.part != part:
            part = figure.part
            rows.append((f"{part}", "", "", ""))
        rows.append((f"  {figure.name}", f"{figure.value:,.2f}", figure.unit, figure.target))
    widths = [max(len(row[n]) for row in rows) for n in range(4)]
    for name, value, unit, target in rows:
        print(f"{name:<{widths[0]}}  {value:>{widths[1]}} {unit:<{widths[2]}}  {target}".rstrip())


if __name__ == "__main__":
    sys.exit(main())
