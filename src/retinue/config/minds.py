"""What the staff thinks with: providers, models, how a context is kept in bounds, and what may be spent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, cast

from retinue.config.secret import Secret
from retinue.config.settings import Effect, setting

DOLLARS_MAX = 1e9


class WireFormat(StrEnum):
    OPENAI_CHAT = "openai-chat"
    OPENAI_RESPONSES = "openai-responses"
    ANTHROPIC = "anthropic"
    GOOGLE = "google"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderSettings:
    """Someone who sells models, or a server of one's own. What is not set is as the house knows it of that name."""

    format: WireFormat | None = setting(None, "How it is spoken to; `openai-chat` fits most.", effect=Effect.MESSAGE)
    url: str | None = setting(None, "Where it is reached.", effect=Effect.MESSAGE, example="http://127.0.0.1:11434/v1")
    key: Secret | None = setting(None, "Where its key is: `env` or `file`.", effect=Effect.MESSAGE)
    headers: Mapping[str, str] = setting(
        cast("Mapping[str, str]", {}), "Headers that every request carries.", effect=Effect.MESSAGE
    )
    requests_per_minute: int | None = setting(None, "Requests to it in a minute.", least=1)
    tokens_per_minute: int | None = setting(None, "Tokens, read and written, in a minute.", least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """What is known of one model, and what goes with each request to it."""

    alias: str | None = setting(None, "A short name for it.", effect=Effect.MESSAGE)
    window_tokens: int | None = setting(None, "How much it can have in mind.", least=1)
    output_tokens_max: int | None = setting(None, "The longest reply asked for.", least=1)
    vision: bool | None = setting(None, "Whether it sees images.")
    efforts: tuple[str, ...] | None = setting(None, "Which levels of effort it takes.")
    input_usd: float | None = setting(None, "Dollars for a million tokens read.", least=0, most=DOLLARS_MAX)
    output_usd: float | None = setting(None, "Dollars for a million tokens written.", least=0, most=DOLLARS_MAX)
    cache_read_usd: float | None = setting(None, "Dollars for a million read from its cache.", least=0)
    cache_write_usd: float | None = setting(None, "Dollars for a million written to its cache.", least=0)
    params: Mapping[str, Any] = setting(
        cast("Mapping[str, Any]", {}), "What goes into its requests as it stands here.", effect=Effect.MESSAGE
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """Which model is asked first, and which after it."""

    primary: str | None = setting(None, "The model to ask, as PROVIDER/MODEL or an alias.", effect=Effect.MESSAGE)
    fallbacks: tuple[str, ...] = setting((), "Which to ask, in order, when that one fails.", effect=Effect.MESSAGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Models:
    """Which models the staff uses where an agent does not say."""

    default: ModelChoice = ModelChoice()
    image: ModelChoice = ModelChoice()  # asked instead where a picture came in, and the agent's model is blind
    utility: ModelChoice = ModelChoice()  # for summaries and other small work; not set: the agent's own
    allow: tuple[str, ...] = setting((), "If set, no other models are asked than these.", effect=Effect.MESSAGE)
    retries_max: int = setting(
        2, "How often a busy or broken provider is asked again before the next.", least=0, most=10
    )
    first_byte_s: float = setting(120.0, "How long a reply may take to begin.", least=1, most=3600)
    silence_s: float = setting(120.0, "How long a reply may pause once it has begun.", least=1, most=3600)


class CompactionMode(StrEnum):
    DEFAULT = "default"  # one summary of what is left out
    SAFEGUARD = "safeguard"  # in parts, with the files and failures of what is left out


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFlush:
    enabled: bool = setting(True, "Whether an agent may write to its memory before its context is compacted.")
    soft_threshold_tokens: int = setting(4_000, "How long before compaction it is asked to.", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compaction:
    """When a context is told in short, and what of it stays as it was."""

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
    allow: tuple[str, ...] = setting(("*",), "Tools whose results may be pruned.")
    deny: tuple[str, ...] = setting((), "Tools whose results never are.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftTrim:
    max_chars: int = setting(4_000, "Longer results are trimmed.", least=0)
    head_chars: int = setting(1_500, "What is kept of the beginning.", least=0)
    tail_chars: int = setting(1_500, "What is kept of the end.", least=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class HardClear:
    enabled: bool = setting(True, "Whether results are taken out whole where trimming was not enough.")
    placeholder: str = setting("[Old tool result content cleared]", "What stands in their place.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """Old tool results, made shorter in what is sent and in nothing that is kept."""

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
    """How much an agent has in mind."""

    emergency_context_limit: int = setting(
        200_000, "At so many tokens, by our estimate, a context is begun afresh before any model is asked.", least=1
    )
    compaction: Compaction = Compaction()
    pruning: Pruning = Pruning()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What may be spent, in dollars. A day and a month are the owner's. What is not set has no cap."""

    house_day_usd: float | None = setting(None, "By everyone, in a day.", least=0, most=DOLLARS_MAX)
    house_month_usd: float | None = setting(None, "By everyone, in a month.", least=0, most=DOLLARS_MAX)
    person_day_usd: float | None = setting(None, "For one person, in a day.", least=0, most=DOLLARS_MAX)
    person_month_usd: float | None = setting(None, "For one person, in a month.", least=0, most=DOLLARS_MAX)
    run_usd: float | None = setting(None, "By one run.", least=0, most=DOLLARS_MAX)
    tree_usd: float | None = setting(None, "By one run and all that came of it.", least=0, most=DOLLARS_MAX)
    warn_share: float = setting(0.8, "The share of a cap at which its owner is warned.", least=0.01, most=1)
