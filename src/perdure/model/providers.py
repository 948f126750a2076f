"""Real models, through pydantic-ai's direct API: it knows the providers, we keep the loop, the log and the retries.

Importing this module loads pydantic-ai; `catalog` does so only for a session that asks a real model. Vendors' clients are told not to retry:
each attempt is a record of ours.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, cast

from msgspec import Struct
from pydantic_ai import messages as pai
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import UserError
from pydantic_ai.models import Model as Adapter
from pydantic_ai.models import ModelRequestParameters, infer_model
from pydantic_ai.providers import infer_provider_class
from pydantic_ai.settings import ModelSettings

from perdure.model.deadline import within
from perdure.model.failures import meaning
from perdure.model.messages import delta_of, final_of, mark_former_end, messages_of, parameters_of
from perdure.model.stream import Context, Delta, Final, Refused, Request, Retryable
from perdure.record.errors import UsageError

_OURS = frozenset({"attempt", "cache_key", "thinking", "context_tokens", "compaction"})
"""Options that are the driver's words, not pydantic-ai's settings."""


AdapterFor = Callable[[Sequence[pai.ModelMessage]], Adapter]
"""The adapter by which a conversation is sent."""


class _Payload(Struct, frozen=True):
    adapter: Adapter
    messages: list[pai.ModelMessage]
    parameters: ModelRequestParameters
    settings: ModelSettings


class ProviderModel:
    """The model `name`, asked through pydantic-ai's adapters.

    `context.options` are pydantic-ai's model settings (`max_tokens`, `temperature`, …), `thinking` as in `catalog.THINKING`, and `cache_key`, the
    same for all requests that begin alike. The provider's ways:

    * `key` says what authorises requests and `server` where they go, if that was chosen; both for messages to people. A chosen server's prices
      are not known.
    * `cache` asks for cache marks where a provider needs them, `cache_key_setting` names where it wants the key; `looks_back`: it finds a former
      request only where that one's end is marked too.
    * `may_think` says whether this conversation can be gone on with by thinking.
    * `attempt` is entered around each request, and leaves nothing of it open. `settings` are always the same.
    """

    def __init__(
        self,
        name: str,
        adapter_for: AdapterFor,
        *,
        key: str,
        server: str | None = None,
        cache: bool = True,
        cache_key_setting: str | None = None,
        looks_back: bool = False,
        attempt: Callable[[], AbstractAsyncContextManager[None]] = nullcontext,
        may_think: Callable[[Sequence[pai.ModelMessage]], bool] = lambda _: True,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = name
        self._adapter_for = adapter_for
        self._key = key
        self._label = f"{name} at {server}" if server else name
        self._priced = server is None
        self._settings = {"cache": cache, **(settings or {})}
        self._cache_key_setting = cache_key_setting
        self._looks_back = looks_back
        self._attempt = attempt
        self._may_think = may_think

    def prepare(self, context: Context) -> Request:
        messages = messages_of(context, self.name)
        if self._looks_back:
            mark_former_end(messages)
        settings = self._settings_for(context.options)
        if settings.get("thinking") and not self._may_think(messages):
            settings["thinking"] = False
        return Request(context, _Payload(self._adapter_for(messages), messages, parameters_of(context.tools), settings))

    def _settings_for(self, options: Mapping[str, Any]) -> ModelSettings:
        settings = {**self._settings, **{name: value for name, value in options.items() if name not in _OURS}}
        if (thinking := options.get("thinking")) is not None:
            settings["thinking"] = False if thinking == "off" else thinking
        if self._cache_key_setting and (cache_key := options.get("cache_key")):
            settings[self._cache_key_setting] = cache_key
        return cast(ModelSettings, settings)

    def stream(self, request: Request, deadline_s: float) -> AbstractAsyncContextManager[AsyncIterator[Delta | Final]]:
        return within(deadline_s, self._events(request.payload))

    async def _events(self, payload: _Payload) -> AsyncGenerator[Delta | Final]:
        begun = False
        try:
            async with (
                self._attempt(),
                model_request_stream(
                    payload.adapter,
                    payload.messages,
                    model_settings=payload.settings,
                    model_request_parameters=payload.parameters,
                ) as stream,
            ):
                begun = True
                async for event in stream:
                    if delta := delta_of(event):
                        yield delta
                response = stream.get()
        except Exception as error:
            raise meaning(error, self._label, self._key, begun=begun) from error
        yield self._final(response)

    def _final(self, response: pai.ModelResponse) -> Final:
        if response.finish_reason in (None, "error"):
            raise Retryable(f"{self._label}: the answer was cut: it ended without a reason to stop")
        final = final_of(response, priced=self._priced)
        if final.stop == "refused" and not final.parts:
            raise Refused(
                f"{self._label} refused to answer: {(response.provider_details or {}).get('refusal', 'content filter')}"
            )
        return final


def known(name: str, provider: str) -> ProviderModel | None:
    """Any other model of a provider that pydantic-ai knows, else None. Raises UsageError for a missing key or package."""
    try:
        infer_provider_class(provider)
    except ValueError:
        return None
    except ImportError as error:
        raise package_missing(name, provider, error) from error
    try:
        adapter = infer_model(name)
    except UserError as error:
        raise _unusable(name, error) from error
    client: Any = getattr(adapter, "client", None)
    if hasattr(client, "max_retries"):
        client.max_retries = 0
    return ProviderModel(name, lambda _: adapter, key=f"the key of {provider}")


def _unusable(name: str, error: UserError) -> UsageError:
    """pydantic-ai's words speak to who writes Python; of a missing key only its name is for everybody."""
    if key := re.search(r"`([A-Z0-9_]+_(?:KEY|TOKEN))`", error.message):
        return UsageError(f"{name} needs a key and {key[1]} is not set: export it")
    return UsageError(f"{name} can't be used: {error.message}")


def package_missing(name: str, provider: str, error: ImportError) -> UsageError:
    package = f"perdure[{provider}]" if provider in ("openai", "anthropic", "google") else f"pydantic-ai-slim[{provider}]"
    which = f" ({error.name})" if error.name else ""  # without a name it is pydantic-ai's own advice
    return UsageError(f"{name} needs a package that is not installed{which}: pip install '{package}'")
