"""How long a request to a model may be, as far as that is known without asking anybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WINDOWS = (
    ("anthropic:claude", 200_000),
    ("openai:gpt-5", 272_000),
    ("openai-responses:gpt-5", 272_000),
    ("openai:gpt-4.1", 1_000_000),
    ("openai-responses:gpt-4.1", 1_000_000),
    ("google:gemini", 1_000_000),
)
"""By the beginning of a model's name, in tokens."""

DEFAULT_WINDOW = 128_000


def window_tokens(model: str, options: Mapping[str, Any]) -> int:
    """`context_tokens` of the session's model options, else what is known of the model."""
    given = options.get("context_tokens")
    if isinstance(given, int) and given > 0:
        return given
    return next((tokens for beginning, tokens in WINDOWS if model.startswith(beginning)), DEFAULT_WINDOW)
