"""Models that exist, and models that are gone: which are offered, and what a person reads of those that ended."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from models.replay import KEY, Answer, facts_of, linked, model_at, prompt_of, provider
from models.settings_catalog import catalog_of

from retinue.config.models import Quirk
from retinue.domain.model import Failure, ModelFailed, ModelRef
from retinue.models import prices
from retinue.models.error_classification import reason, said_in
from retinue.models.provider_http import Link
from retinue.models.providers import BUILT_IN, MODELS_KNOWN_ON, OFFERED, family_of
from retinue.models.retired_models import RETIRED, ModelGone, retirement

FIXTURES = Path(os.environ.get("RETINUE_FIXTURES") or Path(__file__).parents[3] / "shared" / "fixtures" / "providers")
OFFERS = [ModelRef(name, model) for name, models in OFFERED.items() for model in models]
DEFAULTS = [ModelRef(name, each.default_model) for name, each in BUILT_IN.items() if each.default_model]


@pytest.fixture
async def link() -> AsyncIterator[Link]:
    async with linked() as link:
        yield link


# What is offered


@pytest.mark.parametrize(
    "ref", dict.fromkeys([*DEFAULTS, *OFFERS, *(each.instead for each in RETIRED.values())]), ids=str
)
def test_no_model_that_is_offered_by_default_or_named_as_a_replacement_has_ended(ref: ModelRef) -> None:
    ends = retirement(ref)
    assert ends is None or (ends.on > MODELS_KNOWN_ON and retirement(ends.instead) is None)
    assert family_of(ref.model) is not None, "its window and what it can do are known"
    assert prices.known_price(ref, MODELS_KNOWN_ON) is not None


@pytest.mark.parametrize("provider_name", OFFERED)
def test_the_default_of_a_provider_is_offered(provider_name: str) -> None:
    assert BUILT_IN[provider_name].default_model in OFFERED[provider_name]


ROOT = Path(__file__).parents[2]
NAMED = re.compile(rf"\b({'|'.join(OFFERED)})/([a-z][\w.-]*\d[\w.-]*)")
VERIFIED = re.compile(r'ModelRef\("(\w+)", "([^"]+)"\)')


def test_the_guides_and_the_check_of_the_providers_name_models_that_exist() -> None:
    guides = [found for page in (ROOT / "docs" / "guides").glob("*.md") for found in NAMED.findall(page.read_text())]
    verified = VERIFIED.findall((ROOT / "scripts" / "verify_providers.py").read_text())
    assert len(guides) > 5 and len(verified) == 4
    for ref in (ModelRef(*found) for found in [*guides, *verified]):
        ends = retirement(ref)
        assert ends is None or ends.on > MODELS_KNOWN_ON, ref
        assert prices.known_price(ref, MODELS_KNOWN_ON) is not None, ref


ALWAYS = ("low", "medium", "high", "xhigh")


@pytest.mark.parametrize(
    ("model", "window_tokens", "efforts", "quirks"),
    [
        ("claude-opus-5-5", 1_000_000, ALWAYS, {Quirk.ADAPTIVE}),
        ("claude-sonnet-5-5", 1_000_000, ALWAYS, {Quirk.ADAPTIVE}),
        ("claude-haiku-5-5", 1_000_000, ("none", *ALWAYS), {Quirk.ADAPTIVE}),
        ("claude-opus-5", 1_000_000, ("none", *ALWAYS), {Quirk.ADAPTIVE}),
        ("claude-fable-5-1", 1_000_000, ALWAYS, {Quirk.ADAPTIVE}),
        ("claude-opus-4-5", 200_000, ("none", *ALWAYS), set[Quirk]()),
        ("gpt-6.1-sol", 1_000_000, ALWAYS, set[Quirk]()),
        ("gpt-6-astra", 1_000_000, ALWAYS, set[Quirk]()),
        ("gpt-6.1-terra", 1_000_000, ("none", *ALWAYS), set[Quirk]()),
        ("gpt-6-luna", 1_000_000, ("none", *ALWAYS), set[Quirk]()),
        ("gemini-3.8-flash", 1_000_000, ALWAYS[:3], {Quirk.THINKING_LEVEL}),
        ("gemini-4-argon", 1_000_000, ALWAYS[:3], {Quirk.THINKING_LEVEL}),
        ("gemini-3.5-flash-lite", 1_000_000, ("none", *ALWAYS[:3]), {Quirk.THINKING_LEVEL}),
        ("grok-4.7", 500_000, ALWAYS, set[Quirk]()),
        ("grok-4.3", 1_000_000, None, set[Quirk]()),
        ("deepseek-flash", 1_000_000, ALWAYS, set[Quirk]()),
    ],
)
def test_what_new_families_take_is_known(
    model: str, window_tokens: int, efforts: tuple[str, ...] | None, quirks: set[Quirk]
) -> None:
    family = family_of(model)
    assert family is not None
    assert (family.window_tokens, family.efforts, set(family.quirks)) == (window_tokens, efforts, quirks)


async def test_claude_is_told_not_to_think_where_that_is_wanted(link: Link, tmp_path: Path) -> None:
    """Newer models think unless they are told not to."""
    async with provider(Answer(status=500)) as server:
        target = catalog_of(tmp_path, "").target(ModelRef("anthropic", "claude-haiku-5-5"))[1]
        model = model_at(link, server.url, "anthropic", facts=target.facts, quirks=target.quirks)
        with pytest.raises(ModelFailed):
            [chunk async for chunk in model.reply(prompt_of(effort="none"), key=KEY)]
    assert server.last.body["thinking"] == {"type": "disabled"}


# What is gone


async def failure_of(link: Link, ref: ModelRef, format_: str, answer: Answer) -> ModelFailed:
    async with provider(answer) as server:
        model = model_at(link, server.url, format_, facts=facts_of(ref.provider, ref.model))
        with pytest.raises(ModelFailed) as failed:
            [chunk async for chunk in model.reply(prompt_of(), key=KEY)]
    return failed.value


def _recorded(path: str) -> Answer:
    response = json.loads((FIXTURES / path).read_text())["response"]
    return Answer(status=response["status"], body=response["body"])


def _error(status: int, message: str, **more: Any) -> Answer:
    return Answer(status=status, body=json.dumps({"error": {"message": message, **more}}))


GONE = (
    ("anthropic", "anthropic/claude-opus-4-1-20250805", _recorded("anthropic/21-error-404-model.json")),
    ("google", "google/gemini-2.5-pro", _recorded("google/19-error-404-model.json")),
    (
        "google",
        "google/gemini-2.5-flash",
        _error(404, "This model models/gemini-2.5-flash is no longer available to new users.", code=404),
    ),
    ("openai-chat", "openai/gpt-5-mini", _recorded("openai-chat/32-openai-error-404.json")),
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


@pytest.mark.parametrize(("format_", "name", "answer"), GONE, ids=[name for _, name, _ in GONE])
async def test_a_model_that_its_provider_has_retired_is_told_with_its_replacement(
    link: Link, format_: str, name: str, answer: Answer
) -> None:
    ref = ModelRef(*name.split("/"))
    known = retirement(ref)
    assert known is not None
    failed = await failure_of(link, ref, format_, answer)
    assert (failed.code, failed.failure) == ("model.retired", Failure.NOT_FOUND)
    assert failed.sentence == f"{ref.provider} no longer offers {ref.model}"
    assert known.on.isoformat() in failed.because and "it says:" in failed.because
    assert f"--model {known.instead}" in failed.try_this


async def test_a_model_nobody_knows_is_told_with_the_default_of_its_provider(link: Link) -> None:
    answer = _recorded("google/19-error-404-model.json")
    failed = await failure_of(link, ModelRef("google", "gemini-3.6-flahs"), "google", answer)
    assert failed.code == "model.not-found"
    assert failed.sentence == "google does not have the model gemini-3.6-flahs"
    assert "google/gemini-3.8-flash" in failed.try_this and "`retinue models`" in failed.try_this
    assert isinstance(failed, ModelGone) and "use google/gemini-3.8-flash" in failed.in_short


@pytest.mark.parametrize(
    "ref", [ModelRef("openai", BUILT_IN["openai"].default_model), ModelRef("workshop", "qwen3:14b")], ids=str
)
async def test_where_nothing_better_is_known_no_model_is_proposed(link: Link, ref: ModelRef) -> None:
    failed = await failure_of(link, ref, "openai-chat", _error(404, "model not found"))
    assert failed.code == "model.not-found"
    assert failed.try_this == "`retinue models` shows what there is"


async def test_a_key_that_a_server_repeats_is_not_told_with_a_model_that_is_gone(link: Link) -> None:
    ref = ModelRef("openai", "gpt-4")
    failed = await failure_of(link, ref, "openai-chat", _error(404, f"The model gpt-4 does not exist for {KEY}"))
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
def test_a_parameter_that_a_model_no_longer_takes_is_no_model_that_is_gone(words: str) -> None:
    assert reason(400, said_in(json.dumps({"error": {"message": words}}).encode())) is Failure.BAD_REQUEST


def test_a_snapshot_ends_with_its_model_and_others_do_not() -> None:
    for name in ("gpt-5-mini", "GPT-5-mini-2025-08-07"):
        found = retirement(ModelRef("openai", name))
        assert found is not None and found.instead == ModelRef("openai", "gpt-5.6-terra")
    assert retirement(ModelRef("openai", "gpt-5.2")) is None
    assert retirement(ModelRef("workshop", "gpt-5-mini")) is None, "who sells it under that name decides for themselves"


def test_the_words_for_an_end_know_what_day_it_is() -> None:
    found = retirement(ModelRef("openai", "gpt-5-mini"))
    assert found is not None
    assert found.words(date(2026, 12, 10)) == "retires 2026-12-11, use openai/gpt-5.6-terra"
    assert found.words(date(2026, 12, 11)) == "retired 2026-12-11, use openai/gpt-5.6-terra"
