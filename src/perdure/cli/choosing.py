"""What a new session is made with: a command's options over what is configured for its directory."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

from perdure.config.settings import MODEL, Settings, settings
from perdure.model.catalog import FORMS
from perdure.record.errors import UsageError
from perdure.record.records import Budget


def configured(directory: str, home: Path) -> Settings:
    """What holds there. What a project's file may not set is told."""
    found = settings(directory, home, os.environ)
    _tell(found.warning)
    return found


@functools.cache
def _tell(warning: str) -> None:
    """Once."""
    if warning:
        print(f"perdure: {warning}", file=sys.stderr)


def session_arguments(
    held: Settings,
    *,
    model: str | tuple[str, ...] | None = None,
    base_url: str | None = None,
    thinking: str | None = None,
    space: str | None = None,
    network: bool | None = None,
    binds: tuple[str, ...] | None = None,
    custody: str | None = None,
    capture: str | None = None,
    copy: bool | None = None,
    max_turns: int | None = None,
    max_tokens: int | None = None,
    max_seconds: float | None = None,
    max_failures: int | None = None,
) -> dict[str, Any]:
    """For `home.session`. None was not given. A configured server is for the model beside it, never for another one; what is configured for
    sandboxes waits for one."""
    value = {name: each.value for name, each in held.held.items()}
    kind = space or value["space"]
    boxed = kind == "sandbox"
    named = model or held.model
    if not named:
        raise UsageError("\n  ".join((f"name a model with --model, in ${MODEL}, or as `model` in perdure.toml:", *FORMS)))
    url = base_url or (None if model else held.base_url)
    thinking = thinking or value["thinking"]
    chosen = {"base_url": url, "thinking": thinking, "context_tokens": value["context_tokens"]}
    options = {name: each for name, each in chosen.items() if each}
    budget = held.budget
    return {
        "model": named,
        "model_options": options or None,
        "space": kind,
        "network": (boxed and value["network"]) if network is None else network,
        "binds": binds or (value["bind"] if boxed else ()),
        "custody": custody or ("auto" if boxed else value["custody"]),
        "capture": capture or value["capture"],
        "copy": bool(copy),
        "turn_budget": Budget(
            max_turns or budget.turns,
            max_tokens or budget.tokens,
            max_seconds or budget.wall_s,
            max_failures or budget.failures,
        ),
    }
