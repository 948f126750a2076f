"""The errors people and programs meet. One root; a message says what happened, to what, and what to do."""

from __future__ import annotations


class PerdureError(Exception):
    """The root. `exit_code` is what the command line ends with."""

    exit_code = 1


class UsageError(PerdureError):
    """The request itself is wrong: a bad argument, directory, model or script."""

    exit_code = 2


class StaleEpochError(PerdureError):
    """A newer driver holds the session. Never caught below the driver, never a tool result."""

    exit_code = 75


class ConflictError(PerdureError):
    """The inbox holds something that the decision had not seen; decide again."""


class BlobGoneError(PerdureError):
    """A newly named chunk is not stored any more; store it again and commit again."""

    def __init__(self, digests: tuple[str, ...]) -> None:
        super().__init__(f"{len(digests)} chunk(s) are not in the store, the first is {digests[0]}")
        self.digests = digests


class UncertainCommitError(PerdureError):
    """A sync failed: whether the commit is durable is unknown until the home was repaired and its id looked up."""


class StoreFullError(PerdureError):
    """No room for the commit; nothing of it was stored. Make room and go on."""


class StoreLockedError(PerdureError):
    """Another process holds the store's lock and is alive."""


class CorruptLogError(PerdureError):
    """A record or page that can't be read. Committed data before it stays readable."""

    exit_code = 78


class NewerLogError(PerdureError):
    """The log was written by a newer version; the message names the one needed."""

    exit_code = 78


class SpaceGoneError(PerdureError):
    """The Space can't be reached or lost its memory; recovery decides, it is never a tool result."""


class SurvivorsError(PerdureError):
    """A former supervisor of the Space may still live, and from here nobody can prove otherwise."""


class SessionBusyError(PerdureError):
    """A submission of mode `reject` met a busy session, or another living driver holds it."""


class RootRefusedError(UsageError):
    """The directory can't be a workspace: held by another session, nested, missing, `/`, or around the home."""


class RootReplacedError(PerdureError):
    """The directory is missing, empty where the image is not, or another one than the session works in."""


class PermanentError(PerdureError):
    """It can't be resumed by trying again."""

    exit_code = 78
