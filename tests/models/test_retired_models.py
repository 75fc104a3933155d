"""Available and retired models: which are offered, and what a person reads about a retired one."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from models.replay import KEY, Answer, make_http_model, make_model_facts, open_provider_connections, prompt_of, provider
from models.settings_catalog import make_catalog

from retinue.config.models import ProviderQuirk
from retinue.domain.model import ModelFailed, ModelFailureKind, ModelRef
from retinue.models import prices
from retinue.models.error_classification import classify_failure, parse_error_body
from retinue.models.errors import ModelNotOffered
from retinue.models.provider_http import ProviderConnections
from retinue.models.providers import BUILT_IN_PROVIDERS, MODELS_KNOWN_ON, OFFERED_MODELS, find_family
from retinue.models.retired_models import RETIREMENTS, find_retirement

FIXTURES = Path(os.environ.get("RETINUE_FIXTURES") or Path(__file__).parents[3] / "shared" / "fixtures" / "providers")
OFFERS = [ModelRef(name, model) for name, models in OFFERED_MODELS.items() for model in models]
DEFAULTS = [ModelRef(name, each.default_model) for name, each in BUILT_IN_PROVIDERS.items() if each.default_model]


@pytest.fixture
async def link() -> AsyncIterator[ProviderConnections]:
    async with open_provider_connections() as link:
        yield link


# Offered models


@pytest.mark.parametrize(
    "ref", dict.fromkeys([*DEFAULTS, *OFFERS, *(each.replacement for each in RETIREMENTS.values())]), ids=str
)
def test_no_offered_default_or_replacement_model_is_retired(ref: ModelRef) -> None:
    retirement = find_retirement(ref)
    assert retirement is None or (
        retirement.retired_on > MODELS_KNOWN_ON and find_retirement(retirement.replacement) is None
    )
    assert find_family(ref.model) is not None, "its window and capabilities are known"
    assert prices.find_known_price(ref, MODELS_KNOWN_ON) is not None


@pytest.mark.parametrize("provider_name", OFFERED_MODELS)
def test_the_default_model_of_each_built_in_provider_is_among_its_offered_models(provider_name: str) -> None:
    assert BUILT_IN_PROVIDERS[provider_name].default_model in OFFERED_MODELS[provider_name]


ROOT = Path(__file__).parents[2]
GUIDE_REFERENCE = re.compile(rf"\b({'|'.join(OFFERED_MODELS)})/([a-z][\w.-]*\d[\w.-]*)")
VERIFIED_REFERENCE = re.compile(r'ModelRef\("(\w+)", "([^"]+)"\)')


def test_the_guides_and_verify_providers_name_no_retired_or_unknown_models() -> None:
    guides = [
        found for page in (ROOT / "docs" / "guides").glob("*.md") for found in GUIDE_REFERENCE.findall(page.read_text())
    ]
    verified = VERIFIED_REFERENCE.findall((ROOT / "scripts" / "verify_providers.py").read_text())
    assert len(guides) > 5 and len(verified) == 4
    for ref in (ModelRef(*found) for found in [*guides, *verified]):
        retirement = find_retirement(ref)
        assert retirement is None or retirement.retired_on > MODELS_KNOWN_ON, ref
        assert prices.find_known_price(ref, MODELS_KNOWN_ON) is not None, ref


COMMON_EFFORTS = ("low", "medium", "high", "xhigh")


@pytest.mark.parametrize(
    ("model", "window_tokens", "efforts", "quirks"),
    [
        ("claude-opus-5-5", 1_000_000, COMMON_EFFORTS, {ProviderQuirk.ADAPTIVE}),
        ("claude-sonnet-5-5", 1_000_000, COMMON_EFFORTS, {ProviderQuirk.ADAPTIVE}),
        ("claude-haiku-5-5", 1_000_000, ("none", *COMMON_EFFORTS), {ProviderQuirk.ADAPTIVE}),
        ("claude-opus-5", 1_000_000, ("none", *COMMON_EFFORTS), {ProviderQuirk.ADAPTIVE}),
        ("claude-fable-5-1", 1_000_000, COMMON_EFFORTS, {ProviderQuirk.ADAPTIVE}),
        ("claude-opus-4-5", 200_000, ("none", *COMMON_EFFORTS), set[ProviderQuirk]()),
        ("gpt-6.1-sol", 1_000_000, COMMON_EFFORTS, set[ProviderQuirk]()),
        ("gpt-6-astra", 1_000_000, COMMON_EFFORTS, set[ProviderQuirk]()),
        ("gpt-6.1-terra", 1_000_000, ("none", *COMMON_EFFORTS), set[ProviderQuirk]()),
        ("gpt-6-luna", 1_000_000, ("none", *COMMON_EFFORTS), set[ProviderQuirk]()),
        ("gemini-3.8-flash", 1_000_000, COMMON_EFFORTS[:3], {ProviderQuirk.THINKING_LEVEL}),
        ("gemini-4-argon", 1_000_000, COMMON_EFFORTS[:3], {ProviderQuirk.THINKING_LEVEL}),
        ("gemini-3.5-flash-lite", 1_000_000, ("none", *COMMON_EFFORTS[:3]), {ProviderQuirk.THINKING_LEVEL}),
        ("grok-4.7", 500_000, COMMON_EFFORTS, set[ProviderQuirk]()),
        ("grok-4.3", 1_000_000, None, set[ProviderQuirk]()),
        ("deepseek-flash", 1_000_000, COMMON_EFFORTS, set[ProviderQuirk]()),
    ],
)
def test_context_window_efforts_and_quirks_of_new_model_families_are_known(
    model: str, window_tokens: int, efforts: tuple[str, ...] | None, quirks: set[ProviderQuirk]
) -> None:
    family = find_family(model)
    assert family is not None
    assert (family.window_tokens, family.efforts, set(family.quirks)) == (window_tokens, efforts, quirks)


async def test_the_effort_none_disables_the_thinking_of_a_claude_model(
    link: ProviderConnections, tmp_path: Path
) -> None:
    """Newer models think unless it is disabled."""
    async with provider(Answer(status=500)) as server:
        target = make_catalog(tmp_path, "").build_target(ModelRef("anthropic", "claude-haiku-5-5"))[1]
        model = make_http_model(link, server.url, "anthropic", facts=target.facts, quirks=target.quirks)
        with pytest.raises(ModelFailed):
            [chunk async for chunk in model.reply(prompt_of(effort="none"), key=KEY)]
    assert server.last.body["thinking"] == {"type": "disabled"}


# Retired models


async def collect_failure(link: ProviderConnections, ref: ModelRef, format_: str, answer: Answer) -> ModelFailed:
    async with provider(answer) as server:
        model = make_http_model(link, server.url, format_, facts=make_model_facts(ref.provider, ref.model))
        with pytest.raises(ModelFailed) as failed:
            [chunk async for chunk in model.reply(prompt_of(), key=KEY)]
    return failed.value


def _recorded(path: str) -> Answer:
    file = FIXTURES / path
    if not file.is_file():
        pytest.skip(f"the recording {file} is not on this machine")
    response = json.loads(file.read_text())["response"]
    return Answer(status=response["status"], body=response["body"])


def _error(status: int, message: str, **more: Any) -> Answer:
    return Answer(status=status, body=json.dumps({"error": {"message": message, **more}}))


# Format, model, and the answer or the file of a recorded one
RETIRED_MODEL_ANSWERS: Sequence[tuple[str, str, Answer | str]] = (
    ("anthropic", "anthropic/claude-opus-4-1-20250805", "anthropic/21-error-404-model.json"),
    ("google", "google/gemini-2.5-pro", "google/19-error-404-model.json"),
    (
        "google",
        "google/gemini-2.5-flash",
        _error(404, "This model models/gemini-2.5-flash is no longer available to new users.", code=404),
    ),
    ("openai-chat", "openai/gpt-5-mini", "openai-chat/32-openai-error-404.json"),
    (
        "openai-responses",
        "openai/gpt-4",
        _error(
            400, "The model `gpt-4` has been deprecated, learn more here: https://platform.openai.com/docs/deprecations"
        ),
    ),
    (
        "openai-chat",
        "xai/grok-4-0709",
        _error(400, "The model grok-4-0709 was deprecated on 2026-05-15 and is no longer accessible via the API."),
    ),
    ("openai-chat", "deepseek/deepseek-chat", _error(400, "Model Not Exist", type="invalid_request_error")),
)


@pytest.mark.parametrize(
    ("format_", "name", "answer"), RETIRED_MODEL_ANSWERS, ids=[name for _, name, _ in RETIRED_MODEL_ANSWERS]
)
async def test_a_retired_model_error_names_its_replacement(
    link: ProviderConnections, format_: str, name: str, answer: Answer | str
) -> None:
    ref = ModelRef(*name.split("/"))
    known = find_retirement(ref)
    assert known is not None
    answer = _recorded(answer) if isinstance(answer, str) else answer
    failed = await collect_failure(link, ref, format_, answer)
    assert (failed.code, failed.failure) == ("model.retired", ModelFailureKind.NOT_FOUND)
    assert failed.sentence == f"{ref.provider} no longer offers {ref.model}"
    assert known.retired_on.isoformat() in failed.because and "it says:" in failed.because
    assert f"--model {known.replacement}" in failed.try_this


async def test_an_unknown_model_error_names_the_default_model_of_its_provider(link: ProviderConnections) -> None:
    answer = _recorded("google/19-error-404-model.json")
    failed = await collect_failure(link, ModelRef("google", "gemini-3.6-flahs"), "google", answer)
    assert failed.code == "model.not_offered"
    assert failed.sentence == "google does not offer the model gemini-3.6-flahs"
    assert "google/gemini-3.8-flash" in failed.try_this and "`retinue models`" in failed.try_this
    assert isinstance(failed, ModelNotOffered) and "use google/gemini-3.8-flash" in failed.summary


@pytest.mark.parametrize(
    "ref", [ModelRef("openai", BUILT_IN_PROVIDERS["openai"].default_model), ModelRef("workshop", "qwen3:14b")], ids=str
)
async def test_a_model_not_found_error_without_a_known_alternative_proposes_no_model(
    link: ProviderConnections, ref: ModelRef
) -> None:
    failed = await collect_failure(link, ref, "openai-chat", _error(404, "model not found"))
    assert failed.code == "model.not_offered"
    assert failed.try_this == "list the models: retinue models"


async def test_an_api_key_repeated_by_a_server_is_not_in_a_retired_model_error(link: ProviderConnections) -> None:
    ref = ModelRef("openai", "gpt-4")
    failed = await collect_failure(link, ref, "openai-chat", _error(404, f"The model gpt-4 does not exist for {KEY}"))
    assert KEY not in str(failed) + failed.because
    assert failed.code == "model.retired"


@pytest.mark.parametrize(
    "words",
    [
        "`temperature` is deprecated for this model.",
        "For this model, the parameter temperature has been deprecated.",
        "This model no longer supports prefilled replies.",
        "The tool computer_20250124 of this model is no longer available.",
    ],
)
def test_a_deprecated_parameter_is_not_classified_as_a_retired_model(words: str) -> None:
    assert (
        classify_failure(400, parse_error_body(json.dumps({"error": {"message": words}}).encode()))
        is ModelFailureKind.BAD_REQUEST
    )


def test_a_dated_snapshot_of_a_model_retires_with_the_model_and_other_models_do_not() -> None:
    for name in ("gpt-5-mini", "GPT-5-mini-2025-08-07"):
        found = find_retirement(ModelRef("openai", name))
        assert found is not None and found.replacement == ModelRef("openai", "gpt-5.6-terra")
    assert find_retirement(ModelRef("openai", "gpt-5.2")) is None
    assert find_retirement(ModelRef("workshop", "gpt-5-mini")) is None, "another provider decides about its own models"


def test_the_retirement_of_a_model_is_described_relative_to_the_given_day() -> None:
    found = find_retirement(ModelRef("openai", "gpt-5-mini"))
    assert found is not None
    assert found.describe(date(2026, 12, 10)) == "retires 2026-12-11, use openai/gpt-5.6-terra"
    assert found.describe(date(2026, 12, 11)) == "retired 2026-12-11, use openai/gpt-5.6-terra"
