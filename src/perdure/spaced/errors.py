"""What an operation inside the supervisor can end with."""

import contextlib
import errno
import traceback

FULL = (errno.ENOSPC, errno.EDQUOT)


def note_trace() -> None:
    """The error that is being handled, in the supervisor's own log; where that has no room for it, nowhere."""
    with contextlib.suppress(OSError):
        traceback.print_exc()


class OpError(Exception):
    """The tool's own failure: no such file, a text that is not unique. Its message is shown to the model."""


class FencedError(Exception):
    """A newer epoch raised the floor while the operation ran; it must stop and change nothing more."""


class StaleError(Exception):
    """The request's epoch lies below the floor."""


class ReplacedError(OSError):
    """The root's path does not lead to the directory any more that was opened there."""


class ProtocolError(Exception):
    """A request that this supervisor can't serve: wrong token, unknown verb, another operation under a known key."""
