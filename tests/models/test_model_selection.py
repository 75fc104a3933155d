"""Model names, allowed models, and the order in which models are tried."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

import pytest
from models.settings_catalog import GUIDE, make_catalog

from retinue.config import load_configuration
from retinue.config.models import KNOWN_PROVIDERS, ProviderQuirk, WireFormat
from retinue.domain.agent import Agent
from retinue.domain.errors import Invalid, NotAllowed, NotFound
from retinue.domain.model import EFFORTS, ModelRef
from retinue.domain.session import SessionOptions
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.formats.openai_chat import ProviderQuirk as ChatQuirk
from retinue.models.model_clients import ModelClients
from retinue.models.model_selection import ModelRole, ModelSelection, ModelSelector
from retinue.models.offline_guide import OfflineGuide
from retinue.models.provider_http import HttpModel, ProviderConnections
from retinue.models.providers import BUILT_IN_PROVIDERS, DEFAULT_PROVIDER_ORDER, FAMILIES, OFFERED_MODELS, find_family
from retinue.testing.fake_clock import FakeClock

ADA = Agent(name="ada")
NO_OPTIONS = SessionOptions()
KEYS = {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o", "GOOGLE_API_KEY": "g"}

SERVER = """
[models]
default = { primary = "opus", fallbacks = ["openai/gpt-5.2", "rack/qwen3"] }
image = { primary = "google/gemini-2.5-flash", fallbacks = ["openai/gpt-5-mini"] }
utility = "rack/qwen3"
[models.entries."anthropic/claude-opus-4-5"]
alias = "opus"
params = { temperature = 0.3 }
[models.entries."rack/qwen3"]
window_tokens = 16384
[providers.rack]
url = "http://10.0.0.5:8000/v1/"
window_tokens = 40000
quirks = ["no-stream-options"]
headers = { x-title = "server", authorization = { env = "GATE" } }
"""


class BuildCatalog(Protocol):
    def __call__(self, text: str = "", **environment: str) -> ModelSelector: ...


@pytest.fixture
def build_catalog(tmp_path: Path) -> BuildCatalog:
    def made(text: str = "", **environment: str) -> ModelSelector:
        return make_catalog(tmp_path, text, **environment)

    return made


def ref(text: str) -> ModelRef:
    return ModelRef(*text.split("/", 1)) if "/" in text else ModelRef("", text)


def ref_names(refs: tuple[ModelRef, ...]) -> list[str]:
    return [str(each) for each in refs]


# --- defaults ---


@pytest.mark.spec("C103")
def test_without_settings_an_anthropic_key_selects_claude_opus_4_5_with_200_000_tokens(
    build_catalog: BuildCatalog,
) -> None:
    catalog = build_catalog(**KEYS)
    assert ref_names(catalog.build_chain(agent=ADA, session_options=NO_OPTIONS)) == ["anthropic/claude-opus-4-5"]
    assert catalog.get_facts(catalog.default).window_tokens == 200_000


def test_a_retired_default_model_is_replaced_by_its_successor(tmp_path: Path) -> None:
    settings = load_configuration({"RETINUE_HOME": str(tmp_path)}).settings
    for day, model in ((23, "claude-opus-4-5"), (24, "claude-opus-5-5")):
        now = datetime(2026, 11, day, tzinfo=UTC)
        catalog = ModelSelector(settings, KEYS, now=lambda now=now: now)
        assert (str(catalog.default), catalog.get_default_model("anthropic")) == (f"anthropic/{model}", model)
        assert catalog.describe_retirement(catalog.default) == (
            "retires 2026-11-24, use anthropic/claude-opus-5-5" if day == 23 else ""
        )


@pytest.mark.parametrize(
    ("environment", "default"),
    [
        ({"OPENAI_API_KEY": "o"}, "openai/gpt-6.1-sol"),
        ({"GOOGLE_API_KEY": "g"}, "google/gemini-3.8-flash"),
        ({"GEMINI_API_KEY": "g"}, "google/gemini-3.8-flash"),
        ({"OPENAI_API_KEY": "o", "GOOGLE_API_KEY": "g"}, "openai/gpt-6.1-sol"),
        ({"BRAVE_API_KEY": "b"}, "guide"),
        ({"ANTHROPIC_API_KEY": ""}, "guide"),
        ({}, "guide"),
    ],
)
@pytest.mark.spec("C103")
def test_a_key_in_the_environment_selects_the_default_model(
    build_catalog: BuildCatalog, environment: dict[str, str], default: str
) -> None:
    assert str(build_catalog(**environment).default) == default


def test_without_a_key_the_first_usable_configured_model_is_the_default(build_catalog: BuildCatalog) -> None:
    text = '[models.entries."openai/x"]\n[models.entries."ollama/qwen3"]\n'
    assert str(build_catalog(text).default) == "ollama/qwen3"


def test_a_key_named_in_the_provider_settings_selects_the_default_model(build_catalog: BuildCatalog) -> None:
    text = '[providers.openai]\nkey = { env = "WORK" }'
    assert str(build_catalog(text, WORK="w").default) == "openai/gpt-6.1-sol"
    assert str(build_catalog(text).default) == "guide"
    assert build_catalog(text).explain_missing_key("openai") == "set WORK"


# --- names ---


@pytest.mark.spec("C104")
@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("opus", "anthropic/claude-opus-4-5"),
        ("OPUS", "anthropic/claude-opus-4-5"),
        ("openrouter/anthropic/claude-opus-4.5", "openrouter/anthropic/claude-opus-4.5"),
        ("Gemini/gemini-2.5-pro", "google/gemini-2.5-pro"),
        ("x-ai/grok-4", "xai/grok-4"),
        ("claude-haiku-4-5", "anthropic/claude-haiku-4-5"),
        (" openai/gpt-5 ", "openai/gpt-5"),
        ("guide", "guide"),
        ("local", "local"),
    ],
)
def test_a_model_reference_is_an_alias_a_provider_and_model_or_a_bare_name(
    build_catalog: BuildCatalog, text: str, meant: str
) -> None:
    assert build_catalog(SERVER).resolve(text) == ref(meant)


@pytest.mark.spec("C104")
def test_a_bare_model_name_gets_the_provider_of_the_default_model(build_catalog: BuildCatalog) -> None:
    assert str(build_catalog('[models]\ndefault = "groq/llama-3.3-70b"').resolve("other")) == "groq/other"
    assert str(build_catalog().resolve("other")) == "anthropic/other"
    entry = build_catalog('[models]\ndefault = "groq/a"\n[models.entries.other]\nwindow_tokens = 77')
    assert entry.get_facts(ModelRef("groq", "other")).window_tokens == 77


@pytest.mark.spec("C104")
@pytest.mark.parametrize("text", ["", "  ", "/", "openai/", "/gpt-5", "a b/c", "x" * 300, "a/b\nc"])
def test_an_invalid_model_reference_is_refused(build_catalog: BuildCatalog, text: str) -> None:
    with pytest.raises(Invalid) as refused:
        build_catalog().resolve(text)
    assert refused.value.code == "model.ref_invalid" and refused.value.try_this


def test_a_configured_provider_takes_precedence_over_a_provider_alias(build_catalog: BuildCatalog) -> None:
    assert str(build_catalog('[providers.grok]\nurl = "http://x/v1"').resolve("grok/a")) == "grok/a"


# --- facts ---


def test_model_facts_come_from_the_entry_then_the_provider_then_the_built_in_catalog(
    build_catalog: BuildCatalog,
) -> None:
    catalog = build_catalog(SERVER)
    assert catalog.get_facts(ref("rack/qwen3")).window_tokens == 16_384
    assert catalog.get_facts(ref("rack/other")).window_tokens == 40_000
    assert catalog.get_facts(ref("openai/gpt-4o")).window_tokens == 128_000
    assert catalog.get_facts(ref("openrouter/someone/never-heard-of")).window_tokens == 200_000
    assert catalog.get_facts(ref("openrouter/openai/gpt-4o")).vision


def test_a_model_entry_overrides_the_built_in_facts(build_catalog: BuildCatalog) -> None:
    text = '[models.entries."openai/gpt-4o"]\nvision = false\ntools = false\nefforts = ["low"]\noutput_tokens_max = 5'
    facts = build_catalog(text).get_facts(ref("openai/gpt-4o"))
    assert (facts.vision, facts.tools, facts.efforts, facts.output_tokens_max) == (False, False, ("low",), 5)


def test_the_output_limit_of_a_model_never_exceeds_its_context_window(build_catalog: BuildCatalog) -> None:
    text = '[models.entries."openai/gpt-4o"]\nwindow_tokens = 4000'
    assert build_catalog(text).get_facts(ref("openai/gpt-4o")).output_tokens_max == 4_000


@pytest.mark.spec("C105.params")
def test_params_of_a_model_entry_in_the_settings_are_part_of_the_model_target(build_catalog: BuildCatalog) -> None:
    assert build_catalog(SERVER).build_target(ref("anthropic/claude-opus-4-5"))[1].params == {"temperature": 0.3}


def test_a_model_target_has_format_url_headers_and_quirks(build_catalog: BuildCatalog) -> None:
    format_, target = build_catalog(SERVER, GATE="Bearer x").build_target(ref("rack/qwen3"))
    assert (format_, target.url) == (WireFormat.OPENAI_CHAT, "http://10.0.0.5:8000/v1")
    assert target.headers == {"x-title": "server", "authorization": "Bearer x"}
    assert target.quirks == {"no-stream-options"}
    format_, target = build_catalog().build_target(ref("anthropic/claude-opus-4-7"))
    assert (format_, target.url) == (WireFormat.ANTHROPIC, "https://api.anthropic.com/v1")
    assert "adaptive" in target.quirks
    with pytest.raises(NotFound) as unknown:
        build_catalog().build_target(ref("nobody/x"))
    assert unknown.value.code == "model.provider_unknown" and "[providers.nobody]" in unknown.value.try_this


def test_the_model_providers_known_to_the_settings_are_the_built_in_ones() -> None:
    assert set(BUILT_IN_PROVIDERS) == KNOWN_PROVIDERS
    assert {str(quirk) for quirk in ChatQuirk} <= {str(quirk) for quirk in ProviderQuirk}
    assert all(BUILT_IN_PROVIDERS[name].default_model in OFFERED_MODELS[name] for name in DEFAULT_PROVIDER_ORDER)


def test_every_offered_model_belongs_to_a_model_family() -> None:
    assert all(find_family(model) for models in OFFERED_MODELS.values() for model in models)
    assert all(set(family.efforts or ()) <= set(EFFORTS) for family in FAMILIES)


@pytest.mark.parametrize(
    ("model", "window", "vision"),
    [
        ("claude-opus-4-5-20251101", 200_000, True),
        ("claude-opus-4.5", 200_000, True),
        ("claude-sonnet-4-20250514", 200_000, True),
        ("claude-3-haiku-20240307", 200_000, True),
        ("claude-sonnet-4-6", 1_000_000, True),
        ("claude-opus-5", 1_000_000, True),
        ("gpt-5", 400_000, True),
        ("gpt-5.4-mini", 400_000, True),
        ("gpt-5.4", 1_000_000, True),
        ("o3-mini", 200_000, False),
        ("gpt-4", 8_192, False),
        ("gemini-3-pro-preview", 1_000_000, True),
        ("meta-llama/Llama-3.3-70B-Instruct", 131_072, False),
    ],
)
def test_context_window_and_vision_of_current_models_are_known_by_name(model: str, window: int, vision: bool) -> None:
    family = find_family(model)
    assert family is not None and (family.window_tokens, family.vision) == (window, vision)


# --- effort ---


@pytest.mark.spec("H80")
def test_an_effort_that_is_unknown_or_unsupported_by_a_model_is_refused_with_the_valid_ones(
    build_catalog: BuildCatalog,
) -> None:
    catalog = build_catalog(SERVER)
    for fine in (None, "default", *EFFORTS):
        catalog.check_effort(ref("anthropic/claude-opus-4-5"), fine)
        catalog.check_effort(ref("rack/qwen3"), fine)
    with pytest.raises(Invalid, match="does not support the effort 'xhigh'") as refused:
        catalog.check_effort(ref("openai/gpt-5"), "xhigh")
    assert "low, medium, high" in refused.value.because and refused.value.code == "model.effort_invalid"
    with pytest.raises(Invalid) as unknown:
        catalog.check_effort(ref("rack/qwen3"), "extreme")
    assert ", ".join(EFFORTS) in unknown.value.because
    with pytest.raises(Invalid, match="does not support") as none:
        catalog.check_effort(ref("openai/gpt-4o"), "low")
    assert "no effort levels" in none.value.because


# --- the chain ---


def test_a_model_override_for_a_run_precedes_the_models_of_session_agent_and_settings(
    build_catalog: BuildCatalog,
) -> None:
    catalog = build_catalog(SERVER)
    ada = Agent(name="ada", model="openai/gpt-5", fallbacks=())
    options = SessionOptions(model="groq/x")
    assert catalog.build_chain(agent=ada, session_options=options, override="local")[0] == ref("local")
    assert catalog.build_chain(agent=ada, session_options=options)[0] == ref("groq/x")
    assert catalog.build_chain(agent=ada, session_options=NO_OPTIONS)[0] == ref("openai/gpt-5")
    assert catalog.build_chain(agent=ADA, session_options=NO_OPTIONS)[0] == ref("anthropic/claude-opus-4-5")


@pytest.mark.spec("C34")
def test_the_fallback_models_of_an_agent_replace_the_configured_ones_even_if_empty(build_catalog: BuildCatalog) -> None:
    catalog = build_catalog(SERVER)
    own = Agent(name="ada", fallbacks=("groq/x",))
    none = Agent(name="ada", fallbacks=())
    opus = "anthropic/claude-opus-4-5"
    assert ref_names(catalog.build_chain(agent=ADA, session_options=NO_OPTIONS)) == [
        opus,
        "openai/gpt-5.2",
        "rack/qwen3",
    ]
    assert ref_names(catalog.build_chain(agent=own, session_options=NO_OPTIONS)) == [opus, "groq/x"]
    assert ref_names(catalog.build_chain(agent=none, session_options=NO_OPTIONS)) == [opus]


@pytest.mark.spec("C34")
def test_the_model_chain_of_an_overridden_run_ends_with_the_configured_primary_model(
    build_catalog: BuildCatalog,
) -> None:
    catalog = build_catalog(SERVER)
    ada = Agent(name="ada", model="openai/gpt-5", fallbacks=("groq/x",))
    expected_chain = ["local", "groq/x", "openai/gpt-5"]
    assert ref_names(catalog.build_chain(agent=ada, session_options=NO_OPTIONS, override="local")) == expected_chain
    assert ref_names(catalog.build_chain(agent=ada, session_options=SessionOptions(model="local"))) == expected_chain
    assert ref_names(catalog.build_chain(agent=ada, session_options=NO_OPTIONS, override="default")) == [
        "openai/gpt-5",
        "groq/x",
    ]


@pytest.mark.spec("C34")
def test_fallback_models_that_are_not_allowed_are_omitted_from_the_chain(build_catalog: BuildCatalog) -> None:
    catalog = build_catalog(SERVER + "[providers.openai]\n", **KEYS)
    assert "openai/gpt-5.2" in ref_names(catalog.build_chain(agent=ADA, session_options=NO_OPTIONS))
    limited = build_catalog(SERVER.replace("[models]", '[models]\nallow = ["rack/*"]'), **KEYS)
    assert ref_names(limited.build_chain(agent=ADA, session_options=NO_OPTIONS)) == [
        "anthropic/claude-opus-4-5",
        "rack/qwen3",
    ]
    ada = Agent(name="ada", fallbacks=("openai/gpt-5", "rack/a", "guide"))
    assert ref_names(limited.build_chain(agent=ada, session_options=NO_OPTIONS)) == [
        "anthropic/claude-opus-4-5",
        "rack/a",
        "guide",
    ]


def test_a_model_that_is_not_allowed_is_refused_with_the_setting_and_allowed_models(
    build_catalog: BuildCatalog,
) -> None:
    catalog = build_catalog(SERVER.replace("[models]", '[models]\nallow = ["rack/*"]'), **KEYS)
    for ask in (
        lambda: catalog.build_chain(agent=ADA, session_options=NO_OPTIONS, override="openai/gpt-5"),
        lambda: catalog.build_chain(agent=Agent(name="ada", model="openai/gpt-5"), session_options=NO_OPTIONS),
        lambda: catalog.parse_selection("openai/gpt-5"),
    ):
        with pytest.raises(NotAllowed) as refused:
            ask()
        assert refused.value.code == "model.not_allowed"
        assert "models.allow" in refused.value.because and "opus" in refused.value.try_this


def test_a_session_model_that_is_no_longer_allowed_is_not_used(build_catalog: BuildCatalog) -> None:
    catalog = build_catalog(SERVER.replace("[models]", '[models]\nallow = ["rack/*"]'))
    assert (
        ref_names(catalog.build_chain(agent=ADA, session_options=SessionOptions(model="openai/gpt-5")))[0]
        == "anthropic/claude-opus-4-5"
    )


@pytest.mark.parametrize(
    ("allow", "model", "may"),
    [
        ("", "groq/x", True),
        ('"anthropic/*"', "anthropic/claude-haiku-4-5", True),
        ('"anthropic/*"', "groq/x", False),
        ('"haiku"', "anthropic/claude-haiku-4-5", True),
        ('"groq/x"', "groq/x", True),
        ('"*/gpt-5*"', "openai/gpt-5.2", True),
        ('"groq/x"', "openai/gpt-5", True),  # the default
        ('"groq/x"', "guide", True),  # the built-in guide
    ],
)
def test_the_list_of_allowed_models_accepts_references_aliases_and_patterns(
    build_catalog: BuildCatalog, allow: str, model: str, may: bool
) -> None:
    text = f'[models]\ndefault = "openai/gpt-5"\nallow = [{allow}]\n'
    text += '[models.entries."anthropic/claude-haiku-4-5"]\nalias = "haiku"'
    assert (build_catalog(text).explain_not_allowed(ref(model)) == "") is may


@pytest.mark.spec("C105.image_model")
def test_image_models_come_first_if_the_main_model_lacks_vision(build_catalog: BuildCatalog) -> None:
    catalog = build_catalog(SERVER)
    agent_without_vision, agent_with_vision = (
        Agent(name="ada", model="rack/qwen3", fallbacks=()),
        Agent(name="ada", fallbacks=()),
    )
    assert ref_names(catalog.build_chain(agent=agent_without_vision, session_options=NO_OPTIONS, has_images=True)) == [
        "google/gemini-2.5-flash",
        "openai/gpt-5-mini",
        "rack/qwen3",
    ]
    assert ref_names(catalog.build_chain(agent=agent_without_vision, session_options=NO_OPTIONS)) == ["rack/qwen3"]
    assert ref_names(catalog.build_chain(agent=agent_with_vision, session_options=NO_OPTIONS, has_images=True)) == [
        "anthropic/claude-opus-4-5"
    ]


@pytest.mark.spec("C100")
def test_the_utility_role_selects_the_utility_model_and_falls_back_to_the_main_model_chain(
    build_catalog: BuildCatalog,
) -> None:
    catalog = build_catalog(SERVER)
    assert ref_names(catalog.build_chain(agent=ADA, session_options=NO_OPTIONS, role=ModelRole.UTILITY)) == [
        "rack/qwen3",
        "anthropic/claude-opus-4-5",
        "openai/gpt-5.2",
    ]
    plain = build_catalog(**KEYS)
    assert plain.build_chain(agent=ADA, session_options=NO_OPTIONS, role=ModelRole.UTILITY) == plain.build_chain(
        agent=ADA, session_options=NO_OPTIONS
    )


@pytest.mark.parametrize(
    ("provider", "model", "meant"),
    [
        ("openai", "gpt-5", "openai/gpt-5"),
        ("openai", "", "openai/gpt-6.1-sol"),
        ("openrouter", "anthropic/claude-opus-4.5", "openrouter/anthropic/claude-opus-4.5"),
        ("openrouter", "openrouter/x", "openrouter/x"),
        ("Gemini", "gemini-2.5-pro", "google/gemini-2.5-pro"),
        ("anthropic", "opus", "anthropic/claude-opus-4-5"),
    ],
)
def test_an_agent_can_name_its_provider_separately_from_its_model(
    build_catalog: BuildCatalog, provider: str, model: str, meant: str
) -> None:
    agent = Agent(name="ada", provider=provider, model=model)
    assert build_catalog(SERVER).build_chain(agent=agent, session_options=NO_OPTIONS)[0] == ref(meant)


def test_an_agent_with_a_provider_without_a_default_model_must_name_a_model(build_catalog: BuildCatalog) -> None:
    with pytest.raises(Invalid, match="has the provider groq, but no model"):
        build_catalog().build_chain(agent=Agent(name="ada", provider="groq"), session_options=NO_OPTIONS)


def test_a_model_of_an_unknown_provider_is_refused_and_omitted_as_a_fallback(build_catalog: BuildCatalog) -> None:
    with pytest.raises(NotFound, match="no model provider named 'nobody'"):
        build_catalog().build_chain(agent=Agent(name="ada", model="nobody/x"), session_options=NO_OPTIONS)
    agent = Agent(name="ada", model="guide", fallbacks=("nobody/x", "local"))
    assert ref_names(build_catalog().build_chain(agent=agent, session_options=NO_OPTIONS)) == ["guide", "local"]


# --- selection ---


@pytest.mark.spec("C31")
def test_a_model_is_selected_by_reference_alias_or_number_with_an_optional_credential(
    build_catalog: BuildCatalog,
) -> None:
    catalog = build_catalog(SERVER, **KEYS)
    opus = ref("anthropic/claude-opus-4-5")
    assert catalog.parse_selection("opus") == ModelSelection(ref=opus)
    assert catalog.parse_selection("1") == ModelSelection(ref=opus)
    assert catalog.parse_selection("openai/gpt-5") == ModelSelection(ref=ref("openai/gpt-5"))
    assert catalog.parse_selection("opus@anthropic:work") == ModelSelection(ref=opus, credential="anthropic:work")
    assert catalog.parse_selection("opus@work") == ModelSelection(ref=opus, credential="anthropic:work")
    assert catalog.parse_selection("google/claude-3@20240229") == ModelSelection(ref=ref("google/claude-3@20240229"))
    assert catalog.parse_selection("default") == ModelSelection()


@pytest.mark.spec("C31")
@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("0", "model.number_invalid"),
        ("99", "model.number_invalid"),
        ("9" * 5000, "model.number_invalid"),
        ("nobody/x", "model.provider_unknown"),
        ("openai/", "model.ref_invalid"),
    ],
)
def test_an_invalid_model_selection_is_refused_with_a_reason(build_catalog: BuildCatalog, text: str, code: str) -> None:
    with pytest.raises((NotFound, Invalid)) as refused:
        build_catalog(**KEYS).parse_selection(text)
    assert refused.value.code == code and refused.value.because and refused.value.try_this


@pytest.mark.spec("C31")
def test_model_offers_are_numbered_and_show_alias_window_price_and_current_model(build_catalog: BuildCatalog) -> None:
    catalog = build_catalog(SERVER, **KEYS)
    offers = catalog.list_offers(ref("openai/gpt-5.2"))
    assert [offer.number for offer in offers] == list(range(1, len(offers) + 1))
    assert (offers[0].alias, offers[0].is_default, offers[0].facts.window_tokens) == ("opus", True, 200_000)
    assert offers[0].facts.price is not None and offers[0].facts.price.output == 25_000_000
    assert [str(offer.facts.ref) for offer in offers if offer.is_current] == ["openai/gpt-5.2"]
    assert all(catalog.parse_selection(str(offer.number)).ref == offer.facts.ref for offer in offers)
    assert {"guide", "local", "rack/qwen3", "google/gemini-3.8-flash"} <= {str(offer.facts.ref) for offer in offers}


def test_only_allowed_models_are_offered(build_catalog: BuildCatalog) -> None:
    catalog = build_catalog(SERVER.replace("[models]", '[models]\nallow = ["rack/*", "groq/exact"]'), **KEYS)
    offered = [str(offer.facts.ref) for offer in catalog.list_offers()]
    assert offered == ["anthropic/claude-opus-4-5", "rack/qwen3", "groq/exact", "guide", "local"]


# --- keys ---


def test_a_missing_model_provider_key_is_explained_with_the_variable_to_set(build_catalog: BuildCatalog) -> None:
    catalog = build_catalog(SERVER)
    assert catalog.explain_missing_key("anthropic") == "set ANTHROPIC_API_KEY"
    assert catalog.explain_missing_key("google") == "set GOOGLE_API_KEY or GEMINI_API_KEY"
    assert catalog.has_key("ollama") and catalog.has_key("rack") and not catalog.has_key("openai")
    assert build_catalog(GEMINI_API_KEY="g").has_key("google")
    assert (
        catalog.key_variables["google"] == ("GOOGLE_API_KEY", "GEMINI_API_KEY")
        and "ollama" not in catalog.key_variables
    )


# --- model clients ---


def test_model_clients_return_the_same_client_until_its_target_changes(
    build_catalog: BuildCatalog, tmp_path: Path
) -> None:

    catalogs = [build_catalog(SERVER, GATE="x")]
    server = [OfflineGuide(FakeClock())]
    clients = ModelClients(server, lambda: catalogs[-1], ProviderConnections(), EncodedContextCache())
    assert clients.find(ref("guide")) is server[0] and clients.built_in_facts == (GUIDE,)
    first = clients.find(ref("rack/qwen3"))
    assert isinstance(first, HttpModel) and first.facts.window_tokens == 16_384
    catalogs.append(build_catalog(SERVER + "[budgets]\nrun_usd = 1", GATE="x"))
    assert clients.find(ref("rack/qwen3")) is first
    catalogs.append(build_catalog(SERVER.replace("16384", "20000"), GATE="x"))
    assert clients.find(ref("rack/qwen3")) is not first
    with pytest.raises(NotFound, match="no model named 'other'"):
        clients.find(ref("other"))
