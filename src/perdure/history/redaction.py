"""Secrets left out of what is kept or passed on: the words of a service or a detached driver, a crash file, a transcript to be shown to others.

Two kinds are known: the values of this process's own variables that name themselves secrets, and texts that have the shape of a provider's key. It is
a net with holes, not a proof: a password in a file's own format passes. The session's log itself keeps what happened, and is as private as the workspace.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "[redacted]"
SHORTEST_CHARS = 8
"""A shorter value is too likely to be a word of its own."""

_NAMED = re.compile(r"(?:^|_)(?:KEYS?|TOKENS?|SECRETS?|PASSWORD|PASSWD|CREDENTIALS?)(?:$|_)", re.IGNORECASE)

_SHAPES = (
    r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic and those who follow them
    r"AIza[A-Za-z0-9_-]{30,}",  # Google
    r"gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}",
    r"glpat-[A-Za-z0-9_-]{20,}",
    r"(?:AKIA|ASIA)[A-Z0-9]{16}",
    r"xox[abeprs]-[A-Za-z0-9-]{10,}",
    r"hf_[A-Za-z0-9]{30,}",
    r"npm_[A-Za-z0-9]{30,}|pypi-[A-Za-z0-9_-]{30,}",
    r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",  # a JSON web token
    r"(?<=://)[^\s/:@]+:[^\s/@]+(?=@)",  # a user and a password in a URL
    r"(?<=[Bb]earer )[A-Za-z0-9._~+/-]{16,}=*",
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
)


class Redaction:
    """For the secrets of one environment. Calling it gives the text without them."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        values = sorted(set(_secrets(environ)), key=len, reverse=True)
        self._pattern = re.compile("|".join([*map(re.escape, values), *_SHAPES]))

    def __call__(self, text: str) -> str:
        return self._pattern.sub(HIDDEN, text)


def _secrets(environ: Mapping[str, str]) -> Iterable[str]:
    for name, value in environ.items():
        if _NAMED.search(name) and len(value) >= SHORTEST_CHARS and not value.startswith("/"):  # a path names where it lies
            yield value
