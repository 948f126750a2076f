"""Commands see the driver's environment without the keys of model providers."""

from __future__ import annotations

import asyncio

import pytest

from perdure.space.environment import command_environment
from tests.space.conftest import Place, run


@pytest.mark.parametrize(
    "name",
    [
        "OPENAI_API_KEY",
        "ANTHROPIC_API_KEY",
        "GEMINI_API_KEY",
        "AZURE_OPENAI_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "AWS_BEARER_TOKEN_BEDROCK",
    ],
)
def test_a_providers_key_is_kept_back(name: str) -> None:
    assert command_environment({name: "secret", "PATH": "/bin"}) == {"PATH": "/bin"}


@pytest.mark.parametrize("name", ["PATH", "HOME", "LANG", "GITHUB_TOKEN", "SSH_AUTH_SOCK", "KEYBOARD", "MY_KEY"])
def test_everything_else_is_as_on_the_machine(name: str) -> None:
    assert command_environment({name: "value"}) == {name: "value"}


def test_a_command_knows_its_key_and_a_driver_may_give_it_another(place: Place) -> None:
    async def main() -> None:
        space = await place.open()
        own = await run(space, "l:c:1", "echo $PERDURE_CALL_KEY")
        given = await run(space, "l:c:2", "echo $PERDURE_CALL_KEY", env={"PERDURE_CALL_KEY": "l:c"})
        assert [status.result and status.result.text for status in (own, given)] == ["l:c:1\n", "l:c\n"]

    asyncio.run(main())


def test_neither_the_command_nor_its_supervisor_knows_the_key(place: Place) -> None:
    async def main() -> None:
        space = await place.open(env={"PATH": "/usr/bin:/bin", "OPENAI_API_KEY": "sk-secret", "GREETING": "hello"})
        await run(space, "l:c:1", "echo $GREETING $CALL $PERDURE_CALL_KEY; cat /proc/1/environ; env", env={"CALL": "it"})
        output = b"".join([piece async for piece in space.output("l:c:1")])
        assert output.startswith(b"hello it l:c:1\n")
        if place.custody == "pidns":
            assert b"sk-secret" not in output

    asyncio.run(main())
