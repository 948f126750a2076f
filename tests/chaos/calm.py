"""A run without violence, with people: `python -m tests.chaos.calm SEED FOLDER` leaves what is left of it as FOLDER/evidence.

With `stray` as a third argument a process of the run stays behind.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
from msgspec.structs import replace

from perdure.chaos import evidence, people, plan, violence
from perdure.chaos.drivers import Drivers
from perdure.chaos.people import Deed
from perdure.chaos.violence import Violence
from perdure.chaos.world import MARK, World

DEEDS = (Deed(0, "edit"), Deed(1, "delete"), Deed(2, "move"))


def main(seed: int, folder: Path, *, stray: bool) -> None:
    drivers = Drivers.begin()
    chosen = replace(plan.make(seed, "host", "auto", 6), lives=(), deeds=DEEDS)
    world = World(folder / "world", chosen, drivers)
    if stray:
        violence.QUIET_S = 0.5
        subprocess.Popen(["sleep", "600"], env={MARK: str(world.folder), "PATH": "/usr/bin:/bin"})
    try:
        calm = Violence(world)
        calm.happened.done.extend(people.work(deed, world.root) for deed in DEEDS)
        calm.run()
        (folder / "evidence").write_bytes(msgspec.msgpack.encode(evidence.gather(world, calm.happened)))
    finally:
        world.close(keep=False)
        drivers.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), stray="stray" in sys.argv[3:])
