"""The kinds of Space on this machine, for drivers: the directory a person works in, under one supervisor, as it is (`host`) or in a `sandbox`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast, get_args

from msgspec.structs import replace

from perdure.drive.spaces import Opened
from perdure.engine import copies
from perdure.log.store import Binding
from perdure.record.errors import RootReplacedError, UsageError
from perdure.record.records import SessionCreated
from perdure.space import death, sandbox, supervisor
from perdure.space.host import HostSpaces
from perdure.space.launch import Custody, bubblewrap
from perdure.space.sandbox import Sandbox
from perdure.spaced.engine import CHOICES
from perdure.spaced.tree import TREE_LEAF, encode_leaf, sha256
from perdure.state.workspace import Workspace

KINDS = ("host", "sandbox")
EMPTY_TREE = sha256(encode_leaf(TREE_LEAF, ())).hex()


class Hosting:
    """Opens Spaces in place, for one home. `environ` is the driver's; commands see it without the providers' keys."""

    def __init__(self, home: Path, environ: Mapping[str, str], *, idle_s: float | None = None) -> None:
        """A supervisor that nobody needs leaves after `idle_s`, by default after its own 60 s."""
        self.environ = environ
        self._home = home
        self._spaces = HostSpaces(home, idle_s=idle_s)

    def check(
        self,
        space: str,
        custody: str,
        root: Path,
        *,
        network: bool = False,
        binds: Iterable[str | os.PathLike[str]] = (),
        capture: str = "auto",
    ) -> tuple[str, ...]:
        """What a new session asks for can be had here; its binds, as absolute paths. UsageError with the remedy."""
        if space not in KINDS:
            raise UsageError(f"there is no Space of kind '{space}'; it is one of {', '.join(KINDS)}")
        if custody not in get_args(Custody):
            raise UsageError(f"there is no custody '{custody}'; it is one of {', '.join(get_args(Custody))}")
        if capture not in CHOICES:
            raise UsageError(f"there is no capture engine '{capture}'; it is one of {', '.join(CHOICES)}")
        if space == "host":
            if network or tuple(binds):
                raise UsageError(
                    "commands of a host Space have the network and every path already; --network and --bind are for --space sandbox"
                )
            return ()
        if custody == "unproven":
            raise UsageError(
                "a sandbox has a PID namespace of its own; leave --custody unproven out, or start a session with --space host"
            )
        asked = Sandbox(network, sandbox.check_binds(binds, root, self._home))
        sandbox.check(bubblewrap(), asked, root, self._home)
        return asked.binds

    def folder(self, session: str) -> Path:
        return self._spaces.folder(session)

    def floor(self, session: str) -> int:
        return self._spaces.floor(session)

    async def open(
        self,
        session: str,
        binding: Binding,
        epoch: int,
        created: SessionCreated,
        workspace: Workspace,
        *,
        accepted: bool = False,
    ) -> Opened:
        root = Path(binding.directory)
        rebuilt = created.copy and _lost(root, binding, workspace)
        if rebuilt:
            await self._remake(session, root, binding, workspace)
        else:
            _check_identity(root, binding, workspace)
        dead_at_ns = await self._end_unknown_life(session, workspace, accepted=accepted)
        dead_instance = workspace.space.instance if workspace.space else None
        found = await self._spaces.open(
            session,
            root=root,
            epoch=epoch,
            custody=cast(Custody, created.custody),
            env=self.environ,
            own_workspace=created.copy,
            accepted=accepted,
            sandbox=Sandbox(created.network, binding.binds) if created.space == "sandbox" else None,
            capture=created.capture,
        )
        if found.previous is not None:
            dead_at_ns, dead_instance = found.previous.dead_at_ns, found.previous.instance
        return Opened(
            found.space,
            fresh=found.fresh,
            dead_at_ns=dead_at_ns,
            dead_instance=dead_instance,
            survivors=found.survivors,
            self_test=found.self_test,
            mounts_left_out=found.mounts_left_out,
            rebuilt=replace(binding, device=found.device, inode=found.inode) if rebuilt else None,
        )

    async def _remake(self, session: str, root: Path, binding: Binding, workspace: Workspace) -> None:
        """Whoever still holds the lost workspace is ended first: it can do nothing there any more."""
        if workspace.image is None:
            raise RootReplacedError(
                f"{root}, the session's copy, is gone, and it was before the log held its files; give the session up: "
                f"`perdure abandon {session}`, and start another"
            )
        known = supervisor.recorded(self._spaces.folder(session))
        if known is not None and death.dead(known.init, known.boot_id) is False:
            await death.kill(known.init, known.boot_id)
        copies.remake(root, binding.inode)

    async def _end_unknown_life(self, session: str, workspace: Workspace, *, accepted: bool) -> int | None:
        """A supervisor that the log knows and whose state folder is gone can't be reached, so it must be dead before another begins."""
        known = workspace.space
        if known is None or supervisor.recorded(self._spaces.folder(session)) is not None:
            return None
        boot_id = known.incarnation.boot_id
        gone = death.dead(known.init, boot_id)
        if gone is None and not accepted:
            raise death.unseen(known.init)
        return await death.kill(known.init, boot_id) if gone is False else None


def _lost(root: Path, binding: Binding, workspace: Workspace) -> bool:
    """Whether a workspace that Perdure made is not there any more, or emptied."""
    try:
        stat = root.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    if (stat.st_dev, stat.st_ino) != (binding.device, binding.inode):
        return True
    with os.scandir(root) as entries:
        empty = not any(entries)
    return empty and workspace.image is not None and workspace.image.tree != EMPTY_TREE


def _check_identity(root: Path, binding: Binding, workspace: Workspace) -> None:
    """An in-place root is never made again: another directory in its place is somebody's doing, and waits for somebody's word."""
    try:
        stat = root.stat()
    except OSError as error:
        raise RootReplacedError(
            f"{root} can't be reached ({error.strerror}); put it back, then `perdure resume`, or give the session up: `perdure abandon`"
        ) from error
    if (stat.st_dev, stat.st_ino) != (binding.device, binding.inode):
        raise RootReplacedError(
            f"{root} is another directory than the one the session began in; put that one back, then `perdure resume`, "
            "or give the session up: `perdure abandon`"
        )
    try:
        with os.scandir(root) as entries:
            empty = not any(entries)
    except OSError as error:
        raise UsageError(f"{root} can't be read by this user ({error.strerror}); mend that, then `perdure resume`") from error
    if empty and workspace.image is not None and workspace.image.tree != EMPTY_TREE:
        raise RootReplacedError(
            f"{root} is empty, and by the session's log it is not; put the files back, then `perdure resume`, "
            "or give the session up: `perdure abandon`"
        )
