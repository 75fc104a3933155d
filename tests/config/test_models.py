"""Settings of providers, models, context and budgets: strict, with faults by path, and without secrets."""

from __future__ import annotations

import pytest
from config.data_directory import SettingsDirectory

from retinue.config import SecretReference, SettingEffect, reload_configuration
from retinue.config.models import (
    KNOWN_PROVIDERS,
    PROVIDER_ALIASES,
    BudgetSettings,
    CompactionMode,
    ContextSettings,
    ModelChoice,
    ModelRoutingSettings,
    ProviderQuirk,
    PruningMode,
    WireFormat,
)

ALL_MODEL_SETTINGS = """
[providers.anthropic]
key = { env = "WORK_KEY" }
requests_per_minute = 50
tokens_per_minute = 40000
[providers.rack]
format = "openai-chat"
url = "http://10.0.0.5:8000/v1"
key = { file = "rack.key" }
window_tokens = 32768
quirks = ["no-stream-options"]
headers = { x-title = "retinue", authorization = { env = "GATE" } }
[models]
default = { primary = "opus", fallbacks = ["rack/qwen3"] }
image = "google/gemini-2.5-flash"
utility = "rack/qwen3"
allow = ["opus", "rack/*", "google/gemini-2.5-flash"]
retries_max = 1
first_byte_timeout_s = 30
stream_idle_timeout_s = 20
[models.entries."anthropic/claude-opus-4-5"]
alias = "opus"
params = { temperature = 0.3, metadata = { user_id = "retinue" }, stop = ["END"] }
[models.entries."rack/qwen3"]
window_tokens = 16384
output_tokens_max = 2048
vision = false
efforts = ["low", "high"]
input_usd = 0
output_usd = 0.25
[context]
emergency_context_limit = 100000
[context.compaction]
mode = "safeguard"
reserve_tokens_floor = 9000
max_history_share = 0.4
memory_flush = { enabled = false, soft_threshold_tokens = 100 }
[context.pruning]
mode = "cache-ttl"
ttl_s = 60
keep_last_assistants = 1
soft_trim_ratio = 0.2
hard_clear_ratio = 0.4
tools = { allow = ["read"], deny = ["shell"] }
soft_trim = { max_chars = 10, head_chars = 4, tail_chars = 4 }
hard_clear = { enabled = false, placeholder = "gone" }
[budgets]
instance_day_usd = 5
person_month_usd = 20.5
"""


def test_every_provider_model_context_and_budget_setting_is_read_from_the_file(home: SettingsDirectory) -> None:
    settings = home.load(ALL_MODEL_SETTINGS).settings
    rack = settings.providers["rack"]
    assert (rack.format, rack.url, rack.window_tokens) == (WireFormat.OPENAI_CHAT, "http://10.0.0.5:8000/v1", 32768)
    assert rack.quirks == (ProviderQuirk.NO_STREAM_OPTIONS,)
    assert rack.key == SecretReference(file=home.folder / "rack.key")
    assert rack.headers == {"x-title": "retinue", "authorization": SecretReference(env="GATE")}
    assert settings.providers["anthropic"].requests_per_minute == 50
    assert settings.models.default == ModelChoice(primary="opus", fallbacks=("rack/qwen3",))
    assert settings.models.allow == ("opus", "rack/*", "google/gemini-2.5-flash")
    assert (
        settings.models.retries_max,
        settings.models.first_byte_timeout_s,
        settings.models.stream_idle_timeout_s,
    ) == (1, 30.0, 20.0)
    opus, qwen = settings.models.entries.values()
    assert opus.alias == "opus" and opus.params == {
        "temperature": 0.3,
        "metadata": {"user_id": "retinue"},
        "stop": ["END"],
    }
    assert (qwen.efforts, qwen.vision, qwen.input_usd, qwen.output_usd) == (("low", "high"), False, 0.0, 0.25)
    assert settings.context.emergency_context_limit == 100_000
    assert settings.context.compaction.mode is CompactionMode.SAFEGUARD
    assert settings.context.compaction.memory_flush.soft_threshold_tokens == 100
    assert settings.context.pruning.mode is PruningMode.CACHE_TTL
    assert settings.context.pruning.tools.deny == ("shell",)
    assert settings.context.pruning.hard_clear.placeholder == "gone"
    assert (settings.budgets.instance_day_usd, settings.budgets.person_month_usd) == (5.0, 20.5)


def test_without_a_settings_file_model_settings_have_their_defaults(home: SettingsDirectory) -> None:
    settings = home.load().settings
    assert (settings.providers, settings.models) == ({}, ModelRoutingSettings())
    assert (settings.context, settings.budgets) == (ContextSettings(), BudgetSettings())


@pytest.mark.spec("C105.setting")
def test_a_model_setting_is_a_text_or_a_table_of_primary_and_fallbacks(home: SettingsDirectory) -> None:
    plain = home.load('[models]\ndefault = "openai/gpt-5.2"').settings.models.default
    table = home.load('[models.default]\nprimary = "openai/gpt-5.2"\nfallbacks = ["groq/x"]').settings.models.default
    assert plain == ModelChoice(primary="openai/gpt-5.2")
    assert table == ModelChoice(primary="openai/gpt-5.2", fallbacks=("groq/x",))


@pytest.mark.spec("C105.setting")
def test_the_model_of_a_declared_agent_is_a_text_or_a_table_of_primary_and_fallbacks(home: SettingsDirectory) -> None:
    text = """
    [agents.ada]
    model = { primary = "openai/gpt-5.2", fallbacks = ["groq/x", "local"] }
    [agents.bo]
    model = "openai/gpt-5.2"
    [agents.cy]
    model = { fallbacks = [] }
    [agents.di]
    model = "guide"
    fallbacks = ["openai/gpt-5.2"]
    """
    ada, bo, cy, di = home.load(text).declarations.agents
    assert (ada.model, ada.fallbacks) == ("openai/gpt-5.2", ("groq/x", "local"))
    assert (bo.model, bo.fallbacks) == ("openai/gpt-5.2", None)
    assert (cy.model, cy.fallbacks) == ("", ())
    assert (di.model, di.fallbacks) == ("guide", ("openai/gpt-5.2",))


def test_the_model_of_a_declared_agent_overrides_that_of_its_template_and_parts_can_be_cleared(
    home: SettingsDirectory,
) -> None:
    text = """
    [templates.careful]
    model = { primary = "openai/gpt-5.2", fallbacks = ["groq/x"] }
    effort = "high"
    [agents.ada]
    extends = "careful"
    model = "guide"
    effort = "default"
    [agents.bo]
    extends = "careful"
    clear = ["model.fallbacks"]
    [agents.cy]
    extends = "careful"
    model = { primary = "default" }
    """
    ada, bo, cy = home.load(text).declarations.agents
    assert (ada.model, ada.fallbacks, ada.effort) == ("guide", None, None)
    assert (bo.model, bo.fallbacks, bo.effort) == ("openai/gpt-5.2", None, "high")
    assert (cy.model, cy.fallbacks) == ("", ("groq/x",))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("[providers.anthropic]\nkye = 1", "providers.anthropic.kye"),
        ('[providers.mine]\nformat = "openai-chat"', "providers.mine.url"),
        ('[providers.mine]\nurl = "ftp://x"', "providers.mine.url"),
        ('[providers.mine]\nurl = "https://u:p@x/v1"', "providers.mine.url"),
        ('[providers.openai]\nformat = "soap"', "providers.openai.format"),
        ('[providers.openai]\nquirks = ["odd"]', "providers.openai.quirks[0]"),
        ('[providers.openai]\nheaders = { "a b" = "x" }', 'providers.openai.headers."a b"'),
        ('[providers.openai]\nheaders = { "a" = "x\\ny" }', "providers.openai.headers.a"),
        ("[providers.openai]\n[providers.OpenAI]", "providers.OpenAI"),
        ("[models]\ndefault = 3", "models.default"),
        ('[models]\ndefault = ""', "models.default.primary"),
        ('[models]\ndefault = "openai/"', "models.default.primary"),
        ('[models]\ndefault = "/gpt-5"', "models.default.primary"),
        ('[models]\ndefault = { primary = "openai/a b" }', "models.default.primary"),
        ('[models]\ndefault = { first = "a" }', "models.default.first"),
        ('[models]\ndefault = "opnai/gpt-5"', "models.default.primary"),
        ('[models]\nallow = ["nobody/*"]', "models.allow[0]"),
        ('[models]\nimage = { fallbacks = ["x/y"] }', "models.image.fallbacks[0]"),
        ('[models.entries."openai/"]', 'models.entries."openai/"'),
        ('[models.entries."openai/x"]\nalias = "a/b"', 'models.entries."openai/x".alias'),
        ('[models.entries."openai/x"]\nalias = "7"', 'models.entries."openai/x".alias'),
        ('[models.entries."openai/x"]\nefforts = ["very"]', 'models.entries."openai/x".efforts[0]'),
        ('[models.entries."openai/x"]\ninput_usd = -1', 'models.entries."openai/x".input_usd'),
        ('[models.entries."openai/x"]\nparams = { day = 2026-01-01 }', 'models.entries."openai/x".params.day'),
        ('[models.entries."openai/x"]\nparams = { a = [nan] }', 'models.entries."openai/x".params.a[0]'),
        ("[context]\ncompact = {}", "context.compact"),
        ("[context.compaction]\nmax_history_share = 2", "context.compaction.max_history_share"),
        ("[budgets]\ninstance_day_usd = -1", "budgets.instance_day_usd"),
        ("[server.models]\nretries_max = 1", "server.models"),
        ('[agents.ada]\nmodel = { primary = "a/" }', "agents.ada.model.primary"),
        ('[agents.ada]\nmodel = { frist = "a/b" }', "agents.ada.model.frist"),
        ('[agents.ada]\nmodel = { fallbacks = ["a"] }\nfallbacks = ["b"]', "agents.ada.fallbacks"),
        ('[agents.ada]\nfallbacks = [""]', "agents.ada.fallbacks[0]"),
        ("[agents.ada]\nday_microusd_max = -5", "agents.ada.day_microusd_max"),
    ],
)
def test_invalid_model_settings_are_refused_with_path_and_line(home: SettingsDirectory, text: str, path: str) -> None:
    fault = home.fault(text)
    assert fault.path == path
    assert fault.position.line is not None and fault.because and fault.try_this


@pytest.mark.spec("C104")
def test_two_models_with_one_alias_in_the_settings_are_refused(home: SettingsDirectory) -> None:
    fault = home.fault('[models.entries."openai/a"]\nalias = "Fast"\n[models.entries."groq/b"]\nalias = "fast"')
    assert fault.path == 'models.entries."groq/b".alias' and fault.position.line == 4
    assert "already the alias of openai/a" in fault.sentence


def test_a_misspelled_provider_in_the_settings_is_refused_with_the_nearest_name(home: SettingsDirectory) -> None:
    assert "`openai`" in home.fault('[models]\ndefault = "opnai/gpt-5"').try_this
    assert "[providers.google]" in home.fault("[providers.gemini]").try_this


@pytest.mark.parametrize(
    "text",
    [
        '[providers.openai]\nkey = "sk-very-private"',
        '[providers.openai]\nheaders = { authorization = "Bearer sk-very-private" }',
        '[providers.openai]\nheaders = { x-gate = "${PRIVATE}" }',
        '[providers.openai]\nheaders = { x-goog-api-key = "sk-very-private" }',
        '[models.entries."openai/x"]\nparams = { api_key = "sk-very-private" }',
    ],
)
def test_a_provider_key_in_plain_text_in_the_settings_is_refused_and_not_shown_in_the_error(
    home: SettingsDirectory, text: str
) -> None:
    fault = home.fault(text, PRIVATE="sk-very-private")
    assert "secret" in fault.sentence and "env" in fault.try_this
    assert "sk-very-private" not in str(fault)


def test_a_secret_reference_in_the_params_of_a_model_setting_is_refused(home: SettingsDirectory) -> None:
    fault = home.fault('[models.entries."openai/x"]\nparams = { api_key = { env = "X" } }')
    assert "which JSON cannot express" in fault.sentence


def test_a_provider_alias_is_accepted_in_model_settings(home: SettingsDirectory) -> None:
    assert home.load('[models]\ndefault = "Gemini/gemini-2.5-flash"').settings.models.default.primary
    assert set(PROVIDER_ALIASES.values()) <= KNOWN_PROVIDERS and not set(PROVIDER_ALIASES) & KNOWN_PROVIDERS


def test_model_setting_changes_are_reported_by_path_and_need_no_restart(home: SettingsDirectory) -> None:
    before = home.load(ALL_MODEL_SETTINGS)
    home.write(ALL_MODEL_SETTINGS.replace("retries_max = 1", "retries_max = 3")
        .replace('alias = "opus"', 'alias = "big"')
        .replace('["opus",', '["big",').replace('primary = "opus"', 'primary = "big"')
        .replace("[providers.rack]", "[providers.groq]\n[providers.rack]\nrequests_per_minute = 9"))  # fmt: skip
    found = reload_configuration(before, home.environment)
    assert {change.path: change.effect for change in found.changes} == {
        "models.allow": SettingEffect.MESSAGE,
        "models.default.primary": SettingEffect.MESSAGE,
        'models.entries."anthropic/claude-opus-4-5".alias': SettingEffect.MESSAGE,
        "models.retries_max": SettingEffect.HOT,
        "providers.rack.requests_per_minute": SettingEffect.HOT,
    }
    assert found.settings.models.retries_max == 3 and not found.pending_restart


@pytest.mark.spec("H80")
def test_the_effort_of_an_agent_in_the_settings_must_be_a_known_level_or_default(home: SettingsDirectory) -> None:
    levels = ("none", "low", "medium", "high", "xhigh")
    for level in levels:
        assert home.load(f'[agents.ada]\neffort = "{level}"').declarations.agents[0].effort == level
    assert home.load('[agents.ada]\neffort = "default"').declarations.agents[0].effort is None
    fault = home.fault('[agents.ada]\neffort = "extreme"')
    assert all(level in fault.sentence for level in levels)
