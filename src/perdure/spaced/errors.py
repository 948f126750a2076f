"""What an operation inside the supervisor can end with."""


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
