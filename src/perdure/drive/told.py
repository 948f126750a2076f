"""What the model is told about a call that was cut off, word for word.

The text says what is certain, what was taken back and what is not known; it never says that nothing happened where that can't be proven.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.record.parts import shortened
from perdure.record.records import Process
from perdure.space.space import GitState, Plan

SHOWN_PATHS = 50


def interrupted(
    taken_back: Sequence[str],
    count: int,
    salvages: Sequence[str],
    plan: Plan,
    processes: Sequence[Process],
    *,
    runs: int = 1,
    hermetic: bool = False,
) -> str:
    """The result of a call that was undone and not run again. `salvages` are the ids that `read` can open.

    `hermetic`: it can't have reached outside. `runs` is how often it was begun and cut off.
    """
    how_often = "a crash" if runs == 1 else f"a crash each of the {runs} times that it ran"
    outside = (
        "It could not reach outside of the working directory."
        if hermetic
        else "Effects outside of the working directory (network, other directories, services) may or may not have happened: "
        "check before you try again."
    )
    lines = [
        f"This call was cut off by {how_often}, and it was not run again.",
        *_files(taken_back, count, salvages, plan),
        outside,
    ]
    if locks := _new_locks(plan):
        lines.append(
            f"Lock files that its git may have left: {', '.join(locks)}. Remove them unless another git is at work there."
        )
    if processes:
        listed = "; ".join(f"{p.command} (pid {p.pid})" for p in processes[:10])
        lines.append(f"Background processes that are gone: {listed}. Scratch files outside of the directory may be gone too.")
    return "\n".join(lines)


def unknown(why: str, *, changed: Sequence[str] = (), count: int = 0, plan: Plan | None = None) -> str:
    """The result of a call whose outcome can't be known and that was not undone."""
    lines = [
        f"The outcome of this call is unknown: it was cut off by a crash, and nothing was taken back because {why}.",
        "It may have taken effect in part or in whole. Check the state of things before you try again.",
    ]
    if count:
        lines += ["Files that differ from before the call:", *_paths(changed, count)]
    if plan and plan.git_before and plan.git_after:
        lines += _git(plan.git_before, plan.git_after)
    return "\n".join(lines)


def stopped_outside(reason: str) -> str:
    """The result of a call that was stopped, and that acted where nothing can be looked at."""
    return (
        f"This call was stopped ({reason}). It acts outside of the workspace, so its outcome is unknown: it may have taken effect in part "
        "or in whole. Check the state of things before you try again."
    )


def repeated(earlier: str) -> str:
    """Before the result of a call that had been made before, and whose first effect nobody knows."""
    return f"[the same as {earlier}, which was cut off and may have taken effect outside too: then it has happened twice]"


def aborted(reason: str) -> str:
    return f"This call was stopped ({reason}). The files are as it left them."


def _files(taken_back: Sequence[str], count: int, salvages: Sequence[str], plan: Plan) -> list[str]:
    if not count:
        return ["The files are as they were before the call: it had changed none."]
    lines = ["The files are as they were before the call. Taken back:", *_paths(taken_back, count)]
    for id in salvages:
        lines.append(f"What it had written is kept: read `salvage:{id}/PATH`.")
    if plan.quarantine:
        lines.append(
            "Too large to keep in the log, moved aside (`perdure salvage ls` shows people where): "
            + ", ".join(plan.quarantine[:10])
        )
    return lines


def _new_locks(plan: Plan) -> list[str]:
    before = plan.git_before.locks if plan.git_before else ()
    return [lock for lock in plan.git_after.locks if lock not in before] if plan.git_after else []


def _git(before: GitState, after: GitState) -> list[str]:
    lines = []
    if before.head != after.head:
        lines.append(f"git HEAD was {before.head or 'none'} and is {after.head or 'none'}.")
    if after.merging:
        lines.append("Unfinished in git: " + ", ".join(after.merging))
    if after.locks:
        lines.append("Locks left in .git: " + ", ".join(after.locks))
    return lines


def _paths(paths: Sequence[str], count: int) -> list[str]:
    lines = [f"  {shortened(path)}" for path in paths[:SHOWN_PATHS]]
    if count > len(lines):
        lines.append(f"  … and {count - len(lines)} more")
    return lines
