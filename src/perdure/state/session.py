"""The session itself: what it was created as, what holds now, and how its drivers fare."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from perdure.record import records as r


class Session(Struct, frozen=True):
    """`fallbacks` are asked, in their order, where `model` gives nothing; `options` are the models' own.

    `crashes` counts epochs in a row that ended neither in progress nor in a release; `outcome` is the newest settlement's."""

    created: r.SessionCreated | None = None
    log_id: str = ""
    model: str = ""
    fallbacks: tuple[str, ...] = ()
    options: dict[str, Any] = {}
    instructions: str | None = None
    turn_budget: r.Budget = r.Budget()
    session_budget: r.Budget = r.Budget()
    epoch: int = 0
    owner: r.Owner | None = None
    crashes: int = 0
    driving: bool = False
    outcome: str = ""
    doubted: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    skills: tuple[r.Skill, ...] = ()
    rules: tuple[str, ...] = ()
    approved: tuple[r.Approved, ...] = ()
    answers: tuple[r.RecoveryAnswered, ...] = ()

    @property
    def abandoned(self) -> bool:
        """Whether a person has given up what is open."""
        return any(answer.answer == "abandon" for answer in self.answers)


def reduce(session: Session, stored: r.Stored) -> Session:
    match stored.body:
        case r.SessionCreated() as body:
            return replace(
                session,
                created=body,
                log_id=body.log_id,
                model=body.model,
                fallbacks=body.fallbacks,
                options={name: value for name, value in body.model_options.items() if name != "base_url"},
                turn_budget=body.turn_budget,
                session_budget=body.session_budget,
            )
        case r.SessionForked(log_id=log_id):
            return replace(session, log_id=log_id, driving=False, crashes=0)
        case r.SettingsChanged() as body:
            return replace(
                session,
                model=body.model or session.model,
                fallbacks=body.fallbacks if body.model else session.fallbacks,
                options=session.options if body.thinking is None else {**session.options, "thinking": body.thinking},
                instructions=session.instructions if body.instructions is None else body.instructions,
                turn_budget=body.turn_budget or session.turn_budget,
                session_budget=body.session_budget or session.session_budget,
                doubted=session.doubted if body.doubted is None else body.doubted,
                exclude=session.exclude if body.exclude is None else body.exclude,
                rules=session.rules if body.rules is None else body.rules,
                approved=session.approved if body.approved is None else body.approved,
                skills=session.skills if body.skills is None else body.skills,
            )
        case r.EpochRaised(owner=owner):
            crashed = session.crashes + 1 if session.driving else session.crashes
            return replace(session, epoch=stored.epoch, owner=owner, driving=True, crashes=crashed)
        case r.EpochReleased():
            return replace(session, driving=False, crashes=0)
        case r.RecoveryAnswered() as body:
            return replace(session, answers=(*session.answers, body))
        case r.SubmissionSettled(outcome=outcome) if outcome != "noted":
            return replace(session, outcome=outcome, crashes=0, answers=())
        case r.ModelResponded() | r.Compacted() | r.CallFinished():
            return replace(session, crashes=0, answers=()) if session.crashes or session.answers else session
        case _:
            return session
