"""What a provider's failure means: try again, make it shorter, refused, or never.

The HTTP status decides, after what only the body can tell. Whatever else the layers below throw while they answer — a broken chunk, a
closed connection, in whichever vendor's words — is a failure of this attempt, not of the session, so it may be tried again.
"""

from __future__ import annotations

from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelQuotaExceededError,
    UserError,
)

from perdure.model.stream import ModelError, Overflow, Permanent, Refused, Retryable, may_pass

SHOWN_CHARS = 500
"""How much of a provider's words a message quotes."""

_TOO_LONG = ("context length", "context_length", "context window", "context size", "prompt is too long", "input is too long")
_FILTERED = ("content_filter", "content_policy_violation", "responsibleaipolicyviolation")


def meaning(error: Exception, label: str, key: str, *, begun: bool) -> ModelError:
    """What `error`, met while asking the model that people know as `label`, means.

    `key` names what authorises the request; `begun` says that the answer had begun to arrive.
    """
    said, status = _said(error), error.status_code if isinstance(error, ModelHTTPError) else None
    if isinstance(error, ContentFilterError) or _mentions(error, status, _FILTERED):
        return Refused(f"{label} refused the request: {said}", status=status)
    if isinstance(error, ModelContextWindowExceededError) or status == 413 or _mentions(error, status, _TOO_LONG):
        return Overflow(f"the context is too long for {label}: {said}", status=status)
    if isinstance(error, ModelQuotaExceededError):
        return Permanent(f"the account for {label} is used up; add credit or raise its limit: {said}", status=status)
    if isinstance(error, UserError | NotImplementedError):
        return Permanent(f"{label} can't be asked this: {said}")
    if status is not None and not may_pass(status):
        return Permanent(f"{label}: {_remedy(status, key)}: {said}", status=status)
    after_s = error.retry_after if isinstance(error, ModelAPIError) else None
    return Retryable(f"{label}: {'the answer was cut: ' if begun else ''}{said}", status=status, after_s=after_s)


def _remedy(status: int, key: str) -> str:
    if status == 401:
        return f"the provider does not accept the key; check {key}"
    if status == 403:
        return f"the provider does not allow this; check what {key} may do"
    if status == 404:
        return "the provider does not know this; check the model's name and the base URL"
    return "the provider finds the request wrong"


def _mentions(error: Exception, status: int | None, phrases: tuple[str, ...]) -> bool:
    """Compatible servers word these in their own ways, and only in the body of a rejection."""
    return status in (400, 403, 422) and any(phrase in str(error).lower() for phrase in phrases)


def _said(error: Exception) -> str:
    """The provider's own sentence where there is one, else the exception's and, behind a vendor's wrapping, the first cause's."""
    if isinstance(error, ModelHTTPError):
        return f"status {error.status_code}, {_sentence(error.body) or error.body}"[:SHOWN_CHARS]
    first: BaseException = error
    while first.__cause__ is not None:
        first = first.__cause__
    said, cause = str(error).strip() or type(error).__name__, str(first)
    return (said if cause in said else f"{said} ({cause})")[:SHOWN_CHARS]


def _sentence(body: object) -> str | None:
    """The `message` of an error body in the form that most providers share."""
    if isinstance(body, dict):
        inner = body.get("error", body)
        body = inner.get("message") if isinstance(inner, dict) else inner
    return body.strip() if isinstance(body, str) else None
