"""`completion`: what a shell needs to complete commands, options and sessions."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")
ASKED_BY = "_PERDURE_COMPLETE"


@click.command
@click.argument("shell", type=click.Choice(SHELLS), required=False)
def completion(shell: str | None) -> None:
    """Print what completes commands and sessions in your shell.

    \b
    bash   eval "$(perdure completion bash)"        in ~/.bashrc
    zsh    eval "$(perdure completion zsh)"         in ~/.zshrc
    fish   perdure completion fish | source         in ~/.config/fish/config.fish
    """
    name = shell or Path(os.environ.get("SHELL", "bash")).name
    found = get_completion_class(name if name in SHELLS else "bash")
    assert found is not None
    group = click.get_current_context().find_root().command
    click.echo(found(group, {}, "perdure", ASKED_BY).source())
