"""Where Spaces come from: the protocol that each kind's maker keeps towards the driver."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from perdure.log.store import Binding, SessionId
from perdure.record.records import Process, SessionCreated
from perdure.space.space import Space
from perdure.state.workspace import Workspace


@dataclass(frozen=True)
class Opened:
    """A Space that answers, and what was found on the way.

    `rebuilt` is where the workspace lies that was made in the place of a lost one: it is to be filled from the log.

    `fresh` is a new generation: its ledger knows nothing. `dead_at_ns` is when the life `dead_instance` was seen to die, None where it was
    only found dead. `survivors` are processes of a former supervisor whose death can't be proven.
    """

    space: Space
    fresh: bool
    dead_at_ns: int | None = None
    dead_instance: int | None = None
    survivors: tuple[Process, ...] = ()
    self_test: dict[str, bool] = field(default_factory=dict)
    mounts_left_out: tuple[str, ...] = ()
    rebuilt: Binding | None = None


class Spaces(Protocol):
    def floor(self, session: SessionId) -> int:
        """The Space's fence as its state folder has it, 0 where there is none."""
        ...

    async def open(
        self,
        session: SessionId,
        binding: Binding,
        epoch: int,
        created: SessionCreated,
        workspace: Workspace,
        *,
        accepted: bool,
    ) -> Opened:
        """Raises RootRefusedError or SpaceGoneError; RootReplacedError for a root that is not the one in the binding; and, unless a person has
        `accepted` that, SurvivorsError where a former supervisor can't be proven dead."""
        ...
