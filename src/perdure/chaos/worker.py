"""A process that carries out runs, one after the other: `python -m perdure.chaos.worker`.

A run is asked for by a line of JSON on standard input (`campaign.Asked`) and answered by one on standard output (`campaign.Result`). SIGTERM ends everything
of the run that is under way.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path

import msgspec

from perdure.chaos import evidence, oracle, plan
from perdure.chaos.campaign import Asked, Result
from perdure.chaos.drivers import Drivers
from perdure.chaos.violence import Violence
from perdure.chaos.world import World
from perdure.record import records as r


class Told(BaseException):
    """By SIGTERM."""


def main() -> int:
    drivers = Drivers.begin()
    signal.signal(signal.SIGTERM, _leave)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o022)
    try:
        for line in sys.stdin.buffer:
            result = one(msgspec.json.decode(line, type=Asked), drivers)
            sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
            sys.stdout.buffer.flush()
    except Told:
        return 1
    drivers.close()
    return 0


def _leave(*_: object) -> None:
    raise Told


def one(asked: Asked, drivers: Drivers) -> Result:
    """One run, from its plan to the oracle's word. A fault of the campaign itself is a finding too."""
    began = time.monotonic()
    options = asked.options
    chosen = plan.make(asked.seed, options.space, options.capture, options.calls)
    world = World(Path(asked.folder), chosen, drivers)
    try:
        violence = Violence(world)
        violence.run()
        found = evidence.gather(world, violence.happened)
        findings = oracle.judge(found)
        return _result(found, findings, time.monotonic() - began)
    except Exception as error:
        world.note(traceback.format_exc())
        return Result(asked.seed, (f"{type(error).__name__}: {error}",), seconds=time.monotonic() - began)
    finally:
        world.close(keep=True)


def _result(found: evidence.Evidence, findings: list[str], seconds: float) -> Result:
    recovered = found.bodies(r.Recovered)
    return Result(
        found.plan.seed,
        tuple(findings),
        calls=len(found.bodies(r.CallFinished)),
        kills=found.happened.kills + found.happened.calls_killed,
        stops=found.happened.stops,
        people=len(found.happened.done),
        recovered=len(recovered),
        undone=sum(body.decision.startswith("undo") for body in recovered),
        salvaged=len({body.salvage for body in recovered if body.salvage}),
        seconds=seconds,
    )


if __name__ == "__main__":
    sys.exit(main())
