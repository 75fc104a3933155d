"""Prices come from the settings, else from the offline table, else they are unknown; they are never guessed."""

from __future__ import annotations

import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest
from models.settings_catalog import make_catalog

from retinue.domain.budget import PriceUnknown
from retinue.domain.model import FREE_PRICE, ModelRef, Price
from retinue.models import prices

DAY = date(2026, 3, 1)


def test_a_known_price_is_in_microdollars_per_million_tokens() -> None:
    opus = prices.find_known_price(ModelRef("anthropic", "claude-opus-4-5"), DAY)
    assert opus == Price(input=5_000_000, output=25_000_000, cache_read=500_000, cache_write=6_250_000)


def test_a_price_with_tiers_or_off_peak_hours_uses_the_highest_rate() -> None:
    gemini = prices.find_known_price(ModelRef("google", "gemini-3-pro-preview"), DAY)
    assert gemini is not None and (gemini.input, gemini.output) == (4_000_000, 18_000_000)
    deepseek = prices.find_known_price(ModelRef("deepseek", "deepseek-chat"), DAY)
    assert deepseek is not None and deepseek.input == 270_000


def test_a_price_is_that_of_the_given_day() -> None:
    o3 = ModelRef("openai", "o3")
    before, after = prices.find_known_price(o3, date(2025, 5, 1)), prices.find_known_price(o3, DAY)
    assert before is not None and after is not None and before.input > after.input


def test_prices_of_a_provider_with_another_name_in_the_price_data_are_found() -> None:
    assert prices.find_known_price(ModelRef("xai", "grok-4"), DAY) is not None


@pytest.mark.parametrize("ref", [ModelRef("anthropic", "claude-9-secret"), ModelRef("nobody", "gpt-5")])
def test_an_unknown_model_or_provider_has_no_price(ref: ModelRef) -> None:
    assert prices.find_known_price(ref, DAY) is None


def test_prices_in_the_settings_override_known_prices(tmp_path: Path) -> None:
    text = """
    [providers.rack]
    url = "http://10.0.0.5/v1"
    [models.entries."anthropic/claude-opus-4-5"]
    input_usd = 1.0000001
    output_usd = 2
    cache_read_usd = 0.1
    [models.entries."rack/free"]
    input_usd = 0
    output_usd = 0
    [models.entries."rack/half"]
    input_usd = 1
    """
    catalog = make_catalog(tmp_path, text)
    opus = catalog.get_facts(ModelRef("anthropic", "claude-opus-4-5")).price
    assert opus == Price(input=1_000_001, output=2_000_000, cache_read=100_000)
    assert catalog.get_facts(ModelRef("rack", "free")).price == FREE_PRICE
    assert catalog.get_facts(ModelRef("rack", "half")).price is None


def test_local_and_built_in_models_are_free_and_other_prices_are_unknown(tmp_path: Path) -> None:
    catalog = make_catalog(tmp_path, '[providers.my-openai]\nurl = "http://127.0.0.1:4000/v1"')
    assert catalog.get_facts(ModelRef("ollama", "qwen3")).price == FREE_PRICE
    assert catalog.get_facts(ModelRef("", "guide")).price == FREE_PRICE
    assert catalog.get_facts(ModelRef("my-openai", "gpt-5")).price is None  # the provider behind this URL may charge
    far = make_catalog(tmp_path, '[providers.ollama]\nurl = "https://ollama.example/v1"')
    assert far.get_facts(ModelRef("ollama", "qwen3")).price is None
    near = make_catalog(tmp_path, '[providers.vllm]\nurl = "http://10.1.2.3:8000/v1"')
    assert near.get_facts(ModelRef("vllm", "qwen3")).price == FREE_PRICE


def test_an_unknown_price_error_names_the_settings_to_add() -> None:
    error = PriceUnknown(ModelRef("rack", "qwen3"))
    assert error.code == "model.price_unknown"
    assert '[models.entries."rack/qwen3"]' in error.try_this
    assert "input_usd" in error.try_this and "output_usd" in error.try_this


async def test_prices_can_be_loaded_in_the_background() -> None:
    await prices.load_prices()
    assert "genai_prices" in sys.modules


def test_a_model_catalog_is_built_without_loading_the_price_data() -> None:
    code = (
        "import sys, datetime; from retinue.config import load_configuration; "
        "from retinue.models.model_selection import ModelSelector; "
        "s = load_configuration({'RETINUE_HOME': '/nowhere', 'ANTHROPIC_API_KEY': 'x'}).settings; "
        "ModelSelector(s, {'ANTHROPIC_API_KEY': 'x'}, now=lambda: datetime.datetime(2026, 1, 1)); "
        "print([name for name in ('genai_prices', 'pydantic', 'aiohttp') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
