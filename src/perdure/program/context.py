"""From a thread's transcript to what a model is sent.

The prefix is stable: the system text is fixed when a session begins, messages are only appended. So a provider's prompt cache keeps
its hits, and a request sent again after a crash is the same request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from perdure.model.stream import AssistantMessage, Context, Message, ToolMessage, ToolSpec, UserMessage
from perdure.record.parts import Blob, Digest, Text
from perdure.state.state import State
from perdure.state.threads import Answered, Entry, Returned, Said, Thread

SYSTEM = """You are a coding agent at work in a directory of someone's machine. Use the tools to look, change and check; \
run the project's own tests before you say that something works. Be brief.

Your work survives crashes: a call that was cut off is reported to you with what was taken back and what is uncertain. \
Check before you repeat anything that reaches outside of the working directory."""

GO_ON = "[perdure] Your answer was cut off here. Go on exactly where it stopped; do not repeat what you have already said."


def system_text(directory: str, instructions: str) -> str:
    """The stable prefix. `instructions` are the session's own and the workspace's AGENTS.md."""
    parts = [SYSTEM, f"Working directory: {directory}"]
    if instructions:
        parts.append(f"Instructions of this project:\n\n{instructions}")
    return "\n\n".join(parts)


def build(
    state: State,
    thread: str,
    *,
    system: str,
    tools: tuple[ToolSpec, ...],
    blobs: Mapping[Digest, bytes],
    options: dict[str, object],
) -> Context:
    t = state.threads[thread]
    return Context(system, tuple(_messages(t)), tools, options, t.responses, blobs)


def blobs_needed(thread: Thread) -> set[Digest]:
    """Digests of everything in the transcript that lives in the chunk store."""
    needed: set[Digest] = set()
    for entry in thread.entries:
        if isinstance(entry, Returned):
            if entry.blob:
                needed.add(entry.blob.digest)
        else:
            needed.update(p.digest for p in entry.parts if isinstance(p, Blob))
    return needed


def _messages(thread: Thread) -> Iterator[Message]:
    yield from _joined(thread.entries)
    if thread.turn and thread.turn.partial and not thread.turn.responded:
        yield AssistantMessage((Text(thread.turn.partial),), thread.turn.model, interrupted=True)
        yield UserMessage((Text(GO_ON),))


def _joined(entries: Sequence[Entry]) -> Iterator[Message]:
    """Inputs that follow each other become one user message: providers want turns to alternate."""
    said: list[Said] = []
    for entry in entries:
        if isinstance(entry, Said):
            said.append(entry)
            continue
        if said:
            yield _user(said)
            said = []
        yield _message(entry)
    if said:
        yield _user(said)


def _user(said: list[Said]) -> UserMessage:
    return UserMessage(tuple(part for s in said for part in s.parts))


def _message(entry: Answered | Returned) -> Message:
    if isinstance(entry, Answered):
        return AssistantMessage(entry.parts, entry.model, entry.extra, entry.interrupted)
    return ToolMessage(entry.provider_id, entry.tool, entry.text, entry.outcome == "ok", entry.blob)
