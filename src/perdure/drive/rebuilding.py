"""A workspace that Perdure made and that got lost is made again from the newest image in the log. An in-place root never is."""

from __future__ import annotations

from perdure.drive.journal import Journal
from perdure.drive.site import Site
from perdure.drive.spaces import Opened
from perdure.record import records as r
from perdure.record.parts import printable
from perdure.record.records import Draft
from perdure.spaced.steps import step

PATHS_TOLD = 1000


async def fill(journal: Journal, site: Site, opened: Opened) -> None:
    """Where the workspace is new: the files of the log's image, and its place for those who come after. Cut off anywhere it is done again."""
    image = journal.view.workspace.image
    if opened.rebuilt is None or image is None:
        return
    step("rebuild.begin")
    plan = await site.space.plan(image, site.source, None)
    await site.take(plan.chunks)
    restored = await site.space.restore(image, site.source, plan)
    await site.take(restored.capture.chunks)
    site.settles(restored.capture.image)
    back = tuple(printable(path) for path in plan.take_back[:PATHS_TOLD])
    journal.fact(
        Draft(r.SpaceRestored(None, image, restored.capture.image, None, back, (), plan.salvage, restored.processes_killed))
    )
    await journal.flush()
    step("rebuild.filled")
    await journal.store.bind(opened.rebuilt)
    site.binding = opened.rebuilt
    step("rebuild.end")
