"""`completion`: what a shell needs to complete commands, options and sessions; and the sessions that it then asks for."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

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


def sessions(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The home's sessions that begin so, with what each is doing. None where there is no home yet."""
    from perdure.engine.places import home_path

    home = context.find_root().params.get("home")
    if home is not None:
        os.environ["PERDURE_HOME"] = str(Path(home).expanduser().absolute())
    if not (home_path() / "log.db").exists():
        return []
    return asyncio.run(_named(incomplete))


async def _named(incomplete: str) -> list[CompletionItem]:
    from perdure.cli.opening import opened_store

    async with await opened_store() as store:
        rows = sorted(await store.rows(), key=lambda row: row.changed_at, reverse=True)
    return [CompletionItem(row.session, help=row.rest.status) for row in rows if row.session.startswith(incomplete)]
