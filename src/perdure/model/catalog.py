"""From a model's name to the model. What is missing — a key, a package, a script — is said here, before anything is started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from perdure.model.scripted import Scripted
from perdure.model.stream import Model
from perdure.record.errors import UsageError

FORMS = (
    "anthropic:MODEL          Claude, or any server that speaks its messages API, by --base-url or ANTHROPIC_BASE_URL",
    "openai:MODEL             OpenAI, or any server that speaks its chat completions, by --base-url or OPENAI_BASE_URL",
    "openai-responses:MODEL   OpenAI by its Responses API",
    "google:MODEL             Gemini",
    "PROVIDER:MODEL           any other provider that pydantic-ai knows, such as groq, with its package installed",
    "scripted:FILE            answers from a JSON file",
)

THINKING = ("off", "low", "medium", "high")
"""How much a model is to think before it answers; each provider's own scale is mapped to the nearest."""


class _Vendor(Struct, frozen=True):
    """`keys` and `url` are environment variables; the first key that is set counts. `make` is the function of `vendors`."""

    keys: tuple[str, ...]
    url: str
    make: str


_VENDORS = {
    "anthropic": _Vendor(("ANTHROPIC_API_KEY",), "ANTHROPIC_BASE_URL", "anthropic"),
    "openai": _Vendor(("OPENAI_API_KEY",), "OPENAI_BASE_URL", "openai"),
    "openai-responses": _Vendor(("OPENAI_API_KEY",), "OPENAI_BASE_URL", "openai_responses"),
    "google": _Vendor(("GOOGLE_API_KEY", "GEMINI_API_KEY"), "GOOGLE_GEMINI_BASE_URL", "google"),
}


def resolve(name: str, *, base_url: str | None = None) -> Model:
    """The model of that name. Raises UsageError, saying what to do, if there is none or if its key or package is missing.

    `base_url` goes with the providers that are listed by name in FORMS; a server there may need no key.
    """
    provider, _, model = name.partition(":")
    if not provider or not model:
        raise _unknown(name)
    if vendor := _VENDORS.get(provider):
        return _made(name, model, vendor, base_url or os.environ.get(vendor.url) or None)
    if base_url:
        raise UsageError(f"a base URL goes with {', '.join(f'{known}:MODEL' for known in _VENDORS)}, not with {name}")
    if provider == "scripted":
        return Scripted(model)
    from perdure.model import providers

    if known := providers.known(name, provider):
        return known
    raise _unknown(name)


def url_variable(name: str) -> str | None:
    """The environment variable that names the server of this model's provider."""
    vendor = _VENDORS.get(name.partition(":")[0])
    return vendor.url if vendor else None


def check_options(options: Mapping[str, Any]) -> None:
    """Raises UsageError for a session's model options that no model could be asked with."""
    if (thinking := options.get("thinking")) is not None and thinking not in THINKING:
        raise UsageError(f"a model can't think '{thinking}'; choose one of {', '.join(THINKING)}")


def model_names(given: str | Iterable[str]) -> tuple[str, ...]:
    """The models of a list, in the order in which they are to be asked: `A,B`, or several of them. UsageError for one that is named twice."""
    words = (given,) if isinstance(given, str) else tuple(given)
    # A comma parts two names only before a provider: a script's path may hold one.
    names = tuple(name.strip() for word in words for name in re.split(r",(?=\s*[a-z][a-z0-9-]*:)", word))
    if not names:
        raise _unknown("")
    for index, name in enumerate(names):
        if not name:
            raise _unknown(name)
        if name in names[:index]:
            raise UsageError(f"{name} is named twice in the list of models")
    return names


def _made(name: str, model: str, vendor: _Vendor, base_url: str | None) -> Model:
    key = next((value for variable in vendor.keys if (value := os.environ.get(variable))), None)
    if not key and not base_url:
        other = f" (or {', '.join(vendor.keys[1:])})" if vendor.keys[1:] else ""
        raise UsageError(
            f"{name} needs a key and {vendor.keys[0]} is not set{other}: export it, or name another server by --base-url"
        )
    from perdure.model import vendors

    made: Model = getattr(vendors, vendor.make)(name, model, key=key, key_name=vendor.keys[0], base_url=base_url)
    return made


def _unknown(name: str) -> UsageError:
    return UsageError("\n  ".join((f"there is no model '{name}'; a model is named as", *FORMS)))
