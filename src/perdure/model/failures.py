"""What a provider's failure means: try again, make it shorter, refused, or never."""

from __future__ import annotations


def may_pass(status: int) -> bool:
    """Whether the same request may succeed later: timeouts, conflicts, rate limits and the server's own errors."""
    return status in (408, 409, 425, 429) or status >= 500
