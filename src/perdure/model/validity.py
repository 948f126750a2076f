"""What every provider demands of a conversation, in one strict check: the scripted model makes it of each request, so every test and campaign does.

A real provider answers such a request with an error, again and again: the session would be lost to a call without a result.
"""

from __future__ import annotations

from perdure.model.stream import AssistantMessage, Context, ToolMessage, UserMessage
from perdure.record.parts import Text, ToolCall


def problem(context: Context) -> str | None:
    """What is wrong with the messages; None if nothing is."""
    if not context.messages:
        return "there is no message"
    waiting: list[str] = []
    for number, message in enumerate(context.messages, 1):
        if isinstance(message, ToolMessage):
            if message.provider_id not in waiting:
                return f"message {number} is a result of {message.provider_id}, which is not open"
            waiting.remove(message.provider_id)
            continue
        if waiting:
            return f"message {number} comes before the results of {', '.join(waiting)}"
        if not message.parts:
            return f"message {number} is empty"
        if isinstance(message, AssistantMessage):
            waiting = [part.id for part in message.parts if isinstance(part, ToolCall)]
            if len(set(waiting)) < len(waiting):
                return f"message {number} uses a call's id twice: {', '.join(waiting)}"
            if message.interrupted and not all(isinstance(part, Text) for part in message.parts):
                return f"message {number} was cut off and holds more than text"
    if waiting:
        return f"the calls {', '.join(waiting)} have no result"
    if not isinstance(context.messages[-1], UserMessage | ToolMessage):
        return "the last message is the model's own"
    return None
