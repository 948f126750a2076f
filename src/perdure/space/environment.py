"""What commands see of the driver's environment.

A provider's key is the driver's alone: a command that prints its environment would write it into the log, and a hostile one would take it. Everything
else stays, since a `host` Space promises the machine as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_SECRET = re.compile(
    r"""(
        .*_API_KEY | .*_API_KEYS | .*_API_TOKEN | API_KEY
      | (OPENAI|ANTHROPIC|CLAUDE|GEMINI|GOOGLE_AI|MISTRAL|GROQ|COHERE|CO|XAI|DEEPSEEK|OPENROUTER|TOGETHER|FIREWORKS|CEREBRAS|PERPLEXITY|AZURE_OPENAI|VERTEX
        |LOGFIRE|LANGSMITH|LANGFUSE) _ (.*_)? (KEY|TOKEN|SECRET|AUTH)
      | AWS_BEARER_TOKEN_BEDROCK | PERDURE_TOKEN
    )""",
    re.VERBOSE | re.IGNORECASE,
)


def command_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for commands and for the supervisor: all of it but names that hold a model provider's secret."""
    return {name: value for name, value in environ.items() if not _SECRET.fullmatch(name)}
