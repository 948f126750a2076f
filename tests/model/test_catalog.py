from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from perdure.model.catalog import model_names, resolve
from perdure.model.scripted import Scripted
from perdure.model.stream import Context, Model
from perdure.record.errors import UsageError


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    providers = ("OPENAI", "ANTHROPIC", "DEEPSEEK", "GOOGLE", "GEMINI", "GOOGLE_GEMINI")
    for name in (f"{provider}_{what}" for provider in providers for what in ("API_KEY", "BASE_URL")):
        monkeypatch.delenv(name, raising=False)


def client_of(model: Model) -> Any:
    """The vendor's client that a request would go through."""
    return model.prepare(Context("", ())).payload.adapter.client


def test_importing_the_model_layer_loads_no_provider() -> None:
    program = "import sys, perdure.model, perdure.model.catalog; print(*sys.modules, sep='\\n')"
    loaded = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    ).stdout.split()
    assert "perdure.model.catalog" in loaded
    assert not {
        m
        for m in loaded
        if m.partition(".")[0] in ("pydantic_ai", "pydantic", "openai", "anthropic", "google", "httpx", "httpx2", "genai_prices")
    }


def test_a_script_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"turns": []}')
    model = resolve(f"scripted:{tmp_path}/a.json")
    assert isinstance(model, Scripted)
    assert model.name == f"scripted:{tmp_path}/a.json"


@pytest.mark.parametrize("name", ["", "gpt", "openai:", ":gpt", "nobody:knows"])
def test_a_name_that_is_none_is_answered_with_the_forms(name: str) -> None:
    with pytest.raises(UsageError) as refusal:
        resolve(name)
    for form in ("scripted:FILE", "anthropic:MODEL", "openai:MODEL", "google:MODEL", "PROVIDER:MODEL"):
        assert form in str(refusal.value)


def test_a_missing_key_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="OPENAI_API_KEY is not set: export it"):
        resolve("openai:gpt-5")
    with pytest.raises(UsageError, match="ANTHROPIC_API_KEY is not set: export it"):
        resolve("anthropic:claude-sonnet-4-5")
    with pytest.raises(UsageError, match=r"GOOGLE_API_KEY is not set \(or GEMINI_API_KEY\): export it"):
        resolve("google:gemini-3-pro-preview")
    with pytest.raises(UsageError, match="DEEPSEEK_API_KEY is not set: export it"):
        resolve("deepseek:deepseek-chat")


def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve("openai:llama", base_url="http://127.0.0.1:1/v1").name == "openai:llama"
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:2/v1")
    assert str(client_of(resolve("openai:llama")).base_url) == "http://127.0.0.1:2/v1/"


@pytest.mark.parametrize(
    ("name", "variable", "path"),
    [("anthropic:claude", "ANTHROPIC_BASE_URL", "/"), ("openai-responses:gpt", "OPENAI_BASE_URL", "/v1/")],
)
def test_the_address_is_the_options_or_the_environments(
    monkeypatch: pytest.MonkeyPatch, name: str, variable: str, path: str
) -> None:
    monkeypatch.setenv(variable, f"http://127.0.0.1:2{path}")
    assert str(client_of(resolve(name)).base_url) == f"http://127.0.0.1:2{path}"
    assert str(client_of(resolve(name, base_url="http://127.0.0.1:1/x")).base_url) == "http://127.0.0.1:1/x/"


def test_a_base_url_goes_with_those_that_take_one(tmp_path: Path) -> None:
    for name in (f"scripted:{tmp_path}/a.json", "groq:llama"):
        with pytest.raises(UsageError, match="goes with anthropic:MODEL, openai:MODEL"):
            resolve(name, base_url="http://127.0.0.1:1")


def test_no_vendors_client_retries_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for provider in ("OPENAI", "DEEPSEEK", "ANTHROPIC"):
        monkeypatch.setenv(f"{provider}_API_KEY", "sk-test")
    for name in ("openai:gpt-5", "deepseek:deepseek-chat", "openai-responses:gpt-5", "anthropic:claude-sonnet-4-5"):
        model = resolve(name)
        assert (model.name, client_of(model).max_retries) == (name, 0)


def test_openai_is_told_which_requests_begin_alike_and_a_server_of_ones_own_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    asked = Context("", (), options={"cache_key": "of this session", "attempt": 2, "thinking": "low"})
    for name in ("openai:gpt-5", "openai-responses:gpt-5"):
        settings = resolve(name).prepare(asked).payload.settings
        assert (settings["openai_prompt_cache_key"], settings["cache"], settings["thinking"]) == ("of this session", True, "low")
        assert "attempt" not in settings
        assert "openai_prompt_cache_key" not in resolve(name, base_url="http://127.0.0.1:1").prepare(asked).payload.settings


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("openai:a", ("openai:a",)),
        ("openai:a,anthropic:b, google:c", ("openai:a", "anthropic:b", "google:c")),
        (("openai:a", "openai:b"), ("openai:a", "openai:b")),
        ("scripted:/tmp/one,two.json", ("scripted:/tmp/one,two.json",)),
    ],
)
def test_a_list_of_models_is_parted_before_a_provider(given: Any, names: tuple[str, ...]) -> None:
    assert model_names(given) == names


def test_a_model_is_named_once() -> None:
    with pytest.raises(UsageError, match="openai:a is named twice"):
        model_names("openai:a,openai:b,openai:a")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test")
    for module in ("anthropic", "groq"):
        monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.delitem(sys.modules, f"pydantic_ai.providers.{module}", raising=False)
    with pytest.raises(UsageError, match=r"pip install 'perdure\[anthropic\]'"):
        resolve("anthropic:claude-sonnet-4-5")
    with pytest.raises(UsageError, match=r"pip install 'pydantic-ai-slim\[groq\]'"):
        resolve("groq:llama")
