"""From a model's name to the model. What is missing — a key, a package, a script — is said here, before anything is started."""

from __future__ import annotations

import os

from perdure.model.scripted import Scripted
from perdure.model.stream import Model
from perdure.record.errors import UsageError

FORMS = (
    "scripted:FILE     answers from a JSON file",
    "openai:MODEL      OpenAI, or any server that speaks its chat completions, by --base-url or OPENAI_BASE_URL",
    "PROVIDER:MODEL    any other provider that pydantic-ai knows, such as anthropic, with its package installed",
)


def resolve(name: str, *, base_url: str | None = None) -> Model:
    """The model of that name. Raises UsageError, saying what to do, if there is none or if its key or package is missing.

    `base_url` goes with `openai:` only; a server there may need no key.
    """
    provider, _, model = name.partition(":")
    if not provider or not model:
        raise _unknown(name)
    if base_url and provider != "openai":
        raise UsageError(f"a base URL goes with openai:MODEL, not with {name}")
    if provider == "scripted":
        return Scripted(model)
    if provider == "openai":
        return _openai(name, model, base_url or os.environ.get("OPENAI_BASE_URL"))
    from perdure.model import providers

    if known := providers.known(name, provider):
        return known
    raise _unknown(name)


def _openai(name: str, model: str, base_url: str | None) -> Model:
    key = os.environ.get("OPENAI_API_KEY")
    if not key and not base_url:
        raise UsageError(f"{name} needs a key and OPENAI_API_KEY is not set: export it, or name another server by --base-url")
    from perdure.model import providers

    return providers.openai(name, model, key=key, base_url=base_url)


def _unknown(name: str) -> UsageError:
    return UsageError("\n  ".join((f"there is no model '{name}'; a model is named as", *FORMS)))
