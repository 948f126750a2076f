"""The records: everything a session's log can say. One long module: a reader of logs wants the whole vocabulary on one page.

A record's *body* is one of the structs below, tagged by its kind. A `Draft` is a body on its way into the log; a `Stored` is
the same with what only the log can give: sequence number, time, epoch, commit. Bodies never change once released: a new
field gets a default, a new meaning gets a new kind. Fields that nobody reads yet are there from the first day where a later
reader would miss them in old logs (docs/architecture.md).

Identifiers: a call is `<thread>.<turn>.<index>`, a submission is its request id, an operation of the Space is
`<log id>:<call>:<attempt>`.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from perdure.record.parts import Blob, Digest, Part, Usage

Seq = int
EffectClass = Literal["none", "workspace", "idempotent", "external"]
Place = Literal["space", "driver", "remote", "thread"]
"""`thread`: a subagent, which is a conversation of its own in the same session."""

Outcome = Literal["ok", "error", "denied", "aborted", "interrupted", "unknown"]
SubmissionMode = Literal["follow_up", "steer", "note", "reject", "compact"]
"""`compact` says nothing to the model: it asks for a summary of the conversation so far."""

FoundBy = Literal["open", "before_call", "audit", "recovery", "person"]


class _Body(Struct, frozen=True, omit_defaults=True, tag_field="kind"):
    pass


# ---- shared shapes ---------------------------------------------------------------------------------------------------------


class Image(Struct, frozen=True, omit_defaults=True):
    """A workspace at one instant: roots of its Merkle trees, and the wall clock of the capture.

    `tree` is what equality, restore and rewind concern; `times` are its modification times; `git` is the top-level `.git` of an
    in-place root, captured and reported beside it.
    """

    tree: Digest
    times: Digest
    clock_ns: int
    git: Digest | None = None

    def same_files(self, other: Image) -> bool:
        return self.tree == other.tree

    def same(self, other: Image) -> bool:
        return (self.tree, self.times, self.git) == (other.tree, other.times, other.git)


class Incarnation(Struct, frozen=True):
    """What identifies a Space's memory: a ledger of another incarnation proves nothing."""

    generation: str
    boot_id: str
    ledger_id: str


class Init(Struct, frozen=True):
    """The supervisor as the kernel outside names it. `namespace` is the inode of the PID namespace that `pid` counts in."""

    pid: int
    start_time: int
    namespace: int


class Window(Struct, frozen=True, omit_defaults=True):
    """When a lost call may have acted, in wall-clock nanoseconds. `proven` says that a process saw the end itself."""

    start_ns: int
    end_ns: int
    proven: bool = True


class Process(Struct, frozen=True, omit_defaults=True):
    """A process that a command left behind. `pid` as the namespace's inside names it; `ports` are listening TCP ports."""

    pid: int
    command: str
    ports: tuple[int, ...] = ()
    call: str | None = None


class Budget(Struct, frozen=True, omit_defaults=True):
    """Limits; None is no limit. `wall_s` counts from the first turn's start; `failures` are consecutive identical ones."""

    turns: int | None = None
    tokens: int | None = None
    wall_s: float | None = None
    failures: int | None = None


class Owner(Struct, frozen=True, omit_defaults=True):
    """Who drives: enough to find the process on the same kernel, and to name it elsewhere."""

    host: str
    boot_id: str
    pid: int
    start_time: int
    namespace: int
    token: str | None = None


class Approved(Struct, frozen=True):
    """What a person allowed for good in this session: this tool with exactly this command, path or arguments."""

    tool: str
    subject: str


class Result(Struct, frozen=True, omit_defaults=True):
    """What the model is shown of a call. Text above 16 KiB lives in `blob`; `output` is the whole output where `text` is a part."""

    text: str = ""
    blob: Blob | None = None
    output: Blob | None = None


# ---- session ---------------------------------------------------------------------------------------------------------------


class SessionCreated(_Body, frozen=True, tag="session_created"):
    """`copy`: the workspace is one that Perdure made, a copy of a directory."""

    log_id: str
    agent: str
    program: str
    program_version: int
    model: str
    model_options: dict[str, Any] = {}
    space: str = "host"
    network: bool = False
    custody: str = "auto"
    capture: str = "auto"
    tools: tuple[str, ...] = ()
    tools_digest: Digest | None = None
    policy: dict[str, Any] = {}
    turn_budget: Budget = Budget()
    session_budget: Budget = Budget()
    instructions: str = ""
    fallbacks: tuple[str, ...] = ()
    copy: bool = False


class SessionForked(_Body, frozen=True, tag="session_forked"):
    parent: str
    at_seq: Seq
    log_id: str


class ThreadOpened(_Body, frozen=True, tag="thread_opened"):
    name: str
    parent: str | None = None
    call: str | None = None
    mode: str = "conversation"


class EpochRaised(_Body, frozen=True, tag="epoch_raised"):
    owner: Owner
    engine_token: int | None = None


class EpochReleased(_Body, frozen=True, tag="epoch_released"):
    """The driver let go on purpose: the epoch did not end in a crash. `reason` is what the session now waits for, if anything."""

    reason: str = ""


class Skill(Struct, frozen=True):
    """Something that the model can read up on: `path` is what its `read` takes."""

    name: str
    description: str
    path: str


class SettingsChanged(_Body, frozen=True, tag="settings_changed"):
    """None leaves a setting as it is. `instructions` are what the workspace's AGENTS.md said when the session began. `fallbacks` go with `model`.

    `doubted` are foreign tools that said they only read, and changed the workspace. `exclude` are the rules that leave paths out of the images.
    `rules` are the permissions that the driver goes by, `approved` what a person allowed for good.
    """

    model: str | None = None
    turn_budget: Budget | None = None
    session_budget: Budget | None = None
    instructions: str | None = None
    doubted: tuple[str, ...] | None = None
    exclude: tuple[str, ...] | None = None
    skills: tuple[Skill, ...] | None = None
    fallbacks: tuple[str, ...] = ()
    thinking: str | None = None
    rules: tuple[str, ...] | None = None
    approved: tuple[Approved, ...] | None = None


class NoteAdded(_Body, frozen=True, tag="note_added"):
    """Something worth telling people, that changes no state: a warning of the driver, an accepted risk."""

    text: str
    by: str = "driver"


class Instructed(_Body, frozen=True, tag="instructed"):
    """A thread's model is told what `path`, an AGENTS.md below the root, says: it has come to a file there."""

    path: str
    text: str


class Redacted(_Body, frozen=True, tag="redacted"):
    seqs: tuple[Seq, ...]
    by: str = "person"


# ---- submissions -----------------------------------------------------------------------------------------------------------


class SubmissionAdmitted(_Body, frozen=True, tag="submission_admitted"):
    submission: str
    parts: tuple[Part, ...]
    mode: SubmissionMode = "follow_up"
    deadline: float | None = None


class SubmissionPlaced(_Body, frozen=True, tag="submission_placed"):
    submission: str
    as_mode: SubmissionMode = "follow_up"


class SubmissionSettled(_Body, frozen=True, tag="submission_settled"):
    submission: str
    outcome: Literal["answered", "aborted", "failed", "noted"]
    reason: str = ""
    interrupted: tuple[str, ...] = ()
    advisory: str | None = None


class AbortRequested(_Body, frozen=True, tag="abort_requested"):
    """`submission` None means everything that is unsettled when it is read."""

    submission: str | None = None
    by: str = "person"
    reason: str = ""


class BudgetExhausted(_Body, frozen=True, tag="budget_exhausted"):
    submission: str
    scope: Literal["turn", "session"]
    limit: Literal["turns", "tokens", "wall_s", "failures", "deadline"]
    value: float


class RecoveryAnswered(_Body, frozen=True, tag="recovery_answered"):
    """A person's word on a wait: which one, and what to do."""

    wait: str
    answer: Literal["keep", "restore", "accept", "abandon"]


# ---- turns -----------------------------------------------------------------------------------------------------------------


class TurnStarted(_Body, frozen=True, tag="turn_started"):
    """Long results before record `context_cut` are not sent any more. With purpose `compact` what lies before it is to be summed up, or, where it is 0,
    everything.
    """

    turn: int
    submission: str
    model: str
    options: dict[str, Any] = {}
    context_cut: Seq = 0
    purpose: Literal["turn", "compact"] = "turn"


class ModelResponded(_Body, frozen=True, tag="model_responded"):
    turn: int
    attempt: int
    parts: tuple[Part, ...]
    usage: Usage = Usage()
    stop: Literal["stop", "tool_calls", "length", "refused", "other"] = "stop"
    model: str = ""
    extra: Any = None


class ModelFailed(_Body, frozen=True, tag="model_failed"):
    """`partial` is the text that had been shown: the next attempt continues it. `next_model` is asked instead of `model` from here on."""

    turn: int
    attempt: int
    failure: Literal["retryable", "overflow", "refused", "permanent", "cut"]
    message: str
    status: int | None = None
    retry_at: float | None = None
    partial: str = ""
    usage: Usage = Usage()
    model: str = ""
    next_model: str = ""


class Compacted(_Body, frozen=True, tag="compacted"):
    """What the thread's model was shown before record `cut` is, from here on, `summary`, which `model` gave to the attempt of this turn."""

    cut: Seq
    summary: str
    turn: int = 0
    attempt: int = 0
    usage: Usage = Usage()
    model: str = ""


# ---- calls -----------------------------------------------------------------------------------------------------------------


class CallProposed(_Body, frozen=True, tag="call_proposed"):
    call: str
    tool: str
    args: dict[str, Any]
    turn: int = 0
    index: int = 0
    provider_id: str = ""
    place: Place = "space"
    origin: Literal["turn", "cell", "workflow", "person"] = "turn"
    submission: str | None = None
    problem: str | None = None


class CallDecided(_Body, frozen=True, tag="call_decided"):
    call: str
    verdict: Literal["allow", "deny"]
    by: Literal["policy", "hook", "person"] = "policy"
    args: dict[str, Any] | None = None
    reason: str = ""


class ApprovalRequested(_Body, frozen=True, tag="approval_requested"):
    """A person is asked about a call, which waits for the answer as long as that takes. `digest` is of the tool and the arguments as they stand, `args`
    these where a hook changed them, `rule` what wants the question. A later one about the same call makes answers to this one void."""

    call: str
    digest: Digest
    rule: str = ""
    args: dict[str, Any] | None = None


class ApprovalAnswered(_Body, frozen=True, tag="approval_answered"):
    """A person's word on a call: the first that is about the newest question, by its `digest`, counts. `always`: also when it is made again."""

    call: str
    digest: Digest
    verdict: Literal["allow", "deny"]
    always: bool = False
    by: str = "person"
    reason: str = ""


class CallStarted(_Body, frozen=True, tag="call_started"):
    call: str
    attempt: int
    key: str
    effect: EffectClass
    ledgered: bool = True
    policy: dict[str, Any] = {}
    place: Place = "space"
    base: Image | None = None
    incarnation: Incarnation | None = None
    instance: int = 0
    position: int = 0
    exclude_digest: Digest | None = None


class CallFinished(_Body, frozen=True, tag="call_finished"):
    """`opaque` are the paths that the image names without holding them, `opaque_changed` those of them that the call changed."""

    call: str
    outcome: Outcome
    result: Result
    attempt: int = 0
    exit_code: int | None = None
    cause: str = "self"
    duration_s: float = 0.0
    image: Image | None = None
    changed: tuple[str, ...] = ()
    changed_count: int = 0
    left: tuple[Process, ...] = ()
    opaque: tuple[str, ...] = ()
    opaque_changed: tuple[str, ...] = ()
    position: int = 0
    seen: dict[str, Digest] = {}
    requests: tuple[dict[str, Any], ...] = ()


CHANGED_BEFORE = "changed_before"
"""The evidence of a call that was not begun, since the workspace was found to be another than its base."""


class Recovered(_Body, frozen=True, tag="recovered"):
    """A decision about one call or turn that something cut off, committed before it is carried out."""

    decision: Literal["adopt", "attach", "start", "undo_start", "undo_interrupt", "unknown", "abort", "retry", "continue"]
    evidence: str
    call: str | None = None
    turn: int | None = None
    attempt: int = 0
    window: Window | None = None
    taken_back: tuple[str, ...] = ()
    taken_back_count: int = 0
    kept: tuple[str, ...] = ()
    salvage: Digest | None = None
    partial: str = ""
    detail: str = ""


# ---- workspace -------------------------------------------------------------------------------------------------------------


class WorkspaceChanged(_Body, frozen=True, tag="workspace_changed"):
    """`perhaps_by` are the calls that had ended without an image of what they left, so that any of this may be theirs."""

    image: Image
    paths: tuple[str, ...] = ()
    path_count: int = 0
    found_by: FoundBy = "before_call"
    call: str | None = None
    opaque: tuple[str, ...] = ()
    perhaps_by: tuple[str, ...] = ()


class SpaceOpened(_Body, frozen=True, tag="space_opened"):
    """`scratch_gone`: what commands of an earlier life had put into a sandbox's private places is not there any more."""

    incarnation: Incarnation
    instance: int
    init: Init
    custody: Literal["pidns", "unproven"]
    hermetic: bool = False
    own_workspace: bool = False
    self_test: dict[str, bool] = {}
    mounts_left_out: tuple[str, ...] = ()
    scratch_gone: bool = False


class SpaceLost(_Body, frozen=True, tag="space_lost"):
    incarnation: Incarnation
    instance: int
    reason: str
    dead_at_ns: int | None = None


class SpaceRestored(_Body, frozen=True, tag="space_restored"):
    call: str | None
    from_image: Image
    to_image: Image
    window: Window | None = None
    taken_back: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    salvage: Digest | None = None
    processes_killed: int = 0


class Synced(_Body, frozen=True, tag="synced"):
    image: Image


class Applied(_Body, frozen=True, tag="applied"):
    """What `image` differs by from the directory's last one was brought into a directory outside, whose path is not named: `target` is a digest of it.

    `paths` were changed there. `conflicts` were not, nor was what `only` does not name: the next apply begins for them where this one did.
    """

    image: Image
    target: Digest
    paths: tuple[str, ...] = ()
    path_count: int = 0
    conflicts: tuple[str, ...] = ()
    only: tuple[str, ...] = ()


Body = (
    SessionCreated
    | SessionForked
    | ThreadOpened
    | EpochRaised
    | EpochReleased
    | SettingsChanged
    | NoteAdded
    | Instructed
    | Redacted
    | SubmissionAdmitted
    | SubmissionPlaced
    | SubmissionSettled
    | AbortRequested
    | BudgetExhausted
    | RecoveryAnswered
    | TurnStarted
    | ModelResponded
    | ModelFailed
    | Compacted
    | CallProposed
    | CallDecided
    | ApprovalRequested
    | ApprovalAnswered
    | CallStarted
    | CallFinished
    | Recovered
    | WorkspaceChanged
    | SpaceOpened
    | SpaceLost
    | SpaceRestored
    | Synced
    | Applied
)


class Draft(Struct, frozen=True, omit_defaults=True):
    """A record on its way into the log. A negative `cause` counts back within the same commit: -1 is the record before."""

    body: Body
    thread: str | None = None
    cause: Seq | None = None
    trace: str | None = None


class Stored(Struct, frozen=True):
    """A record as the log holds it. `at` is wall-clock seconds; never compared across hosts."""

    seq: Seq
    at: float
    epoch: int
    commit: str
    body: Body
    thread: str | None = None
    cause: Seq | None = None
    trace: str | None = None
    v: int = 1
