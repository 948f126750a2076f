"""Which rules leave paths out of the images: those of the workspace's `.perdureignore` when a driver begins.

They are in the log before a call starts under them, and `call_started` has their digest. A driver that finds calls open goes by the rules that these
began with, whatever the file says by now, and takes the file's once none of them can run any more.
"""

from __future__ import annotations

import hashlib
import json

from perdure.drive.events import Emit, Notice
from perdure.drive.journal import Journal
from perdure.drive.site import Site
from perdure.record import records as r
from perdure.record.parts import Digest
from perdure.record.records import Draft
from perdure.space.space import Read
from perdure.spaced.exclude import FILE, kept
from perdure.spaced.files import EMPTY

READ_S = 10.0
MAX_BYTES = 1 << 20


async def hold(journal: Journal, site: Site) -> None:
    """Let the Space go by the rules that the log has."""
    rules = journal.view.session.exclude
    if site.space.exclude != rules:
        await site.space.leave_out(rules)


async def renew(journal: Journal, site: Site, emit: Emit) -> None:
    """Take today's rules. Nothing may run that began under others."""
    key = f"{journal.view.session.log_id}:{FILE}:{journal.grant.epoch}"
    status = await site.space.start(key, Read(FILE, limit=MAX_BYTES, max_bytes=MAX_BYTES), wait_s=READ_S)
    result = status.result
    if result is None:
        return
    if result.truncated:
        emit(Notice(f"{FILE} has more than {MAX_BYTES} bytes and is not used; make it shorter"))
        return
    empty = not result.ok or result.text == EMPTY % FILE
    rules = () if empty else kept(result.text)
    if rules == journal.view.session.exclude:
        return
    await site.space.leave_out(rules)
    journal.fact(Draft(r.SettingsChanged(exclude=rules)))


def digest(rules: tuple[str, ...]) -> Digest | None:
    """What `call_started` says of them; None where nothing is left out."""
    return hashlib.sha256(json.dumps(rules).encode()).hexdigest() if rules else None
