"""Admitted inputs that are not settled yet, in the order of their admission."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from perdure.record import records as r
from perdure.record.parts import Part


class Submission(Struct, frozen=True):
    """`aborted` is the reason of the abort that was requested for it, if one was."""

    id: str
    seq: r.Seq
    at: float
    thread: str
    parts: tuple[Part, ...]
    mode: r.SubmissionMode
    deadline: float | None = None
    placed: r.Seq | None = None
    aborted: str | None = None


Submissions = dict[str, Submission]


def reduce(submissions: Submissions, stored: r.Stored) -> Submissions:
    match stored.body:
        case r.SubmissionAdmitted() as body:
            new = Submission(
                body.submission, stored.seq, stored.at, stored.thread or "main", body.parts, body.mode, body.deadline
            )
            return {**submissions, body.submission: new}
        case r.SubmissionPlaced(submission=id) if id in submissions:
            return {**submissions, id: replace(submissions[id], placed=stored.seq)}
        case r.AbortRequested(submission=target, reason=reason, by=by):
            why = reason or f"aborted by {by}"
            return {
                id: replace(s, aborted=why) if s.aborted is None and target in (None, id) else s for id, s in submissions.items()
            }
        case r.SubmissionSettled(submission=id):
            return {key: s for key, s in submissions.items() if key != id}
        case _:
            return submissions
