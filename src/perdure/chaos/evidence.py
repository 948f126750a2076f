"""What is left of a run: the log, the files on the disk and in the log, the counters, what was salvaged, and what `perdure verify` says."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from perdure.chaos.files import FOLDER, Files, below, in_image, on_disk
from perdure.chaos.people import BESIDE
from perdure.chaos.plan import LOOSE, Plan
from perdure.chaos.violence import Happened
from perdure.chaos.world import SESSION, HangingError, World
from perdure.log.sqlite import SqliteStore
from perdure.record import records as r
from perdure.record.records import Stored
from perdure.spaced.restore import QUARANTINE
from perdure.state.state import State, fold_all

LOOK_S = 30.0


class Evidence(Struct, frozen=True):
    """`image_files` are what the log's newest image holds, `salvaged` each image that `perdure salvage ls` lists. `effects` are keys by counter.

    `unlisted` are salvages in the log that the list does not have; `problems` what went wrong before anything could be judged.
    """

    plan: Plan
    happened: Happened
    records: tuple[Stored, ...]
    files: Files
    image_files: Files
    effects: Mapping[str, tuple[str, ...]]
    verified: Mapping[str, Any]
    salvaged: tuple[Files, ...] = ()
    unlisted: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()

    def bodies(self, *kinds: type[r._Body]) -> list[Any]:
        return [stored.body for stored in self.records if isinstance(stored.body, kinds)]

    def state(self) -> State:
        return fold_all(self.records)


def gather(world: World, happened: Happened) -> Evidence:
    problems = list(happened.problems)
    verified: Mapping[str, Any] = {}
    listed = ""
    try:
        _, told = world.run("verify", "--json", SESSION, timeout_s=LOOK_S)
        verified = _object(told)
        _, listed = world.run("salvage", "ls", SESSION, timeout_s=LOOK_S)
    except HangingError as hanging:
        problems.append(f"hangs: {hanging}")
    records, image_files, salvaged, unlisted = asyncio.run(_read(world, listed))
    aside = world.state_folder / "workspace" / QUARANTINE
    if aside.exists():
        salvaged.append(on_disk(aside))
    effects = {path.name: tuple(path.read_text().split()) for path in world.effects.iterdir()}
    return Evidence(
        world.plan,
        happened,
        tuple(records),
        on_disk(world.root),
        image_files,
        effects,
        verified,
        tuple(salvaged),
        tuple(unlisted),
        tuple(problems),
    )


def _object(told: str) -> Mapping[str, Any]:
    try:
        return msgspec.json.decode(told.strip().splitlines()[-1], type=dict[str, Any])
    except (msgspec.MsgspecError, IndexError):
        return {"said": told}


async def _read(world: World, listed: str) -> tuple[list[Stored], Files, list[Files], list[str]]:
    store = await SqliteStore.open(world.home)
    try:
        records = [stored async for stored in store.read(SESSION)]
        newest = fold_all(records).workspace.image
        image_files = await in_image(newest.tree, store.blobs.get) if newest else {}
        roots = {s.body.salvage for s in records if isinstance(s.body, r.Recovered | r.SpaceRestored) and s.body.salvage}
        ids = [line.split()[0] for line in listed.splitlines() if line.split()]
        shown = [root for root in roots if any(root.startswith(id) for id in ids)]
        salvaged = [await in_image(root, store.blobs.get) for root in shown]
        return records, image_files, salvaged, sorted(roots - set(shown))
    finally:
        await store.close()


def own(found: Files, wanted: Files) -> Files:
    """A call's folder without what is judged apart, and without folders that stay only since somebody put something there."""
    beside = [path for path in found if path.rpartition("/")[2].startswith(BESIDE)]
    own = {
        path: node
        for path, node in found.items()
        if path not in beside and not (path.count("/") == 1 and path.partition("/")[2] in LOOSE)
    }
    for path in beside:
        at = path.rpartition("/")[0]
        if at in own and at not in wanted and own[at].kind == FOLDER and len(below(own, at)) == 1:
            del own[at]
    return own
