"""Runs the parts that were named, or all, and prints one table."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench import captures, crash_table, long, machine, starting, store, table, takeover, turns
from bench.figure import Figure


class Part(NamedTuple):
    """`quick` are the arguments for a short run; None where the part can't be short and is left out of one."""

    measure: Callable[..., Iterator[Figure]]
    quick: dict[str, Any] | None


PARTS = {
    "machine": Part(machine.measure, {}),
    "turn": Part(turns.measure, {"late": 100}),
    "long": Part(long.measure, {"turns": 300}),
    "captures": Part(captures.measure, {"trees": captures.TREES[:2], "repeats": 5}),
    "crash": Part(crash_table.measure, {"count": 25}),
    "takeover": Part(takeover.measure, {"deaths": 5}),
    "starting": Part(starting.measure, {}),
    "store": Part(store.measure, None),
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="What Perdure costs on this machine.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all by default")
    parser.add_argument("--quick", action="store_true", help="smaller trees and fewer repeats, and no store: under two minutes")
    parser.add_argument("--json", metavar="FILE", type=Path, help="append every figure with its samples, a JSON object a line")
    parser.add_argument("--page", metavar="FILE", type=Path, help="write the table as a page, as docs/numbers.md is")
    options = parser.parse_args()
    if unknown := set(options.parts) - PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    figures: list[Figure] = []
    for name in options.parts or PARTS:
        part = PARTS[name]
        if options.quick and part.quick is None:
            print(f"{name}: not in a quick run", file=sys.stderr)
            continue
        folder = Path(tempfile.mkdtemp(prefix=f"perdure-bench-{name}-"))
        began = time.monotonic()
        try:
            figures += _told(part.measure(folder, **(part.quick or {}) if options.quick else {}))
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    print(table.plain(figures))
    if options.json:
        with open(options.json, "a") as file:
            file.writelines(json.dumps(figure._asdict()) + "\n" for figure in figures)
    if options.page:
        options.page.write_text(table.page(figures, _command(options)))
    return 0


def _command(options: argparse.Namespace) -> str:
    """The one that repeats this, from a checkout."""
    arguments = [*options.parts, *(["--quick"] if options.quick else []), "--page docs/numbers.md"]
    return f'make bench ARGS="{" ".join(arguments)}"'


def _told(figures: Iterable[Figure]) -> Iterator[Figure]:
    """Show that something happens; the table comes at the end."""
    for figure in figures:
        print(f"{figure.part}: {figure.name}", file=sys.stderr)
        yield figure


if __name__ == "__main__":
    sys.exit(main())
