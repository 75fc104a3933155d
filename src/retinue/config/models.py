"""Model settings: providers, models, context limits and budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, cast

from retinue.config import validators
from retinue.config.secret import SecretReference
from retinue.config.setting_metadata import SettingEffect, setting

USD_MAX = 1e9

# Providers known by name; `models/providers` has their URLs and wire formats.
KNOWN_PROVIDERS = frozenset(
    {
        "anthropic",
        "bridge",
        "cerebras",
        "deepseek",
        "fireworks",
        "google",
        "groq",
        "lmstudio",
        "local",
        "mistral",
        "moonshot",
        "ollama",
        "openai",
        "openrouter",
        "together",
        "vllm",
        "xai",
        "zai",
    }
)
PROVIDER_ALIASES: Mapping[str, str] = {
    "claude": "anthropic",
    "gemini": "google",
    "google-ai": "google",
    "grok": "xai",
    "kimi": "moonshot",
    "lm-studio": "lmstudio",
    "mistralai": "mistral",
    "moonshotai": "moonshot",
    "open-router": "openrouter",
    "togetherai": "together",
    "together-ai": "together",
    "x-ai": "xai",
    "x.ai": "xai",
    "z-ai": "zai",
    "z.ai": "zai",
}


class WireFormat(StrEnum):
    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    GOOGLE = "google"


class ProviderAuth(StrEnum):
    """How requests to a provider contain its key."""

    BEARER = "bearer"  # in the header `authorization`
    API_KEY = "api-key"  # in the header `x-api-key`
    NONE = "none"  # no key is needed


class ProviderQuirk(StrEnum):
    """Deviations of some model servers from their wire format. The modules of the formats use the same names."""

    MAX_COMPLETION_TOKENS = "max-completion-tokens"  # the maximum reply length has this name
    NO_STREAM_OPTIONS = "no-stream-options"  # the server rejects requests that ask for usage
    NINE_CHARACTER_IDS = "nine-character-ids"  # call ids must have nine letters or digits
    ASSISTANT_AFTER_RESULTS = "assistant-after-results"  # an assistant message must follow tool results
    RESEND_REASONING = "resend-reasoning"  # the reasoning must be sent back with the calls that followed from it
    ADAPTIVE = "adaptive"  # the model chooses the length of its reasoning, within an effort
    THINKING_LEVEL = "thinking-level"  # a request has a reasoning level instead of a number of tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """A provider of models, or your own model server.

    Unset values come from the built-in provider of that name.
    """

    format: WireFormat | None = setting(
        None, "API format of the provider. Most providers accept `openai-chat`.", effect=SettingEffect.MESSAGE
    )
    url: str | None = setting(
        None,
        "Base URL of the provider.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_public_url,
        example="http://127.0.0.1:11434/v1",
    )
    name: str | None = setting(
        None,
        "Name that people see.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_display_name,
        example="The shed",
    )
    auth: ProviderAuth | None = setting(
        None, "How the API key is sent. Default: the usual way for the API format.", effect=SettingEffect.MESSAGE
    )
    key: SecretReference | None = setting(
        None, "Location of the API key: `env` or `file`.", effect=SettingEffect.MESSAGE
    )
    headers: Mapping[str, str | SecretReference] = setting(
        cast("Mapping[str, str | SecretReference]", {}),
        "Headers to send with every request. Write a secret value as its location.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_header,
        example="x-title",
    )
    quirks: tuple[ProviderQuirk, ...] = setting(
        (), "Ways in which the provider deviates from the API format.", effect=SettingEffect.MESSAGE
    )
    window_tokens: int | None = setting(None, "Context window of the provider's models, in tokens.", least=1)
    requests_per_minute: int | None = setting(None, "Maximum number of requests per minute.", least=1)
    tokens_per_minute: int | None = setting(None, "Maximum number of input and output tokens per minute.", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelEntry:
    """Facts about one model, and parameters for its requests."""

    alias: str | None = setting(
        None,
        "Short name that can be used instead of PROVIDER/MODEL.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_model_alias,
        example="opus",
    )
    window_tokens: int | None = setting(None, "Context window, in tokens.", least=1)
    output_tokens_max: int | None = setting(None, "Maximum length of a reply, in tokens.", least=1)
    vision: bool | None = setting(None, "Whether the model accepts images.")
    tools: bool | None = setting(None, "Whether the model can call tools.")
    efforts: tuple[str, ...] | None = setting(
        None, "Reasoning efforts that the model accepts.", check=validators.check_effort, example="medium"
    )
    input_usd: float | None = setting(None, "Price of a million input tokens, in US dollars.", least=0, most=USD_MAX)
    output_usd: float | None = setting(None, "Price of a million output tokens, in US dollars.", least=0, most=USD_MAX)
    cache_read_usd: float | None = setting(
        None, "Price of a million input tokens read from the cache, in US dollars.", least=0, most=USD_MAX
    )
    cache_write_usd: float | None = setting(
        None, "Price of a million input tokens written to the cache, in US dollars.", least=0, most=USD_MAX
    )
    params: Mapping[str, Any] = setting(
        cast("Mapping[str, Any]", {}),
        "Additional fields of each request to the model, sent unchanged.",
        effect=SettingEffect.MESSAGE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """Which model is called first, and its fallbacks. A plain string sets only the first model."""

    SHORT: ClassVar[str] = "primary"

    primary: str | None = setting(
        None,
        "Model to use first, as PROVIDER/MODEL or an alias.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_model_reference,
        example="anthropic/claude-opus-5-5",
    )
    fallbacks: tuple[str, ...] = setting(
        (),
        "Fallback models, in order. Each is used if the model before it fails.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_model_reference,
        example="openai/gpt-6.1-sol",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRoutingSettings:
    """Which models agents use by default, and facts about individual models."""

    default: ModelChoice = setting(ModelChoice(), "Model for agents without a model of their own.")
    image: ModelChoice = setting(ModelChoice(), "Model to try first for images that the agent's model does not accept.")
    utility: ModelChoice = setting(
        ModelChoice(), "Model for summaries and other small tasks. Default: the agent's model."
    )
    allow: tuple[str, ...] = setting(
        (),
        "Models that may be used: references, aliases or patterns. The default model and built-in models are "
        "always allowed. Default: all.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_model_reference,
        example="anthropic/*",
    )
    retries_max: int = setting(
        2,
        "Maximum number of retries after a provider's rate limit or error, before the next model is tried.",
        least=0,
        most=10,
    )
    first_byte_timeout_s: float = setting(
        120.0, "Time to wait for the first part of a reply, in seconds.", least=1, most=3600
    )
    stream_idle_timeout_s: float = setting(
        120.0, "Time to wait for the next part of a reply, in seconds.", least=1, most=3600
    )
    entries: Mapping[str, ModelEntry] = field(default_factory=dict[str, ModelEntry])


class CompactionMode(StrEnum):
    DEFAULT = "default"  # one summary of the removed records
    SAFEGUARD = "safeguard"  # a summary in parts, with the files and failures of the removed records


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFlushSettings:
    """Whether and when an agent may write to its memory before its context is compacted."""

    enabled: bool = setting(True, "Whether an agent may write to its memory before its context is compacted.")
    soft_threshold_tokens: int = setting(
        4_000, "How many tokens before the compaction limit the agent may write to its memory.", least=0
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """When a context is compacted, and how much of it stays unchanged."""

    mode: CompactionMode = setting(
        CompactionMode.DEFAULT,
        "How the summary is written: `default` (one summary), or `safeguard` (in parts, with the files and failures "
        "of the removed records).",
    )
    start_share: float = setting(0.75, "Share of the context window at which compaction starts.", least=0.1, most=0.95)
    reserve_tokens_floor: int = setting(
        20_000, "Minimum number of tokens that stay free for a reply, even if `start_share` leaves fewer.", least=0
    )
    max_history_share: float = setting(
        0.5, "Maximum share of the context window for the records that stay unchanged.", least=0.05, most=0.9
    )
    timeout_s: float = setting(120.0, "Maximum time to write a summary, in seconds.", least=1, most=3600)
    memory_flush: MemoryFlushSettings = MemoryFlushSettings()


class PruningMode(StrEnum):
    OFF = "off"
    CACHE_TTL = "cache-ttl"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedToolSettings:
    """Tools whose results are pruned, as patterns for tool names. If both lists match a tool, `deny` wins."""

    allow: tuple[str, ...] = setting(("*",), "Tools whose results may be pruned.")
    deny: tuple[str, ...] = setting((), "Tools whose results are never pruned.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftTrimSettings:
    """How much of a long tool result is kept."""

    max_chars: int = setting(4_000, "Length above which a tool result is trimmed, in characters.", least=0)
    head_chars: int = setting(1_500, "Number of characters that are kept from the beginning.", least=0)
    tail_chars: int = setting(1_500, "Number of characters that are kept from the end.", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HardClearSettings:
    """What replaces an old tool result that is removed from the context."""

    enabled: bool = setting(True, "Whether whole tool results are removed if trimming is not enough.")
    placeholder: str = setting("[Old tool result content cleared]", "Text that replaces a removed result.")


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningSettings:
    """How old tool results are shortened before they are sent to the model. The store keeps them in full."""

    mode: PruningMode = setting(
        PruningMode.OFF, "Whether old tool results are pruned after the provider's cache has expired (`cache-ttl`)."
    )
    ttl_s: float = setting(300.0, "Time until the provider's cache expires, in seconds.", least=0)
    keep_last_assistants: int = setting(3, "Number of most recent replies whose tool results are not pruned.", least=0)
    soft_trim_ratio: float = setting(
        0.3, "Share of the context window at which tool results are trimmed.", least=0, most=1
    )
    hard_clear_ratio: float = setting(
        0.5, "Share of the context window at which tool results are removed.", least=0, most=1
    )
    min_prunable_chars: int = setting(
        50_000, "Minimum number of characters that pruning could remove. Below it, no tool result is removed.", least=0
    )
    tools: PrunedToolSettings = PrunedToolSettings()
    soft_trim: SoftTrimSettings = SoftTrimSettings()
    hard_clear: HardClearSettings = HardClearSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """Limits of an agent's context."""

    emergency_context_limit: int = setting(
        200_000,
        "Maximum estimated size of a context, in tokens. A larger context is reset before a model is called.",
        least=1,
    )
    compaction: CompactionSettings = CompactionSettings()
    pruning: PruningSettings = PruningSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Maximum costs, in US dollars. Default: no limit.

    Days and months are in the owner's time zone.
    """

    instance_day_usd: float | None = setting(
        None, "Maximum cost of this server in a day, in US dollars. Default: no limit.", least=0, most=USD_MAX
    )
    instance_month_usd: float | None = setting(
        None, "Maximum cost of this server in a month, in US dollars. Default: no limit.", least=0, most=USD_MAX
    )
    person_day_usd: float | None = setting(
        None, "Maximum cost for one person in a day, in US dollars. Default: no limit.", least=0, most=USD_MAX
    )
    person_month_usd: float | None = setting(
        None, "Maximum cost for one person in a month, in US dollars. Default: no limit.", least=0, most=USD_MAX
    )
    run_usd: float | None = setting(
        None, "Maximum cost of one run, in US dollars. Default: no limit.", least=0, most=USD_MAX
    )
    tree_usd: float | None = setting(
        None,
        "Maximum cost of one run and all runs it started, in US dollars. Default: no limit.",
        least=0,
        most=USD_MAX,
    )
    warn_share: float = setting(0.8, "Share of a budget at which a run reports a warning.", least=0.01, most=1)
