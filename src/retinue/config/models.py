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
    """How the API key is sent to a provider."""

    BEARER = "bearer"  # in the header `authorization`
    API_KEY = "api-key"  # in the header `x-api-key`
    NONE = "none"  # no key is needed


class ProviderQuirk(StrEnum):
    """Ways in which some model servers deviate from their API format. The code for each format uses the same names."""

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

    Unset values come from the built-in provider with the same name.
    """

    format: WireFormat | None = setting(
        None, "Format of the provider's API. Most providers accept `openai-chat`.", effect=SettingEffect.MESSAGE
    )
    url: str | None = setting(
        None,
        "Base URL of the provider's API. Required unless the provider is built in.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_public_url,
        example="http://127.0.0.1:11434/v1",
    )
    name: str | None = setting(
        None,
        "Name under which people see the provider.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_display_name,
        example="The shed",
    )
    auth: ProviderAuth | None = setting(
        None,
        "How the API key is sent: in the header `authorization` (`bearer`), in the header `x-api-key` (`api-key`), or "
        "not at all (`none`). Default: the usual way for the API format.",
        effect=SettingEffect.MESSAGE,
    )
    key: SecretReference | None = setting(
        None,
        "Location of the API key: an environment variable (`env`) or a file (`file`).",
        effect=SettingEffect.MESSAGE,
    )
    headers: Mapping[str, str | SecretReference] = setting(
        cast("Mapping[str, str | SecretReference]", {}),
        "Headers of every request to the provider. For a secret value, write its location.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_header,
        example="x-title",
    )
    quirks: tuple[ProviderQuirk, ...] = setting(
        (),
        "Ways in which the provider deviates from the API format. Default: none, or those of the built-in provider.",
        effect=SettingEffect.MESSAGE,
    )
    window_tokens: int | None = setting(None, "Context window of the provider's models, in tokens.", least=1)
    requests_per_minute: int | None = setting(
        None,
        "Maximum number of requests to the provider per minute. Further requests wait. Default: no limit.",
        least=1,
    )
    tokens_per_minute: int | None = setting(
        None,
        "Maximum number of input and output tokens of the provider's models per minute. Further requests wait. "
        "Default: no limit.",
        least=1,
    )


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
    window_tokens: int | None = setting(None, "Context window of the model, in tokens.", least=1)
    output_tokens_max: int | None = setting(None, "Maximum length of a reply of the model, in tokens.", least=1)
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
        "Additional fields of the JSON body of each request to the model. They are sent unchanged.",
        effect=SettingEffect.MESSAGE,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """The model that is called first, and its fallbacks. A plain string in the file sets only the first model."""

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

    default: ModelChoice = setting(ModelChoice(), "Model of agents for which no model is set.")
    image: ModelChoice = setting(
        ModelChoice(), "Model to try first for a message with images, if the agent's model does not accept images."
    )
    utility: ModelChoice = setting(
        ModelChoice(), "Model for summaries and other small tasks. Default: the agent's model."
    )
    allow: tuple[str, ...] = setting(
        (),
        "Models that may be used: PROVIDER/MODEL, aliases or patterns with `*`. The default model and built-in models "
        "are always allowed. Default: all models.",
        effect=SettingEffect.MESSAGE,
        check=validators.check_model_reference,
        example="anthropic/*",
    )
    retries_max: int = setting(
        2,
        "Maximum number of retries of a model call after a rate limit or another error from the provider. After that, "
        "the next model is tried.",
        least=0,
        most=10,
    )
    first_byte_timeout_s: float = setting(
        120.0, "Maximum time until the first part of a streamed reply arrives, in seconds.", least=1, most=3600
    )
    stream_idle_timeout_s: float = setting(
        120.0, "Maximum time between two parts of a streamed reply, in seconds.", least=1, most=3600
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
        4_000,
        "Once the context is this many tokens below the size at which compaction starts, the agent may write to its "
        "memory.",
        least=0,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionSettings:
    """When a context is compacted (its older records are replaced by a summary), and how much stays unchanged."""

    mode: CompactionMode = setting(
        CompactionMode.DEFAULT,
        "How removed records are summarized: in one summary (`default`), or in parts that also list files and failures "
        "(`safeguard`).",
    )
    start_share: float = setting(
        0.75,
        "Share of the context window at which compaction starts. For example, 0.75 is three quarters.",
        least=0.1,
        most=0.95,
    )
    reserve_tokens_floor: int = setting(
        20_000,
        "Minimum number of tokens that stay free for a reply. Compaction starts earlier than `start_share` if needed.",
        least=0,
    )
    max_history_share: float = setting(
        0.5,
        "Maximum share of the context window for recent records, which compaction does not summarize.",
        least=0.05,
        most=0.9,
    )
    timeout_s: float = setting(120.0, "Maximum time to write a summary, in seconds.", least=1, most=3600)
    memory_flush: MemoryFlushSettings = MemoryFlushSettings()


class PruningMode(StrEnum):
    OFF = "off"
    CACHE_TTL = "cache-ttl"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedToolSettings:
    """Tools whose old results may be pruned, as patterns for tool names. If both lists match a tool, `deny` wins."""

    allow: tuple[str, ...] = setting(("*",), "Tools whose old results may be trimmed or removed. An empty list: none.")
    deny: tuple[str, ...] = setting((), "Tools whose results are never trimmed or removed.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftTrimSettings:
    """How long an old tool result may be before it is trimmed, and how much of it is kept."""

    max_chars: int = setting(4_000, "Length above which an old tool result is trimmed, in characters.", least=0)
    head_chars: int = setting(1_500, "Number of characters to keep from the beginning of a trimmed result.", least=0)
    tail_chars: int = setting(1_500, "Number of characters to keep from the end of a trimmed result.", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HardClearSettings:
    """Whether old tool results are removed from the context, and the text that replaces them."""

    enabled: bool = setting(
        True, "Whether old tool results are removed if trimming does not shorten the context enough."
    )
    placeholder: str = setting(
        "[Old tool result content cleared]", "Text that the model gets in place of a removed result."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningSettings:
    """How old tool results are pruned (trimmed or removed) before a model call. The store keeps them in full."""

    mode: PruningMode = setting(
        PruningMode.OFF,
        "When old tool results are pruned: never (`off`), or once the provider's prompt cache has expired "
        "(`cache-ttl`).",
    )
    ttl_s: float = setting(
        300.0, "Time after which the provider's prompt cache is assumed to have expired, in seconds.", least=0
    )
    keep_last_assistants: int = setting(
        3, "Number of most recent model replies whose tool results are not pruned.", least=0
    )
    soft_trim_ratio: float = setting(
        0.3,
        "Context size at which long results start to be trimmed, as a share of the context window.",
        least=0,
        most=1,
    )
    hard_clear_ratio: float = setting(
        0.5, "Context size at which results start to be removed, as a share of the context window.", least=0, most=1
    )
    min_prunable_chars: int = setting(
        50_000,
        "Minimum total length of all prunable results, in characters. If they are shorter, none is removed.",
        least=0,
    )
    tools: PrunedToolSettings = PrunedToolSettings()
    soft_trim: SoftTrimSettings = SoftTrimSettings()
    hard_clear: HardClearSettings = HardClearSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextSettings:
    """Maximum size of a context, and how a context is shortened."""

    emergency_context_limit: int = setting(
        200_000,
        "Maximum estimated size of a session's records, in tokens. If they are larger, the context is reset before the "
        "next model call.",
        least=1,
    )
    compaction: CompactionSettings = CompactionSettings()
    pruning: PruningSettings = PruningSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSettings:
    """Maximum costs, in US dollars. Default: no limit. A model call that could exceed a budget is refused.

    A day or a month begins at midnight in the owner's time zone.
    """

    instance_day_usd: float | None = setting(
        None, "Maximum cost of all runs in a day, in US dollars. Default: no limit.", least=0, most=USD_MAX
    )
    instance_month_usd: float | None = setting(
        None, "Maximum cost of all runs in a month, in US dollars. Default: no limit.", least=0, most=USD_MAX
    )
    person_day_usd: float | None = setting(
        None,
        "Maximum cost of all runs for one person in a day, in US dollars. Default: no limit.",
        least=0,
        most=USD_MAX,
    )
    person_month_usd: float | None = setting(
        None,
        "Maximum cost of all runs for one person in a month, in US dollars. Default: no limit.",
        least=0,
        most=USD_MAX,
    )
    run_usd: float | None = setting(
        None, "Maximum cost of one run, in US dollars. Default: no limit.", least=0, most=USD_MAX
    )
    tree_usd: float | None = setting(
        None,
        "Maximum cost of one run and all runs that it starts, directly or indirectly, in US dollars. "
        "Default: no limit.",
        least=0,
        most=USD_MAX,
    )
    warn_share: float = setting(
        0.8,
        "Share of a budget at which an answer contains a warning. For example, 0.8 is 80 percent.",
        least=0.01,
        most=1,
    )
