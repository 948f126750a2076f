"""What is asked for most must cost least: help and `ls` load nothing that drives a session."""

from __future__ import annotations

import subprocess
import sys

import click
import pytest

from perdure.cli.main import COMMANDS, group
from tests.cli.desk import Desk

HEAVY = ("pydantic_ai", "pydantic", "uvicorn", "starlette", "httpx", "perdure.model.providers")


def loaded_by(desk: Desk, *arguments: str) -> set[str]:
    program = (
        "import sys\nfrom perdure.cli.main import main\ntry:\n    main()\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=desk.environment, capture_output=True, text=True, timeout=30, check=True
    )
    return set(done.stderr.split())


def test_help_loads_neither_the_store_nor_an_event_loop(desk: Desk) -> None:
    loaded = loaded_by(desk, "--help")
    assert not loaded & {*HEAVY, "asyncio", "apsw", "msgspec", "perdure.api"}


def test_ls_loads_no_model_and_no_server(desk: Desk) -> None:
    assert not loaded_by(desk, "ls") & set(HEAVY)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_where_the_table_says_and_called_what_it_says(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    assert command is not None and command.name == name
    assert command.help is not None
    assert " ".join(command.help.split("\n\n")[0].split()) == COMMANDS[name].help
