"""The commands of a chat: lines that begin with a slash.

Each is a line in the table at the end. They speak of the session at hand, and do what the command of the same name does.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from perdure.cli.conversation import Conversation, Leave, Next
from perdure.cli.differing import shown_diff
from perdure.cli.status import ANSWERS, status_of
from perdure.history.line import plain
from perdure.history.paint import Paint
from perdure.history.prompts import Prompts
from perdure.history.spending import spent_lines
from perdure.record.errors import UsageError
from perdure.record.records import Seq

if TYPE_CHECKING:
    from perdure.api import Applied


class Command(Struct, frozen=True):
    usage: str
    meaning: str
    act: Callable[[Conversation, list[str]], Awaitable[Next]]


async def obey(conversation: Conversation, line: str) -> Next:
    """Carry the command out. UsageError for one that there is not; Leave for the one that ends the chat."""
    try:
        name, *words = shlex.split(line[1:])
    except ValueError as error:
        raise UsageError(f"{line}: {error}") from error
    command = COMMANDS.get(name)
    if command is None:
        raise UsageError(f"there is no command /{name}; /help lists them (a prompt that begins with / needs a space before it)")
    return await command.act(conversation, words)


async def _help(conversation: Conversation, words: list[str]) -> Next:
    width = max(len(command.usage) for command in COMMANDS.values())
    for command in COMMANDS.values():
        conversation.out.write(f"  {command.usage:<{width}}  {command.meaning}\n")
    conversation.out.write("  While it works, a line that you type steers it. A line that ends in \\ goes on in the next.\n")
    return None


async def _model(conversation: Conversation, words: list[str]) -> Next:
    if words:
        await conversation.session.use_model(words)
    session = (await conversation.session.state()).session
    conversation.say(f"the model is {session.model}{''.join(f', then {name}' for name in session.fallbacks)}")
    return None


async def _thinking(conversation: Conversation, words: list[str]) -> Next:
    if words:
        await conversation.session.use_thinking(words[0])
    options = (await conversation.session.state()).session.options
    conversation.say(f"thinking is {options.get('thinking', 'as the model has it')}")
    return None


async def _diff(conversation: Conversation, words: list[str]) -> Next:
    """Of the last prompt, or with `all` since the beginning."""
    first = None if words == ["all"] else await last_prompt(conversation)
    lines = await shown_diff(conversation.session, first, None, stat=words == ["stat"])
    if not lines:
        conversation.say("nothing was changed")
    paint = Paint(conversation.out)
    for line in lines or ():
        conversation.out.write(paint.text(line.style, line.text) + "\n")
    return None


async def _undo(conversation: Conversation, words: list[str]) -> Next:
    done = await conversation.session.undo()
    for line in told(done):
        conversation.out.write(f"  {line}\n")
    if not (done.paths or done.removed or done.conflicts):
        conversation.say("the last prompt changed nothing that is still there")
    return None


def told(done: Applied) -> Iterator[str]:
    """What became of each path."""
    for path in (*done.paths, *done.removed):
        yield f"{'gone again' if path in done.removed else 'as before'}  {plain(path)}"
    for conflict in done.conflicts:
        yield f"left alone  {plain(conflict.path)}: {plain(conflict.why)}"


async def _compact(conversation: Conversation, words: list[str]) -> Next:
    before = (await conversation.session.row()).last_seq
    return await conversation.settled(await conversation.session.compact(), before)


async def last_prompt(conversation: Conversation) -> Seq:
    """The record with which the work on the newest prompt began; 1 where there was none."""
    prompts = Prompts()
    begun = [stored.seq async for stored in conversation.session.records() if prompts.begins(stored)]
    return begun[-1] if begun else 1


async def _status(conversation: Conversation, words: list[str]) -> Next:
    session = conversation.session
    status = status_of(conversation.home.home.path, await session.row())
    waits = f", waits for {status.waiting_for}{f' ({status.detail})' if status.detail else ''}" if status.waiting_for else ""
    state = await session.state()
    conversation.say(f"session {session.id}: {status.status}{waits}; {state.session.model}; {await session.directory()}")
    for line in spent_lines(state.usage.models):
        conversation.say(line)
    return None


def _answer(answer: str) -> Callable[[Conversation, list[str]], Awaitable[Next]]:
    async def act(conversation: Conversation, words: list[str]) -> Next:
        status, wait = status_of(conversation.home.home.path, await conversation.session.row()), ANSWERS[answer]
        if status.waiting_for != wait:
            raise UsageError(f"the session does not wait for {wait}, which /{answer} answers")
        await conversation.session.answer(wait, answer)
        return await conversation.drive()

    return act


async def _resume(conversation: Conversation, words: list[str]) -> Next:
    return await conversation.drive()


async def _quit(conversation: Conversation, words: list[str]) -> Next:
    raise Leave


COMMANDS = {
    "help": Command("/help", "these commands", _help),
    "model": Command(
        "/model [MODEL…]", "the model that answers from the next turn on, and those to ask where it gives nothing", _model
    ),
    "thinking": Command("/thinking [LEVEL]", "how much it thinks: off, low, medium or high", _thinking),
    "diff": Command("/diff [stat|all]", "what the last prompt changed in the files; all: what the session did", _diff),
    "undo": Command("/undo", "take back what the last prompt changed in the files", _undo),
    "compact": Command("/compact", "sum the conversation up, so that the model is sent less", _compact),
    "status": Command("/status", "what the session does or waits for, and what it took", _status),
    "resume": Command("/resume", "go on with what it waits for or was left undone", _resume),
    "keep": Command("/keep", "keep files that changed after a crash", _answer("keep")),
    "restore": Command("/restore", "put them back as before the call", _answer("restore")),
    "accept": Command("/accept", "go on although processes may still run", _answer("accept")),
    "quit": Command("/quit", "leave; so does Ctrl-D", _quit),
}
