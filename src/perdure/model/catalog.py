"""From a model's name to the model. What is missing — a key, a package, a script — is said here, before anything is started."""

from __future__ import annotations

from perdure.model.scripted import Scripted
from perdure.model.stream import Model
from perdure.record.errors import UsageError

FORMS = (
    "scripted:FILE (answers from a JSON file)",
    "openai:MODEL (also any server of that kind, by --base-url or OPENAI_BASE_URL)",
    "PROVIDER:MODEL (any other provider that pydantic-ai knows and whose package is installed)",
)


def resolve(name: str, *, base_url: str | None = None) -> Model:
    """The model of that name. Raises UsageError saying what to do if there is none, or if its key or package is missing.

    `base_url` is the address of a server that speaks OpenAI's chat completions; it goes with `openai:` only.
    """
    provider, colon, model = name.partition(":")
    if not (provider and colon and model):
        raise UsageError(f"'{name}' is not a model's name; the forms are:\n" + "\n".join(f"  {form}" for form in FORMS))
    if provider == "scripted":
        return Scripted(model)
    raise UsageError(f"'{name}' is not a model's name; the forms are:\n" + "\n".join(f"  {form}" for form in FORMS))
