"""Which process an `Owner` is, and whether it lives.

An Owner may be of another host, of which nothing can be known from here; one of this host is looked at as a supervisor is (`perdure.space.death`).
"""

from __future__ import annotations

import os
import platform

from perdure.record.records import Init, Owner
from perdure.space import death


def identify(token: str | None = None) -> Owner:
    """This process."""
    init = death.identify(os.getpid())
    assert init is not None, "a running process can see itself"
    return Owner(platform.node(), death.this_boot(), init.pid, init.start_time, init.namespace, token)


def alive(owner: Owner) -> bool | None:
    """None where it can't be known from here. Another boot of this host is death; a zombie is dead."""
    gone = None if _elsewhere(owner) else death.dead(_init(owner), owner.boot_id)
    return gone if gone is None else not gone


def stopped(owner: Owner) -> bool | None:
    """Whether it is alive and in state T at this instant; None where it can't be known."""
    return None if _elsewhere(owner) else death.stopped(_init(owner), owner.boot_id)


async def wait_death(owner: Owner) -> None:
    """Returns once the process is proven dead. Raises LookupError where that can't be known from here (`alive` is None)."""
    if _elsewhere(owner):
        raise LookupError(f"process {owner.pid} of host {owner.host} can't be watched from here")
    await death.watch_death(_init(owner), owner.boot_id)


def _elsewhere(owner: Owner) -> bool:
    """Two containers of one kernel have names of their own and its boot id."""
    return owner.boot_id != death.this_boot() and owner.host != platform.node()


def _init(owner: Owner) -> Init:
    return Init(owner.pid, owner.start_time, owner.namespace)
