"""Model settings: providers, models, context limits and budgets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar, cast

from retinue.config import validators
from retinue.config.secret import Secret
from retinue.config.setting_metadata import Effect, setting

DOLLARS_MAX = 1e9

# Providers known by name; `models/providers` has their URLs and wire formats.
PROVIDERS = frozenset(
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


class Auth(StrEnum):
    """How a key is sent to a provider."""

    BEARER = "bearer"  # in the header `authorization`
    API_KEY = "api-key"  # in the header `x-api-key`
    NONE = "none"  # no key is needed


class Quirk(StrEnum):
    """Deviations of some servers from their wire format. The format modules use the same names."""

    MAX_COMPLETION_TOKENS = "max-completion-tokens"  # its name for the maximum reply length
    NO_STREAM_OPTIONS = "no-stream-options"  # rejects requests for usage
    NINE_LETTER_IDS = "nine-letter-ids"  # call ids must have nine letters or digits
    ANSWER_AFTER_RESULTS = "answer-after-results"  # an assistant message must follow tool results
    REASONING_BACK = "reasoning-back"  # needs its reasoning back with the calls that followed from it
    ADAPTIVE = "adaptive"  # chooses the length of its reasoning itself, within an effort
    THINKING_LEVEL = "thinking-level"  # takes a reasoning level instead of a number of tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """A provider of models, or your own server.

    Unset values come from the built-in provider of that name.
    """

    format: WireFormat | None = setting(None, "How it is spoken to; `openai-chat` fits most.", effect=Effect.MESSAGE)
    url: str | None = setting(
        None,
        "Where it is reached.",
        effect=Effect.MESSAGE,
        check=validators.public_url,
        example="http://127.0.0.1:11434/v1",
    )
    name: str | None = setting(
        None, "What people call it.", effect=Effect.MESSAGE, check=validators.display_name, example="The shed"
    )
    auth: Auth | None = setting(None, "How it is shown its key. Not set: as its format has it.", effect=Effect.MESSAGE)
    key: Secret | None = setting(None, "Where its key is: `env` or `file`.", effect=Effect.MESSAGE)
    headers: Mapping[str, str | Secret] = setting(
        cast("Mapping[str, str | Secret]", {}),
        "Headers that every request carries; those that hold a secret say where it is.",
        effect=Effect.MESSAGE,
        check=validators.header,
        example="x-title",
    )
    quirks: tuple[Quirk, ...] = setting((), "What it does its own way.", effect=Effect.MESSAGE)
    window_tokens: int | None = setting(None, "How much its models can have in mind.", least=1)
    requests_per_minute: int | None = setting(None, "Requests to it in a minute.", least=1)
    tokens_per_minute: int | None = setting(None, "Tokens, read and written, in a minute.", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Facts about one model, and parameters for its requests."""

    alias: str | None = setting(
        None, "A short name for it.", effect=Effect.MESSAGE, check=validators.model_alias, example="opus"
    )
    window_tokens: int | None = setting(None, "How much it can have in mind.", least=1)
    output_tokens_max: int | None = setting(None, "The longest reply asked for.", least=1)
    vision: bool | None = setting(None, "Whether it sees images.")
    tools: bool | None = setting(None, "Whether it can call tools.")
    efforts: tuple[str, ...] | None = setting(
        None, "Which levels of effort it takes.", check=validators.effort, example="medium"
    )
    input_usd: float | None = setting(None, "Dollars for a million tokens read.", least=0, most=DOLLARS_MAX)
    output_usd: float | None = setting(None, "Dollars for a million tokens written.", least=0, most=DOLLARS_MAX)
    cache_read_usd: float | None = setting(
        None, "Dollars for a million read from its cache.", least=0, most=DOLLARS_MAX
    )
    cache_write_usd: float | None = setting(
        None, "Dollars for a million written to its cache.", least=0, most=DOLLARS_MAX
    )
    params: Mapping[str, Any] = setting(
        cast("Mapping[str, Any]", {}), "What goes into its requests as it stands here.", effect=Effect.MESSAGE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """Which model is called first, and its fallbacks. A plain string is the first."""

    SHORT: ClassVar[str] = "primary"

    primary: str | None = setting(
        None,
        "The model to ask, as PROVIDER/MODEL or an alias.",
        effect=Effect.MESSAGE,
        check=validators.model_reference,
        example="anthropic/claude-opus-5-5",
    )
    fallbacks: tuple[str, ...] = setting(
        (),
        "Which to ask, in order, when that one fails.",
        effect=Effect.MESSAGE,
        check=validators.model_reference,
        example="openai/gpt-6.1-sol",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Which models agents use by default, and facts about single models."""

    default: ModelChoice = setting(ModelChoice(), "What an agent thinks with that names no model of its own.")
    image: ModelChoice = setting(ModelChoice(), "Asked first where an image came in that the agent's model cannot see.")
    utility: ModelChoice = setting(
        ModelChoice(), "For summaries and other small work. Not set: what the agent thinks with."
    )
    allow: tuple[str, ...] = setting(
        (),
        "If set, no other models are asked than these: references, aliases or patterns. "
        "The default model, and those of the house itself, need no mention.",
        effect=Effect.MESSAGE,
        check=validators.model_reference,
        example="anthropic/*",
    )
    retries_max: int = setting(
        2, "How often a busy or broken provider is asked again before the next.", least=0, most=10
    )
    first_byte_s: float = setting(120.0, "How long a reply may take to begin.", least=1, most=3600)
    silence_s: float = setting(120.0, "How long a reply may pause once it has begun.", least=1, most=3600)
    entries: Mapping[str, ModelSettings] = field(default_factory=dict[str, ModelSettings])


class CompactionMode(StrEnum):
    DEFAULT = "default"  # one summary of the removed records
    SAFEGUARD = "safeguard"  # in parts, with the files and failures of the removed records


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFlush:
    """What an agent may save to memory before its context is compacted."""

    enabled: bool = setting(True, "Whether an agent may write to its memory before its context is compacted.")
    soft_threshold_tokens: int = setting(4_000, "How long before compaction it is asked to.", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """When a context is compacted, and how much of it stays unchanged."""

    mode: CompactionMode = setting(CompactionMode.DEFAULT, "How the summary is made.")
    start_share: float = setting(0.75, "The share of the window at which it starts.", least=0.1, most=0.95)
    reserve_tokens_floor: int = setting(20_000, "What must stay free for a reply, whatever the share.", least=0)
    max_history_share: float = setting(0.5, "The share of the window that what is kept may take.", least=0.05, most=0.9)
    timeout_s: float = setting(120.0, "How long a summary may take.", least=1, most=3600)
    memory_flush: MemoryFlush = MemoryFlush()


class PruningMode(StrEnum):
    OFF = "off"
    CACHE_TTL = "cache-ttl"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunedTools:
    """Patterns over tool names. Deny wins."""

    allow: tuple[str, ...] = setting(("*",), "Tools whose results may be pruned.")
    deny: tuple[str, ...] = setting((), "Tools whose results never are.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftTrim:
    """How much of a long result is kept."""

    max_chars: int = setting(4_000, "Longer results are trimmed.", least=0)
    head_chars: int = setting(1_500, "What is kept of the beginning.", least=0)
    tail_chars: int = setting(1_500, "What is kept of the end.", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HardClear:
    """What replaces a result that is removed."""

    enabled: bool = setting(True, "Whether results are taken out whole where trimming was not enough.")
    placeholder: str = setting("[Old tool result content cleared]", "What stands in their place.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """Old tool results, shortened in what is sent to the model but not in what is stored."""

    mode: PruningMode = setting(PruningMode.OFF, "Whether old results are pruned once the provider's cache is cold.")
    ttl_s: float = setting(300.0, "How long that cache stays warm.", least=0)
    keep_last_assistants: int = setting(3, "Replies whose results stay as they are.", least=0)
    soft_trim_ratio: float = setting(0.3, "The share of the window from which results are trimmed.", least=0, most=1)
    hard_clear_ratio: float = setting(0.5, "The share of the window from which they are cleared.", least=0, most=1)
    min_prunable_chars: int = setting(50_000, "Below so many, clearing is not worth it.", least=0)
    tools: PrunedTools = PrunedTools()
    soft_trim: SoftTrim = SoftTrim()
    hard_clear: HardClear = HardClear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Limits of an agent's context."""

    emergency_context_limit: int = setting(
        200_000, "At so many tokens, by our estimate, a context is begun afresh before any model is asked.", least=1
    )
    compaction: Compaction = Compaction()
    pruning: Pruning = Pruning()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """Budgets in dollars. Unset means no limit.

    Days and months are in the owner's time zone.
    """

    house_day_usd: float | None = setting(None, "By everyone, in a day.", least=0, most=DOLLARS_MAX)
    house_month_usd: float | None = setting(None, "By everyone, in a month.", least=0, most=DOLLARS_MAX)
    person_day_usd: float | None = setting(None, "For one person, in a day.", least=0, most=DOLLARS_MAX)
    person_month_usd: float | None = setting(None, "For one person, in a month.", least=0, most=DOLLARS_MAX)
    run_usd: float | None = setting(None, "By one run.", least=0, most=DOLLARS_MAX)
    tree_usd: float | None = setting(None, "By one run and all that came of it.", least=0, most=DOLLARS_MAX)
    warn_share: float = setting(0.8, "The share of a cap at which its owner is warned.", least=0.01, most=1)
