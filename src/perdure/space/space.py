"""The protocol of a Space, and what passes through it.

A Space is one supervisor (`perdure.spaced`) over one workspace. All methods raise StaleEpochError when the epoch that the Space was
opened with lies below its floor, and SpaceGoneError when the supervisor can't be reached; neither is ever a tool result.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Set
from typing import Literal, Protocol

from msgspec import Struct

from perdure.record.parts import Digest
from perdure.record.records import Image, Incarnation, Init, Process, Window

OpKey = str
"""`<log id>:<call>:<attempt>`"""

Cause = Literal["self", "timeout", "abort", "fenced", "shutdown"]


# ---- operations ------------------------------------------------------------------------------------------------------------


class Exec(Struct, frozen=True, tag="exec", omit_defaults=True):
    """Run `command` in bash (sh where there is none) with the workspace as working directory.

    `env` is laid over the environment that the Space was opened with. `mutating` operations are followed by a capture. With `background`
    the operation ends as soon as the command is started and detached; its process is listed as left behind.
    """

    command: str
    timeout_s: float = 600.0
    env: dict[str, str] = {}
    background: bool = False
    mutating: bool = True
    max_output_bytes: int = 1 << 30


class Read(Struct, frozen=True, tag="read", omit_defaults=True):
    """Lines `offset` (from 1) to offset + limit - 1 of a text file."""

    path: str
    offset: int = 1
    limit: int = 2000
    max_bytes: int = 50 * 1024


class Write(Struct, frozen=True, tag="write", omit_defaults=True):
    """Make the file hold exactly `content`. `expect` is the SHA-256 the model last saw of it, None where it saw none."""

    path: str
    content: str
    expect: Digest | None = None


class Replacement(Struct, frozen=True):
    old_text: str
    new_text: str


class Edit(Struct, frozen=True, tag="edit", omit_defaults=True):
    """Replace each `old_text`, which must occur exactly once; all or nothing."""

    path: str
    edits: tuple[Replacement, ...]
    expect: Digest | None = None


class List(Struct, frozen=True, tag="list", omit_defaults=True):
    path: str = "."
    depth: int = 1
    limit: int = 2000


class Search(Struct, frozen=True, tag="search", omit_defaults=True):
    """Regular expression over file contents, by ripgrep where present; `glob` narrows the paths."""

    pattern: str
    path: str = "."
    glob: str | None = None
    limit: int = 200
    timeout_s: float = 30.0


Op = Exec | Read | Write | Edit | List | Search


class Capture(Struct, frozen=True, omit_defaults=True):
    """A workspace as it was found, against the base that was asked for.

    `changed` are paths relative to the root, as text (surrogateescape for names that are not UTF-8), sorted, at most 1,000 of `changed_count`.
    `chunks` maps the digests, with sizes in bytes, of every tree node and content chunk that this capture met and the base does not hold; the Space keeps
    them until `settle`. `opaque` are named but outside the digest, `unstable` were stored while they changed.
    `reaching` lead out of the workspace or into it: FIFOs, sockets, devices, mounts, files with a name outside.
    """

    image: Image
    changed: tuple[str, ...] = ()
    changed_count: int = 0
    chunks: dict[Digest, int] = {}
    left: tuple[Process, ...] = ()
    opaque: tuple[str, ...] = ()
    opaque_changed: tuple[str, ...] = ()
    unstable: tuple[str, ...] = ()
    reaching: tuple[str, ...] = ()
    entries: int = 0
    total_bytes: int = 0


class OpResult(Struct, frozen=True, omit_defaults=True):
    """What an operation ended with. `text` is bounded for the model's view; `output_bytes` counts the whole, kept by the Space until `settle`.

    `ok` is False for a tool's own error (no such file, old_text not unique); `seen` maps paths to the SHA-256 of the contents now known.
    """

    ok: bool
    text: str = ""
    exit_code: int | None = None
    output_bytes: int = 0
    truncated: bool = False
    seen: dict[str, Digest] = {}
    duration_s: float = 0.0


class Status(Struct, frozen=True, omit_defaults=True):
    """What the ledger says of a key.

    `instance` is the supervisor's life that made the entry: an entry that is open under an older one was lost. Times are wall-clock
    nanoseconds; `started_ns` is taken from the coarse clock that file systems stamp with, `seen_ns` is the last stamp while it ran.
    """

    state: Literal["none", "running", "ended", "lost"]
    instance: int = 0
    cause: Cause | None = None
    started_ns: int = 0
    seen_ns: int = 0
    ended_ns: int = 0
    position: int = 0
    result: OpResult | None = None
    capture: Capture | None = None
    differs: Capture | None = None
    """What was found instead of what was expected; nothing was begun."""


class Expect(Struct, frozen=True):
    """What the workspace has to be for an operation to begin: the operation's base, and leading further or not, as Capture's `reaching` tells.

    `settled` is an image that the log holds, as in `settle`.
    """

    reaching: bool
    settled: Image | None = None


class Fenced(Struct, frozen=True, omit_defaults=True):
    """Every operation admitted below the new floor has ended. `survivors` names processes whose death can't be proven."""

    adopted: tuple[OpKey, ...] = ()
    killed: int = 0
    survivors: tuple[Process, ...] = ()


class GitState(Struct, frozen=True, omit_defaults=True):
    """What matters of a repository's state: changed by a lost call means not undone."""

    head: str = ""
    refs: Digest = ""
    index: Digest = ""
    merging: tuple[str, ...] = ()
    locks: tuple[str, ...] = ()


class Plan(Struct, frozen=True, omit_defaults=True):
    """What an undo would do, before it does anything.

    `take_back` are paths to be made as in the target again, `kept` differ from it but are somebody else's work, `salvage` is the root of an
    image of everything that is about to be lost and is stored nowhere yet (`chunks` as in Capture). `doubtful`: a later change where the window's
    end is only a stamp. `blocked` says why it can't be undone at all. `reaching` as in Capture.
    """

    take_back: tuple[str, ...] = ()
    take_back_count: int = 0
    kept: tuple[str, ...] = ()
    kept_count: int = 0
    doubtful: tuple[str, ...] = ()
    salvage: Digest | None = None
    chunks: dict[Digest, int] = {}
    quarantine: tuple[str, ...] = ()
    git_before: GitState | None = None
    git_after: GitState | None = None
    blocked: str | None = None
    reaching: tuple[str, ...] = ()


class Restored(Struct, frozen=True, omit_defaults=True):
    plan: Plan
    capture: Capture
    processes_killed: int = 0


class Traits(Struct, frozen=True, omit_defaults=True):
    """`rollback_free`: nobody can roll this Space back, since its kernel is the one that holds the log.

    `capture` says in words how its workspace is captured: by events (`watch`), or by a scan and why.
    """

    custody: Literal["pidns", "unproven"]
    hermetic: bool = False
    checkpoint: Literal["none", "workspace", "machine"] = "none"
    remote: bool = False
    own_workspace: bool = False
    rollback_free: bool = True
    capture: str = ""


ChunkSource = Callable[[Iterable[Digest]], Awaitable[Mapping[Digest, bytes]]]
"""Asks the log's chunk store. Every digest of a committed image is there."""


class Space(Protocol):
    incarnation: Incarnation
    instance: int
    init: Init
    traits: Traits
    position: int
    exclude: tuple[str, ...]

    async def fence(self, epoch: int, adopt: Set[OpKey]) -> Fenced:
        """Raise the floor; returns when every operation admitted below has ended and every process but the adopted ones' is dead."""
        ...

    async def start(
        self, key: OpKey, op: Op, *, base: Image | None = None, wait_s: float = 0.0, expect: Expect | None = None
    ) -> Status:
        """Begin, or meet what the key already is: running (attach by `wait`), ended (its outcome). Another op under a known key: an error.

        A mutating operation is captured against `base` by the Space itself when it ends. One that ends within `wait_s` seconds is told as ended.
        With `expect` the workspace is looked at first, and where it is another nothing is begun: the key stays unknown, and `differs` has what was found.
        """
        ...

    async def status(self, keys: Set[OpKey]) -> Mapping[OpKey, Status]: ...

    async def wait(self, key: OpKey, wait_s: float | None = None) -> Status:
        """The status once it has ended, or after `wait_s` seconds."""
        ...

    def output(self, key: OpKey, offset: int = 0) -> AsyncIterator[bytes]:
        """Output bytes from offset on, as they come, until the operation has ended."""
        ...

    async def stop(self, key: OpKey, grace_s: float = 2.0) -> Status:
        """SIGTERM, then SIGKILL after the grace; returns when every process of it is dead. Cause: abort."""
        ...

    async def capture(self, base: Image | None, *, settled: Image | None = None, audit: bool = False) -> Capture:
        """The workspace now. `settled` says on the way what `settle` says by itself. An audit looks at everything, whatever events told."""
        ...

    def chunks(self, digests: Iterable[Digest]) -> AsyncIterator[tuple[Digest, bytes]]:
        """Bytes of chunks that a capture or plan reported and `settle` has not dropped."""
        ...

    async def leave_out(self, rules: tuple[str, ...]) -> None:
        """Go by these exclude rules from the next capture on; nothing may run. `exclude` has the ones that it goes by."""
        ...

    async def settle(self, image: Image) -> None:
        """The log holds this image and everything reported before it: staged chunks and outputs of ended operations may go."""
        ...

    async def plan(self, target: Image, source: ChunkSource, window: Window | None, *, known: Set[Digest] = frozenset()) -> Plan:
        """Read only. `window` None makes everything equal to the target: only where Perdure made the workspace."""
        ...

    async def restore(self, target: Image, source: ChunkSource, plan: Plan, *, also: Iterable[str] = ()) -> Restored:
        """Carry the plan out. Every other process of the Space dies first. A path that changed since the plan is kept."""
        ...

    async def processes(self) -> list[Process]: ...

    async def sync(self) -> None:
        """syncfs of the workspace's file system."""
        ...

    async def close(self) -> None:
        """Drop the connection; the supervisor and what runs live on."""
        ...
