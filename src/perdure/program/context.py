"""From a thread's transcript to what a model is sent.

The prefix is stable: the system text is fixed when a session begins, messages are only appended. So a provider's prompt cache keeps
its hits, and a request sent again after a crash is the same request.
It changes only when old results are cleared or a conversation is summed up, which the log says.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from perdure.model.stream import AssistantMessage, Context, Message, ToolMessage, ToolSpec, UserMessage
from perdure.record.parts import Blob, Digest, Text
from perdure.state.entries import Answered, Entry, Returned, Said, clearable, cleared_text
from perdure.state.threads import Thread

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


class Transcript:
    """A thread's messages, each made once: a transcript only grows, so a request at turn 1,000 costs no more than one at turn 10.

    `blobs` are the digests of everything in it that lives in the chunk store, and how many bytes each names.
    """

    def __init__(self) -> None:
        self.blobs: dict[Digest, int] = {}
        self._messages: list[Message] = []
        self._entries = 0
        self._shape = (0, 0)

    def context(
        self,
        thread: Thread,
        *,
        system: str,
        tools: tuple[ToolSpec, ...],
        blobs: Mapping[Digest, bytes],
        options: dict[str, object],
    ) -> Context:
        """What the thread's next request is made from; `read` it first. Always of the same thread."""
        return Context(system, (*self._messages, *_continuation(thread)), tools, options, thread.responses, blobs)

    def read(self, thread: Thread) -> bool:
        """Take in what is new; everything, and True, after a compaction or when results were cleared."""
        anew = self._shape != (thread.compactions, thread.cleared)
        if anew:
            self.blobs, self._messages = {}, []
            self._shape = (thread.compactions, thread.cleared)
            for entry in thread.entries[: thread.cleared]:
                self._add(_cleared(entry))
            self._entries = thread.cleared
        for entry in thread.entries[self._entries :]:
            self._add(entry)
        self._entries = len(thread.entries)
        return anew

    def _add(self, entry: Entry) -> None:
        if isinstance(entry, Returned):
            self.blobs.update({entry.blob.digest: entry.blob.size_bytes} if entry.blob else {})
            self._messages.append(ToolMessage(entry.provider_id, entry.tool, entry.text, entry.outcome == "ok", entry.blob))
            return
        self.blobs.update((part.digest, part.size_bytes) for part in entry.parts if isinstance(part, Blob))
        if isinstance(entry, Answered):
            self._messages.append(AssistantMessage(entry.parts, entry.model, entry.extra, entry.interrupted))
        else:
            self._say(entry)

    def _say(self, said: Said) -> None:
        """Inputs that follow each other become one user message: providers want turns to alternate."""
        last = self._messages[-1] if self._messages else None
        if isinstance(last, UserMessage):
            self._messages[-1] = UserMessage((*last.parts, *said.parts))
        else:
            self._messages.append(UserMessage(said.parts))


def _cleared(entry: Entry) -> Entry:
    if isinstance(entry, Returned) and clearable(entry):
        return replace(entry, text=cleared_text(entry), blob=None)
    return entry


def _continuation(thread: Thread) -> tuple[Message, ...]:
    if thread.turn is None or not thread.turn.partial or thread.turn.responded:
        return ()
    partial = AssistantMessage((Text(thread.turn.partial),), thread.turn.model, interrupted=True)
    return partial, UserMessage((Text(GO_ON),))
