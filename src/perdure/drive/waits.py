"""Why a session waits for somebody: a named reason, and what to do about it."""

from __future__ import annotations


class Waits(Exception):
    """The session can't go on before something happens; `reason` is a stable word, `detail` says what to do.

    After `again_s` seconds a watcher may try once more, where it may happen by itself; None: only somebody's word helps.
    """

    def __init__(self, reason: str, detail: str, *, again_s: float | None = None) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
        self.again_s = again_s
