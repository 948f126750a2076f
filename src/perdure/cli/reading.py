"""`show` and `log`: the same records, for reading and for looking things up."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator

import click
from msgspec.structs import replace

from perdure.api import Session
from perdure.cli.opening import named, opened, session_argument
from perdure.cli.status import answers, status_of
from perdure.cli.telling import JsonTeller, Records, Teller, json_line
from perdure.drive.events import Recorded
from perdure.history.line import Line, plain, shorten
from perdure.history.paint import Paint
from perdure.history.spending import spent_lines
from perdure.record import records as r
from perdure.record.records import Seq, Stored
from perdure.space import content

WHOLE = 1_000_000_000
SHOWN_CHARS = 160


@click.command
@session_argument
@click.option("--full", is_flag=True, help="Whole outputs of the calls, not only their last lines.")
def show(session: str | None, directory: str | None, full: bool) -> None:
    """Show what was said and done, and what recovery did."""
    asyncio.run(_show(session, directory, full))


async def _show(name: str | None, directory: str | None, full: bool) -> None:
    async with opened() as home:
        session = await named(home, name, directory)
        paint, teller = Paint(sys.stdout), Teller(output_lines=WHOLE if full else 4)
        async for stored in _whole(session) if full else session.records():
            for line in teller.tell(stored):
                print(paint.line(line))
        for line in teller.open_calls():
            print(paint.line(line))
        for text in spent_lines((await session.state()).usage.models):
            print(paint.line(Line("session", text)))
        status = status_of(home.home.path, await session.row())
        if status.status == "waiting":
            said = f"{status.waiting_for} ({plain(status.detail)})" if status.detail else status.waiting_for
            print(paint.line(Line("session", f"waits for {said}: {answers(session.id, status.waiting_for)[0]}")))


async def _whole(session: Session) -> AsyncIterator[Stored]:
    """The records, results that are stored apart brought back into them."""
    async for stored in session.records():
        body = stored.body
        if isinstance(body, r.CallFinished) and (blob := body.result.output or body.result.blob) is not None:
            data = await content.load(blob.digest, blob.size_bytes, session.home.store.blobs.get)
            stored = replace(stored, body=replace(body, result=r.Result(data.decode(errors="replace"))))
        yield stored


@click.command
@session_argument
@click.option("--follow", "-f", is_flag=True, help="Wait for more, until Ctrl-C.")
@click.option("--after", type=click.IntRange(0), default=0, metavar="SEQ", help="Only records behind this one.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="A JSON object a record and line: seq, kind, at, epoch, …; of calls call, tool, outcome.",
)
def log(session: str | None, directory: str | None, follow: bool, after: int, as_json: bool) -> None:
    """Show a session's records."""
    asyncio.run(_log(session, directory, follow, after, as_json))


async def _log(name: str | None, directory: str | None, follow: bool, after: Seq, as_json: bool) -> None:
    async with opened() as home:
        session = await named(home, name, directory)
        if as_json:
            records = Records(session, sys.stdout, after)
            await (records.follow() if follow else records.catch_up())
            return
        paint, teller = Paint(sys.stdout), JsonTeller()
        async for event in session.observe(follow=follow):
            if isinstance(event, Recorded) and (line := _row(event.stored, teller)).seq > after:
                print(paint.text(line.style, line.text), flush=follow)


def _row(stored: Stored, teller: JsonTeller) -> Line:
    """Number, time, epoch, kind, and the start of what it says."""
    told = teller.tell(stored)
    said = {
        name: value for name, value in told.items() if name not in ("seq", "kind", "at", "epoch", "commit", "thread", "caused_by")
    }
    thread = f"[{stored.thread}] " if stored.thread not in (None, "main") else ""
    at = time.strftime("%H:%M:%S", time.localtime(stored.at)) + f".{int(stored.at % 1 * 1000):03}"
    text = f"{stored.seq:>5}  {at}  {stored.epoch:>3}  {told['kind']:<20} {thread}{shorten(json_line(said)[1:-1], SHOWN_CHARS)}"
    return Line("model", text, stored.at, stored.seq)
