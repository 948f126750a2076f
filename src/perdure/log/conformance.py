"""What every LogStore must do, as checks that anyone can run against a store of their own.

    for check in CHECKS:
        clock = Clock()
        async with my_empty_store(clock) as store:
            await check(store, clock)

Each check gets an empty store whose clock is the given one, and raises AssertionError or whatever the store raised by mistake. Durability
and other processes are beyond a suite that knows nothing of the store's insides; the SQLite store's own tests show how to go about them.
One long module: a flat list of independent checks, read one at a time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Set
from typing import TypeVar

from perdure.log.store import SMALL_CHUNK_BYTES, Admission, Binding, Cut, Due, Grant, Header, Live, LogStore, Receipt, Rest, Swept
from perdure.record.errors import (
    BlobGoneError,
    ConflictError,
    RootRefusedError,
    SessionBusyError,
    StaleEpochError,
    StoreLockedError,
    UsageError,
)
from perdure.record.parts import Digest
from perdure.record.records import Draft, EpochRaised, NoteAdded, Owner, SessionCreated, Stored, ThreadOpened

OWNER = Owner("host", "boot", 1, 2, 3)
OTHER = Owner("host", "boot", 4, 5, 6)
T = TypeVar("T")


class Clock:
    """Wall-clock seconds that move only when told."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


Check = Callable[[LogStore, Clock], Awaitable[None]]
CHECKS: list[Check] = []


def check(function: Check) -> Check:
    CHECKS.append(function)
    return function


# ---- what the checks are made of -------------------------------------------------------------------------------------------


def note(text: str) -> Draft:
    return Draft(NoteAdded(text))


def header(session: str) -> Header:
    created = SessionCreated(f"log-{session}", "agent", "conversation", 1, "model")
    return Header(session, f"log-{session}", (Draft(created), Draft(ThreadOpened("main"), thread="main", cause=-1)))


def digest(data: bytes) -> Digest:
    return hashlib.sha256(data).hexdigest()


async def session(store: LogStore, name: str = "s") -> Grant:
    """A new session, driven: records 1 to 3."""
    await store.create(header(name))
    grant, _ = await store.acquire(name, OWNER, expected=0)
    return grant


async def records(store: LogStore, name: str = "s", after: int = 0) -> list[Stored]:
    return [stored async for stored in store.read(name, after)]


async def notes(store: LogStore, name: str = "s") -> list[str]:
    return [stored.body.text for stored in await records(store, name) if isinstance(stored.body, NoteAdded)]


async def refused(error: type[BaseException], request: Awaitable[object]) -> BaseException:
    try:
        await request
    except error as raised:
        return raised
    raise AssertionError(f"{error.__name__} was not raised")


# ---- sessions and epochs ---------------------------------------------------------------------------------------------------


@check
async def a_session_starts_with_its_opening_records(store: LogStore, clock: Clock) -> None:
    assert await store.create(header("s"), rest=Rest("waiting", "somebody")) == "s"
    first, second = await records(store)
    assert isinstance(first.body, SessionCreated) and isinstance(second.body, ThreadOpened)
    assert [(r.seq, r.epoch, r.at, r.thread, r.cause) for r in (first, second)] == [
        (1, 0, clock.now, None, None),
        (2, 0, clock.now, "main", 1),
    ]
    row = await store.row("s")
    assert (row.session, row.log_id, row.epoch, row.last_seq, row.inbox_seq) == ("s", "log-s", 0, 2, 0)
    assert (row.rest, row.held_by, row.needs_driver, row.parent) == (Rest("waiting", "somebody"), None, False, None)
    assert await store.rows() == [row]
    await refused(UsageError, store.create(header("s")))


@check
async def an_unknown_session_is_said_to_be_unknown(store: LogStore, clock: Clock) -> None:
    grant = Grant("none", 1, OWNER)
    for request in (
        store.row("none"),
        store.acquire("none", OWNER, expected=0),
        store.renew(grant),
        store.release(grant, inbox_seen=0, rest=Rest()),
        store.commit(grant, "c", [note("x")]),
        store.find("none", "c"),
        store.admit("none", Admission("r", note("x"))),
        records(store, "none"),
        store.bind(Binding("none", "/w", 1, 1)),
        store.create(header("child"), parent=Cut("none", 1)),
    ):
        await refused(UsageError, request)
    assert await store.rows() == []


@check
async def the_epoch_rises_by_compare_and_set(store: LogStore, clock: Clock) -> None:
    await store.create(header("s"))
    grant, raised = await store.acquire("s", OWNER, expected=0, engine_token=7)
    assert (grant.session, grant.epoch, grant.owner) == ("s", 1, OWNER)
    assert raised == (await records(store))[-1]
    assert (raised.seq, raised.epoch, raised.body) == (3, 1, EpochRaised(OWNER, 7))
    await refused(StaleEpochError, store.acquire("s", OTHER, expected=0))
    over, raised = await store.acquire("s", OTHER, expected=1, at_least=10)
    assert (over.epoch, raised.epoch) == (10, 10)
    row = await store.row("s")
    assert (row.epoch, row.held_by) == (10, OTHER)
    assert (await store.renew(over)).epoch == 10
    await refused(StaleEpochError, store.renew(grant))


@check
async def of_many_who_acquire_at_once_one_wins(store: LogStore, clock: Clock) -> None:
    await store.create(header("s"))
    outcomes = await asyncio.gather(*(store.acquire("s", OWNER, expected=0) for _ in range(8)), return_exceptions=True)
    assert sum(isinstance(outcome, tuple) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, StaleEpochError) for outcome in outcomes) == 7


# ---- commits ---------------------------------------------------------------------------------------------------------------


@check
async def a_commit_appends_in_order(store: LogStore, clock: Clock) -> None:
    grant = await session(store)
    clock.now += 5
    committed = await store.commit(grant, "c", [note("a"), Draft(NoteAdded("b"), "main", -1, "trace")])
    assert (committed.id, committed.first, committed.last, committed.at, committed.epoch) == ("c", 4, 5, clock.now, 1)
    first, second = await records(store, after=3)
    assert (first.seq, first.at, first.epoch, first.commit, first.body) == (4, clock.now, 1, "c", NoteAdded("a"))
    assert (second.seq, second.thread, second.cause, second.trace) == (5, "main", 4, "trace")
    row = await store.row("s")
    assert (row.last_seq, row.changed_at) == (5, clock.now)


@check
async def the_same_commit_id_is_the_same_commit(store: LogStore, clock: Clock) -> None:
    grant = await session(store)
    assert await store.find("s", "c") is None
    committed = await store.commit(grant, "c", [note("a")])
    assert await store.commit(grant, "c", [note("b"), note("c")]) == committed
    await store.acquire("s", OTHER, expected=1)
    assert await store.commit(grant, "c", [note("b")]) == committed
    assert await store.find("s", "c") == committed
    assert await notes(store) == ["a"]


@check
async def an_old_epoch_commits_nothing(store: LogStore, clock: Clock) -> None:
    old = await session(store)
    new, _ = await store.acquire("s", OTHER, expected=1)
    await refused(StaleEpochError, store.commit(old, "c", [note("a")]))
    await refused(StaleEpochError, store.release(old, inbox_seen=99, rest=Rest()))
    await store.commit(new, "d", [note("b")])
    assert await notes(store) == ["b"]
    assert await store.find("s", "c") is None
    assert (await store.row("s")).held_by == OTHER


@check
async def a_decision_that_missed_something_is_not_stored(store: LogStore, clock: Clock) -> None:
    grant = await session(store)
    receipt = await store.admit("s", Admission("r", note("steer")))
    await refused(ConflictError, store.commit(grant, "c", [note("decided")], inbox_seen=receipt.seq - 1))
    assert await notes(store) == ["steer"]
    await store.commit(grant, "f", [note("fact")])
    await store.commit(grant, "c", [note("decided")], inbox_seen=receipt.seq)
    assert await notes(store) == ["steer", "fact", "decided"]


@check
async def a_commit_can_say_how_the_session_rests(store: LogStore, clock: Clock) -> None:
    grant = await session(store)
    rest = Rest("waiting", "retry", due_at=clock.now + 9, busy=True)
    await store.commit(grant, "c", [note("a")], rest=rest)
    await store.commit(grant, "d", [note("b")])
    assert (await store.row("s")).rest == rest


@check
async def sessions_do_not_hinder_each_other(store: LogStore, clock: Clock) -> None:
    grants = [await session(store, f"s{i}") for i in range(5)]
    await asyncio.gather(*(store.commit(grant, f"c{n}", [note(f"{n}")]) for n in range(20) for grant in grants))
    for grant in grants:
        assert await notes(store, grant.session) == [str(n) for n in range(20)]


@check
async def a_long_log_reads_from_anywhere(store: LogStore, clock: Clock) -> None:
    grant = await session(store)
    await store.commit(grant, "c", [note(str(n)) for n in range(1000)])
    assert [stored.seq for stored in await records(store)] == list(range(1, 1004))
    assert [stored.seq for stored in await records(store, after=900)] == list(range(901, 1004))
    assert await records(store, after=1003) == []


# ---- the inbox -------------------------------------------------------------------------------------------------------------


@check
async def a_request_is_admitted_once(store: LogStore, clock: Clock) -> None:
    await store.create(header("s"))
    receipt = await store.admit("s", Admission("r", note("hello")))
    assert receipt == Receipt(3, clock.now)
    clock.now += 5
    again = await store.admit("s", Admission("r", Draft(NoteAdded("hello"), trace="another attempt")))
    assert again == Receipt(3, receipt.at, duplicate=True)
    await refused(UsageError, store.admit("s", Admission("r", note("something else"))))
    assert await notes(store) == ["hello"]
    (stored,) = await records(store, after=2)
    assert (stored.seq, stored.epoch) == (3, 0)
    row = await store.row("s")
    assert (row.inbox_seq, row.last_seq, row.needs_driver, row.rest.busy) == (3, 3, True, True)


@check
async def an_observation_wakes_nobody(store: LogStore, clock: Clock) -> None:
    await store.create(header("s"))
    await store.admit("s", Admission("r", note("seen"), needs_driver=False, busy=False))
    row = await store.row("s")
    assert (row.inbox_seq, row.needs_driver, row.rest.busy) == (3, False, False)
    assert await store.due(clock.now) == []


@check
async def a_busy_session_rejects_who_asked_to_be_rejected(store: LogStore, clock: Clock) -> None:
    await store.create(header("s"))
    first = Admission("a", note("a"), reject_if_busy=True)
    await store.admit("s", first)
    await refused(SessionBusyError, store.admit("s", Admission("b", note("b"), reject_if_busy=True)))
    assert (await store.admit("s", first)).duplicate
    await store.admit("s", Admission("c", note("c")))
    assert await notes(store) == ["a", "c"]


# ---- rest, release, due ----------------------------------------------------------------------------------------------------


@check
async def a_session_is_not_released_with_work_waiting(store: LogStore, clock: Clock) -> None:
    grant = await session(store)
    receipt = await store.admit("s", Admission("r", note("work")))
    await refused(ConflictError, store.release(grant, inbox_seen=receipt.seq - 1, rest=Rest()))
    assert (await store.row("s")).held_by == OWNER
    rest = Rest("settled")
    await store.release(grant, inbox_seen=receipt.seq, rest=rest)
    row = await store.row("s")
    assert (row.held_by, row.needs_driver, row.rest, row.epoch) == (None, False, rest, 1)
    await refused(StaleEpochError, store.commit(grant, "c", [note("too late")]))
    await refused(StaleEpochError, store.renew(grant))


@check
async def due_says_who_wants_a_driver_and_why(store: LogStore, clock: Clock) -> None:
    for name in ("held", "inbox", "timer", "settled"):
        grant = await session(store, name)
        if name != "held":
            await store.release(grant, inbox_seen=0, rest=Rest("waiting", "retry", clock.now + 9) if name == "timer" else Rest())
    await store.admit("inbox", Admission("r", note("work")))
    held, inbox = Due("held", "held", 1, OWNER), Due("inbox", "inbox", 1, None)
    assert sorted(await store.due(clock.now), key=lambda due: due.session) == [held, inbox]
    assert sorted(await store.due(clock.now + 9), key=lambda due: due.session) == [held, inbox, Due("timer", "timer", 1, None)]


@check
async def wait_returns_when_something_changes(store: LogStore, clock: Clock) -> None:
    grant = await session(store)
    mark = await store.wait(0, 0)
    while (settled := await store.wait(mark, 0.2)) != mark:
        mark = settled
    waiting = asyncio.create_task(store.wait(mark, 60))
    await asyncio.sleep(0)
    await store.commit(grant, "c", [note("a")])
    async with asyncio.timeout(10):
        assert await waiting != mark


# ---- forks -----------------------------------------------------------------------------------------------------------------


@check
async def a_fork_reads_its_parents_prefix(store: LogStore, clock: Clock) -> None:
    grant = await session(store, "a")
    await store.commit(grant, "c1", [note("1"), note("2")])
    await store.create(Header("b", "log-b", (note("b"),)), parent=Cut("a", 4))
    await store.commit(grant, "c2", [note("3")])
    await store.create(Header("c", "log-c", (note("c"),)), parent=Cut("b", 5))
    await store.create(Header("d", "log-d", (note("d"),)), parent=Cut("b", 2))
    assert await notes(store, "a") == ["1", "2", "3"]
    assert await notes(store, "b") == ["1", "b"]
    assert await notes(store, "c") == ["1", "b", "c"]
    assert await notes(store, "d") == ["d"]
    assert [stored.seq for stored in await records(store, "c", after=3)] == [4, 5, 6]
    assert (await records(store, "c"))[:4] == (await records(store, "a"))[:4]
    row = await store.row("c")
    assert (row.parent, row.last_seq, row.epoch) == (Cut("b", 5), 6, 0)
    driven, raised = await store.acquire("c", OWNER, expected=0)
    assert raised.seq == 7
    assert (await store.commit(driven, "c1", [note("own")])).first == 8


@check
async def a_fork_beyond_the_parents_end_is_refused(store: LogStore, clock: Clock) -> None:
    await store.create(header("a"))
    for cut in (Cut("a", 3), Cut("a", 0)):
        await refused(UsageError, store.create(header("b"), parent=cut))
    assert len(await store.rows()) == 1


# ---- chunks ----------------------------------------------------------------------------------------------------------------

SMALL, LARGE, TEXT = b"small", bytes(range(256)) * 4096, b"compressible " * 20_000


@check
async def chunks_come_back_as_they_were(store: LogStore, clock: Clock) -> None:
    data = {digest(each): each for each in (b"", SMALL, LARGE, TEXT, *(b"%d" % n * 70_000 for n in range(12)))}
    await store.blobs.put(data.items(), pin="p")
    await store.blobs.put(data.items(), pin="q")
    absent = digest(b"absent")
    assert await store.blobs.get([*data, absent]) == data
    assert await store.blobs.has([*data, absent]) == set(data)


@check
async def a_chunk_is_what_its_digest_says(store: LogStore, clock: Clock) -> None:
    grant = await session(store)
    await refused(UsageError, store.blobs.put([(digest(b"a"), b"b")], pin="p"))
    await refused(UsageError, store.commit(grant, "c", [note("a")], blobs={digest(b"a"): b"b"}))
    big = b"x" * (SMALL_CHUNK_BYTES + 1)
    await refused(UsageError, store.commit(grant, "c", [note("a")], blobs={digest(big): big}))
    assert await store.blobs.has([digest(b"a"), digest(big)]) == set()
    assert await notes(store) == []


@check
async def a_commit_names_only_what_is_stored(store: LogStore, clock: Clock) -> None:
    grant = await session(store)
    await store.blobs.put([(digest(LARGE), LARGE)], pin="c")
    names = {digest(SMALL), digest(LARGE), digest(TEXT)}
    gone = await refused(
        BlobGoneError, store.commit(grant, "c", [note("a")], blobs={digest(SMALL): SMALL}, names=names, rest=Rest("waiting"))
    )
    assert isinstance(gone, BlobGoneError) and gone.digests == (digest(TEXT),)
    assert await notes(store) == []
    assert (await store.row("s")).rest == Rest()
    assert await store.blobs.has([digest(SMALL)]) == set()
    await store.blobs.put([(digest(TEXT), TEXT)], pin="c")
    await store.commit(grant, "c", [note("a")], blobs={digest(SMALL): SMALL}, names=names)
    assert await store.blobs.get(names) == {digest(SMALL): SMALL, digest(LARGE): LARGE, digest(TEXT): TEXT}


def live(*chunks: bytes) -> Live:
    kept = {digest(chunk) for chunk in chunks}

    async def among(digests: Collection[str]) -> Set[str]:
        return kept & set(digests)

    return among


async def swept(store: LogStore, *chunks: bytes) -> Swept:
    """What a sweep took for which only these are live."""
    return await store.blobs.sweep(await store.blobs.begin_sweep(), live(*chunks))


@check
async def a_sweep_spares_what_is_live_or_pinned(store: LogStore, clock: Clock) -> None:
    kept, pinned, loose, small = LARGE, TEXT, LARGE[::-1], SMALL
    await store.blobs.put([(digest(each), each) for each in (kept, loose, small)], pin="short", ttl_s=10)
    await store.blobs.put([(digest(pinned), pinned)], pin="long", ttl_s=1000)
    assert await swept(store, kept) == Swept()
    clock.now += 20
    told = await store.blobs.sweep(0, live(kept), dry_run=True)
    everything = [digest(each) for each in (kept, pinned, loose, small)]
    assert await store.blobs.has(everything) == set(everything)
    assert await swept(store, kept) == told
    assert told.chunks == 2 and 0 < told.bytes <= len(loose) + len(small)
    assert await store.blobs.has(everything) == {digest(kept), digest(pinned)}
    await store.blobs.put([(digest(loose), loose)], pin="again")
    assert await store.blobs.get(everything) == {digest(kept): kept, digest(pinned): pinned, digest(loose): loose}


@check
async def a_sweep_that_began_before_a_commit_spares_what_it_named(store: LogStore, clock: Clock) -> None:
    """Also where the clock was set back meanwhile."""
    grant = await session(store)
    await store.blobs.put([(digest(LARGE), LARGE), (digest(TEXT), TEXT)], pin="c", ttl_s=5)
    clock.now += 10
    number = await store.blobs.begin_sweep()
    clock.now -= 7200
    await store.commit(grant, "c", [note("a")], names={digest(LARGE)}, blobs={digest(SMALL): SMALL})
    clock.now += 7300
    assert (await store.blobs.sweep(number, live())).chunks == 1
    assert await store.blobs.has([digest(LARGE), digest(TEXT), digest(SMALL)]) == {digest(LARGE), digest(SMALL)}


@check
async def many_names_are_checked_as_a_few_are(store: LogStore, clock: Clock) -> None:
    grant = await session(store)
    data = {digest(chunk): chunk for chunk in (b"%d" % n for n in range(1300))}
    await store.blobs.put(data.items(), pin="c")
    absent = digest(b"absent")
    gone = await refused(BlobGoneError, store.commit(grant, "c", [note("a")], names={*data, absent}))
    assert isinstance(gone, BlobGoneError) and gone.digests == (absent,)
    number = await store.blobs.begin_sweep()
    await store.commit(grant, "c", [note("a")], names=set(data))
    assert await store.blobs.sweep(number, live()) == Swept()
    assert (await swept(store)).chunks == 1300, "the commit let go of its pins"


@check
async def of_two_sweeps_the_older_one_stops(store: LogStore, clock: Clock) -> None:
    grant = await session(store)
    await store.blobs.put([(digest(LARGE), LARGE), (digest(TEXT), TEXT)], pin="c", ttl_s=5)
    older = await store.blobs.begin_sweep()
    await store.commit(grant, "c", [note("a")], names={digest(LARGE)})
    newer = await store.blobs.begin_sweep()
    clock.now += 10
    await refused(StoreLockedError, store.blobs.sweep(older, live()))
    assert (await store.blobs.sweep(newer, live(LARGE))).chunks == 1
    assert await store.blobs.has([digest(LARGE), digest(TEXT)]) == {digest(LARGE)}


# ---- removal ---------------------------------------------------------------------------------------------------------------


@check
async def a_removed_session_is_gone_and_its_name_free(store: LogStore, clock: Clock) -> None:
    grant, other = await session(store, "a"), await session(store, "b")
    await store.bind(Binding("a", "/w", 1, 1))
    await store.admit("a", Admission("r", note("work")))
    await refused(ConflictError, store.remove(grant, inbox_seen=3))
    await store.remove(grant, inbox_seen=4)
    assert [row.session for row in await store.rows()] == ["b"]
    assert [due.session for due in await store.due(clock.now)] == ["b"]
    await refused(UsageError, store.row("a"))
    await refused(UsageError, store.commit(grant, "late", [note("x")]))
    await store.bind(Binding("b", "/w", 1, 1))
    await store.purge()
    assert await store.purge() == 0
    new = await session(store, "a")
    assert await notes(store, "a") == [] and await store.binding("a") is None
    await store.commit(new, "c", [note("new")])
    await store.commit(other, "c", [note("kept")])
    assert (await notes(store, "a"), await notes(store, "b")) == (["new"], ["kept"])


@check
async def only_the_newest_driver_removes(store: LogStore, clock: Clock) -> None:
    grant = await session(store)
    await store.acquire("s", OTHER, expected=1)
    await refused(StaleEpochError, store.remove(grant, inbox_seen=9))
    assert [row.session for row in await store.rows()] == ["s"]


@check
async def a_fork_outlives_its_parent(store: LogStore, clock: Clock) -> None:
    grant = await session(store, "a")
    await store.commit(grant, "c1", [note("1"), note("2"), note("3")])
    await store.create(Header("b", "log-b", (note("b"),)), parent=Cut("a", 5))
    await store.create(Header("c", "log-c", (note("c"),)), parent=Cut("b", 6))
    await store.remove(grant, inbox_seen=9)
    await store.purge()
    await session(store, "a")
    assert (await store.row("b")).parent == Cut("a", 5)
    assert await notes(store, "b") == ["1", "2", "b"]
    middle, _ = await store.acquire("b", OWNER, expected=0)
    await store.remove(middle, inbox_seen=9)
    await store.purge()
    assert await notes(store, "c") == ["1", "2", "b", "c"]
    last, _ = await store.acquire("c", OWNER, expected=0)
    await store.remove(last, inbox_seen=9)
    await store.purge()
    assert [row.session for row in await store.rows()] == ["a"]
    assert await notes(store, "a") == []


# ---- roots -----------------------------------------------------------------------------------------------------------------


@check
async def a_busy_sessions_root_is_its_own(store: LogStore, clock: Clock) -> None:
    await session(store, "mine")
    await session(store, "other")
    root = Binding("mine", "/home/ada/project", 7, (1 << 63) + 5, ("/home/ada/.cargo", "/opt/x"))
    await store.bind(root)
    assert await store.binding("mine") == root
    assert await store.binding("other") is None
    await store.bind(Binding("other", "/home/ada/project", 7, (1 << 63) + 5))
    await store.admit("mine", Admission("r", note("work")))
    for directory, inode in (("/elsewhere", (1 << 63) + 5), ("/home/ada/project/src", 8), ("/home/ada", 9), ("/", 2)):
        error = await refused(RootRefusedError, store.bind(Binding("other", directory, 7, inode)))
        assert "session mine" in str(error) and "resume" in str(error) and "abandon" in str(error)
    free = Binding("other", "/home/ada/project-2", 7, 10)
    await store.bind(free)
    assert await store.binding("other") == free
    await store.bind(Binding("mine", "/home/ada/project/src", 7, 8))


@check
async def a_session_is_created_where_it_works_or_not_at_all(store: LogStore, clock: Clock) -> None:
    root = Binding("s", "/w", 1, 1)
    await store.create(header("s"), binding=root)
    assert await store.binding("s") == root
    await store.admit("s", Admission("r", note("work")))
    await refused(RootRefusedError, store.create(header("t"), binding=Binding("t", "/w/src", 1, 2)))
    assert [row.session for row in await store.rows()] == ["s"]


@check
async def two_sessions_are_not_busy_in_one_root(store: LogStore, clock: Clock) -> None:
    grants = {name: await session(store, name) for name in ("one", "two")}
    for name in grants:
        await store.bind(Binding(name, "/w", 1, 1))
    await store.admit("one", Admission("r", note("work")))
    await refused(RootRefusedError, store.admit("two", Admission("r", note("work"))))
    await store.admit("two", Admission("n", note("an observation"), busy=False))
    await store.release(grants["one"], inbox_seen=99, rest=Rest())
    await store.admit("two", Admission("r", note("work")))
    await refused(RootRefusedError, store.admit("one", Admission("r2", note("work"))))
