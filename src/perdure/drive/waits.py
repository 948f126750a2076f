"""Why a session waits for somebody: a named reason, and what to do about it."""

from __future__ import annotations


class Waits(Exception):
    """The session can't go on before something happens; `reason` is a stable word, `detail` says what to do."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
