"""What commands see of the driver's environment.

A provider's key is the driver's alone: a command that prints its environment would write it into the log, and a hostile one would take it. By its name an
API key of one provider can't be told from that of another service, so none is handed on; everything else stays, since a `host` Space is the
machine as it is. A command that needs such a key is given it by name (`Exec.env`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECRET = re.compile(
    r"(?:\w+_)?API_(?:KEY|TOKEN)S?|(?:ANTHROPIC|CLAUDE|OPENAI|AZURE)_\w*(?:KEY|TOKEN|SECRET)|HF_TOKEN|AWS_BEARER_TOKEN_BEDROCK",
    re.IGNORECASE,
)


def command_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for commands and for the supervisor, without what names itself an API key or a model provider's token."""
    return {name: value for name, value in environ.items() if not _SECRET.fullmatch(name)}
