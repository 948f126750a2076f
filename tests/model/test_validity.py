"""The check that the scripted model makes of every request finds what a provider would refuse."""

from __future__ import annotations

import pytest

from perdure.model.stream import AssistantMessage, Context, Message, ToolMessage, UserMessage
from perdure.model.validity import problem
from perdure.record.parts import Text, ToolCall

PROMPT = UserMessage((Text("go"),))


def asked(*ids: str) -> AssistantMessage:
    return AssistantMessage((Text("I look."), *(ToolCall(id, "bash", {}) for id in ids)))


def result(id: str) -> ToolMessage:
    return ToolMessage(id, "bash", "ok")


def said(text: str, *, interrupted: bool = False) -> AssistantMessage:
    return AssistantMessage((Text(text),), interrupted=interrupted)


@pytest.mark.parametrize(
    "messages",
    [
        (PROMPT,),
        (PROMPT, asked("a", "b"), result("b"), result("a")),
        (PROMPT, asked("a"), result("a"), said("done"), PROMPT),
        (PROMPT, asked("a"), result("a"), asked("a"), result("a")),  # an id may come back in a later turn
        (PROMPT, said("cut o", interrupted=True), PROMPT),
    ],
)
def test_what_providers_take(messages: tuple[Message, ...]) -> None:
    assert problem(Context("", messages)) is None


@pytest.mark.parametrize(
    ("messages", "found"),
    [
        ((), "no message"),
        ((PROMPT, asked("a")), "a have no result"),
        ((PROMPT, asked("a", "b"), result("a"), PROMPT), "before the results of b"),
        ((PROMPT, result("a")), "which is not open"),
        ((PROMPT, asked("a"), result("a"), result("a")), "which is not open"),
        ((PROMPT, asked("a", "a"), result("a"), result("a")), "twice"),
        ((PROMPT, AssistantMessage(()), PROMPT), "empty"),
        ((PROMPT, said("done")), "the model's own"),
        ((PROMPT, AssistantMessage((ToolCall("a", "bash", {}),), interrupted=True), result("a")), "more than text"),
    ],
)
def test_what_they_refuse(messages: tuple[Message, ...], found: str) -> None:
    assert found in (problem(Context("", messages)) or "")
