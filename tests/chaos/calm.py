"""A run without violence, with people: `python -m tests.chaos.calm SEED FOLDER` leaves what is left of it as FOLDER/evidence."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
from msgspec.structs import replace

from perdure.chaos import evidence, people, plan
from perdure.chaos.drivers import Drivers
from perdure.chaos.people import Deed
from perdure.chaos.violence import Violence
from perdure.chaos.world import World

DEEDS = (Deed(0, "edit"), Deed(1, "delete"), Deed(2, "move"))


def main(seed: int, folder: Path) -> None:
    drivers = Drivers.begin()
    chosen = replace(plan.make(seed, "host", "auto", 6), lives=(), deeds=DEEDS)
    world = World(folder / "world", chosen, drivers)
    try:
        violence = Violence(world)
        violence.happened.done.extend(people.work(deed, world.root) for deed in DEEDS)
        violence.run()
        (folder / "evidence").write_bytes(msgspec.msgpack.encode(evidence.gather(world, violence.happened)))
    finally:
        world.close(keep=False)
        drivers.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
