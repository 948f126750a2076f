"""The providers whose clients we make ourselves: no retries of their own, an address where one was given, a connection for each attempt.

A connection lasts for one attempt: a session that waits holds no socket, and the handshake is little beside an answer. A server that is not the
vendor's own may need no key, has no prices, and is asked for nothing that only the vendor knows.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

from pydantic_ai import messages as pai
from pydantic_ai.models import Model as Adapter

from perdure.model.providers import ProviderModel, package_missing

CLOSING = {"Connection": "close"}
NO_KEY = "none"
CONNECT_S = 20.0
SILENCE_S = 600.0
"""How long a provider may be silent within an attempt."""


def openai(name: str, model: str, *, key: str | None, key_name: str, base_url: str | None) -> ProviderModel:
    """`model` of OpenAI, or of a server that speaks its chat completions at `base_url`."""
    try:
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.profiles.openai import OpenAIModelProfile
        from pydantic_ai.providers.openai import OpenAIProvider

        client = _openai_client(key, base_url)
    except ImportError as error:
        raise package_missing(name, "openai", error) from error

    @cache
    def adapter(thinking_field: str | None) -> Adapter:
        profile = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
        if base_url:
            profile["supports_thinking"] = True  # nobody knows its models: what a person asks for is sent
        if thinking_field:
            profile["openai_chat_thinking_field"] = thinking_field
            profile["openai_chat_send_back_thinking_parts"] = "field"
        return OpenAIChatModel(model, provider=OpenAIProvider(openai_client=client), profile=profile)

    def adapter_for(messages: Sequence[pai.ModelMessage]) -> Adapter:
        return adapter(_thinking_field(messages))

    key_setting = None if base_url else "openai_prompt_cache_key"
    return ProviderModel(name, adapter_for, key=key_name, server=base_url, cache=not base_url, cache_key_setting=key_setting)


def openai_responses(name: str, model: str, *, key: str | None, key_name: str, base_url: str | None) -> ProviderModel:
    """`model` by OpenAI's Responses API. Nothing is stored there: reasoning comes back encrypted, and each request holds all."""
    try:
        from pydantic_ai.models.openai import OpenAIResponsesModel
        from pydantic_ai.providers.openai import OpenAIProvider

        client = _openai_client(key, base_url)
    except ImportError as error:
        raise package_missing(name, "openai", error) from error
    adapter = OpenAIResponsesModel(model, provider=OpenAIProvider(openai_client=client))
    key_setting = None if base_url else "openai_prompt_cache_key"
    settings = {"openai_store": False}
    return ProviderModel(name, lambda _: adapter, key=key_name, server=base_url, cache_key_setting=key_setting, settings=settings)


def anthropic(name: str, model: str, *, key: str | None, key_name: str, base_url: str | None) -> ProviderModel:
    """`model` of Anthropic, or of a server that speaks its messages API at `base_url`.

    Cache marks stand on the tools, the system text, the end of the request before and the conversation's end; the last one by itself at Anthropic, as
    a mark on the last block elsewhere. The provider looks for what it knows at most 20 blocks before a mark, and a turn may have more.
    """
    try:
        from anthropic import AsyncAnthropic
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.profiles.anthropic import AnthropicModelProfile
        from pydantic_ai.providers.anthropic import AnthropicProvider
    except ImportError as error:
        raise package_missing(name, "anthropic", error) from error
    client = AsyncAnthropic(base_url=base_url, api_key=key or NO_KEY, max_retries=0, default_headers=CLOSING)
    profile = AnthropicModelProfile(supports_auto_cache=False) if base_url else None
    adapter = AnthropicModel(model, provider=AnthropicProvider(anthropic_client=client), profile=profile)
    adaptive = adapter.profile.get("anthropic_supports_adaptive_thinking", False)
    return ProviderModel(
        name,
        lambda _: adapter,
        key=key_name,
        server=base_url,
        looks_back=True,
        may_think=lambda messages: adaptive or not _unsealed_round(messages),
    )


def _unsealed_round(messages: Sequence[pai.ModelMessage]) -> bool:
    """Whether the newest answer made calls and does not begin with thinking that this model sealed, as where another model gave it.

    A model that thinks by a budget refuses to think on from there (status 400); it can do so after the round.
    """
    newest = next((m for m in reversed(messages) if isinstance(m, pai.ModelResponse)), None)
    if newest is None or not any(isinstance(part, pai.ToolCallPart) for part in newest.parts):
        return False
    first = newest.parts[0]
    return not (isinstance(first, pai.ThinkingPart) and first.signature)


def google(name: str, model: str, *, key: str | None, key_name: str, base_url: str | None) -> ProviderModel:
    """`model` of the Gemini API, or of a server that speaks it at `base_url`. It finds equal beginnings by itself: there are no marks."""
    try:
        import httpx2
        from google.genai.types import HttpRetryOptions
        from pydantic_ai.models.google import GoogleModel
        from pydantic_ai.providers.google import GoogleProvider
    except ImportError as error:
        raise package_missing(name, "google", error) from error
    timeout = httpx2.Timeout(SILENCE_S, connect=CONNECT_S)
    client = httpx2.AsyncClient(headers=CLOSING, timeout=timeout, event_hooks={"response": [_keep]})
    provider = GoogleProvider(
        api_key=key or NO_KEY, base_url=base_url, http_client=client, retry_options=HttpRetryOptions(attempts=1)
    )
    adapter = GoogleModel(model, provider=provider)
    return ProviderModel(name, lambda _: adapter, key=key_name, server=base_url, attempt=_closing)


_kept: ContextVar[list[Any] | None] = ContextVar("the responses of an attempt", default=None)


async def _keep(response: Any) -> None:
    if (kept := _kept.get()) is not None:
        kept.append(response)


@asynccontextmanager
async def _closing() -> AsyncIterator[None]:
    """Google's client leaves a stream that is not read to its end to the garbage collector, and an answer that nobody hears is paid for."""
    kept: list[Any] = []
    _kept.set(kept)
    try:
        yield
    finally:
        for response in kept:
            await response.aclose()


def _openai_client(key: str | None, base_url: str | None) -> Any:
    from openai import AsyncOpenAI

    return AsyncOpenAI(base_url=base_url, api_key=key or NO_KEY, max_retries=0, default_headers=CLOSING)


def _thinking_field(messages: Sequence[pai.ModelMessage]) -> str | None:
    """Where the server put its first thinking, outside the standard; thinking goes back there.

    Left to find it out by itself, pydantic-ai adds the empty field to earlier messages and drops it again, and the prefix is not stable.
    """
    parts = (part for message in messages if isinstance(message, pai.ModelResponse) for part in message.parts)
    fields = (part.id for part in parts if isinstance(part, pai.ThinkingPart) and part.id and part.provider_name == "openai")
    return next((field for field in fields if field != "content"), None)
