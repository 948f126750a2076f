"""The workspace as the log has it: its newest image, where it is kept, and what the model last saw of it."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from perdure.record import records as r
from perdure.state.calls import Call, Calls


class Workspace(Struct, frozen=True):
    """`first` is the image the session began with. `position` is the greatest ledger position the log has seen.

    `image_boot` is the boot in which the newest image was captured; `deaths` are the wall clocks (ns) at which supervisors were seen to
    die, by `life`. `left` are background processes.
    `used`: something that may change files was started in this life of the Space. `unimaged` are the calls that may have changed files and ended
    since the newest image, without one of their own.
    """

    image: r.Image | None = None
    image_seq: r.Seq = 0
    image_boot: str = ""
    first: r.Image | None = None
    synced: r.Image | None = None
    space: r.SpaceOpened | None = None
    lost: r.SpaceLost | None = None
    deaths: dict[str, int] = {}
    position: int = 0
    left: tuple[r.Process, ...] = ()
    opaque: tuple[str, ...] = ()
    used: bool = False
    unimaged: tuple[str, ...] = ()


def reduce(workspace: Workspace, stored: r.Stored, calls: Calls = {}) -> Workspace:  # noqa: B006
    """`calls` are as before this record."""
    match stored.body:
        case r.SpaceOpened(incarnation=incarnation) as body:
            same = workspace.space is not None and workspace.space.incarnation == incarnation
            position, left = (workspace.position, workspace.left) if same else (0, ())
            return replace(workspace, space=body, lost=None, position=position, left=left, used=False)
        case r.SpaceLost() as body:
            deaths = workspace.deaths
            if body.dead_at_ns is not None:
                deaths = {**deaths, life(body.incarnation, body.instance): body.dead_at_ns}
            return replace(workspace, lost=body, left=(), deaths=deaths)
        case r.WorkspaceChanged(image=image, opaque=opaque):
            first = workspace.first or image
            return replace(_imaged(workspace, image, stored.seq), first=first, opaque=opaque)
        case r.SpaceRestored(to_image=image):
            return replace(_imaged(workspace, image, stored.seq), left=())
        case r.Synced(image=image):
            return replace(workspace, synced=image)
        case r.CallStarted(position=position, effect=effect, ledgered=ledgered):
            used = workspace.used or (ledgered and effect != "none")
            return replace(workspace, position=max(position, workspace.position), used=used)
        case r.CallFinished() as body:
            return _finished(workspace, stored.seq, body, calls.get(body.call))
        case _:
            return workspace


def _finished(workspace: Workspace, seq: r.Seq, body: r.CallFinished, call: Call | None) -> Workspace:
    position = max(body.position, workspace.position)
    if body.image is None:
        acted = call is not None and call.started is not None and call.started.base is not None and call.place != "thread"
        unimaged = (*workspace.unimaged, body.call) if acted else workspace.unimaged
        return replace(workspace, position=position, unimaged=unimaged)
    return replace(_imaged(workspace, body.image, seq), position=position, left=body.left, opaque=body.opaque)


def _imaged(workspace: Workspace, image: r.Image, seq: r.Seq) -> Workspace:
    boot = workspace.space.incarnation.boot_id if workspace.space else ""
    return replace(workspace, image=image, image_seq=seq, image_boot=boot, unimaged=())


def life(incarnation: r.Incarnation, instance: int) -> str:
    """One life of a supervisor, as `deaths` names it."""
    return f"{incarnation.ledger_id}:{instance}"
