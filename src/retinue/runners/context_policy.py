"""Decides how to keep a context within its limits, before a model call and after an overflow.

This module only decides. A context above the emergency limit is reset. Near the limit, the agent is
asked to save memories (a memory flush), and the context is then compacted. A context that a
provider rejected as too long is compacted up to three times. If that does not help, its tool
results are truncated. As a last resort, the context is reset.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from enum import StrEnum

from msgspec import Struct

from retinue.config.models import ContextSettings
from retinue.domain.model import ModelFailureKind
from retinue.domain.record import Record, Reply, Summary
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult, ToolSpec
from retinue.models.usage_validation import is_counted
from retinue.runners.model_context import FLUSH_HEAD
from retinue.runners.result_pruner import result_chars_max
from retinue.runners.token_estimate import (
    ContextMeter,
    ContextSize,
    weight_of_record,
    weight_of_text,
    weight_of_tools,
)

OVERFLOW_COMPACTIONS_MAX = 3
RESERVE_SHARE_MAX = 0.5  # share of the tokens that instructions and tools leave free
HISTORY_TOKENS_MIN = 4_000  # minimum history before compaction starts, even if the instructions are large
KEPT_SHARE_MAX = 0.75  # the kept part leaves space before the next compaction
GAIN_SHARE_MIN = 0.05  # minimum gain as a share of the window
RETRY_GROWTH_SHARE = 0.05  # growth as a share of the window before a failed compaction is retried
FLUSH_TOKENS_MAX = 4_000  # tokens that the flush itself may use
WRITE_TOOL = "write"

# --- texts for people ---

COMPACTING_NOTICE = "This conversation has become long, so I am summarizing its older part. One moment."
OVERFLOW_NOTICE = (
    "This conversation no longer fits into the model's context window, and a summary did not help. "
    "I have reset the context: earlier messages are kept in the history, but I no longer see them. "
    "Please send your last message again; if it was very long, send it in parts or as a file."
)


def emergency_notice(tokens: int, limit: int) -> str:
    return (
        f"This conversation has reached about {tokens:,} tokens, and its limit is {limit:,} "
        "(`emergency_context_limit`). I have reset the context before calling a model: earlier messages are kept in "
        "the history, but I no longer see them. Please send your last message again."
    )


def compacted_notice(before_tokens: int, after_tokens: int, compactions: int) -> str:
    """Return the answer to a successful /compact."""
    return f"Compacted: about {before_tokens:,} tokens became {after_tokens:,} (compactions so far: {compactions})."


def compacted_before_notice(after_tokens: int, compactions: int) -> str:
    """Return the answer to a /compact whose compaction ended before a restart. The old size is then unknown."""
    return f"Compacted: about {after_tokens:,} tokens are left (compactions so far: {compactions})."


NOT_COMPACTED_NOTICE = "Not compacted: there is too little to summarize, or no model could do it."


def flush_text(today: date) -> str:
    """Return the note that asks the agent to save memories before a compaction.

    The note is part of the next model call, so it needs no extra turn.
    """
    return (
        f"{FLUSH_HEAD} The older part of your context will soon be replaced by a summary. First, before anything "
        f"else, use `{WRITE_TOOL}` to save what must not be lost and is not saved yet: decisions, promises, facts "
        f"about people, open work. Write it to memory/{today.isoformat()}.md, and keep what the file already contains. "
        "If there is nothing to save, write nothing. Then continue with what you were asked, as if this note were not "
        "here, and do not mention it. If you were asked nothing, answer NO_REPLY."
    )


# --- before a model call ---


class CompactionReason(StrEnum):
    """Why a context is compacted."""

    FULL = "nearly full"
    OVERFLOW = "refused as too long"
    REQUESTED = "requested"


class Proceed(Struct, frozen=True):
    """Action: call the model."""


class ResetContext(Struct, frozen=True):
    """Action: reset the context and notify the person. No model is called."""

    notice: str


class FlushMemory(Struct, frozen=True):
    """Action: add the note `flush_text` to the context, then continue. Chosen at most once before each compaction."""


class CompactContext(Struct, frozen=True, kw_only=True):
    """Action: summarize the older part of the context. All fields except `reason` are arguments of `plan_cut`."""

    reason: CompactionReason
    keep_tokens: int
    records_tokens: int
    keep_fewest: bool = False
    gain_tokens_min: int = 0


class TruncateResults(Struct, frozen=True):
    """Action: shorten every tool result in all further model calls of this run."""


ContextAction = Proceed | ResetContext | FlushMemory | CompactContext | TruncateResults


class ContextState(Struct, frozen=True, kw_only=True):
    """The state of a context before a model call.

    `compaction_failed_at_tokens` is its size when a compaction last failed.
    """

    size: ContextSize
    can_write: bool = False  # the agent has a tool named `write`
    compaction_failed_at_tokens: int | None = None


def next_action(state: ContextState, settings: ContextSettings, window_tokens: int) -> ContextAction:
    """Return what to do before the next model call.

    After a flush or a compaction, the caller measures the context and calls this function again. No
    action is chosen twice for a context of the same size.
    """
    measure = state.size
    limit = settings.emergency_context_limit
    if measure.records_tokens >= limit:
        return ResetContext(emergency_notice(measure.records_tokens, limit))
    left = tokens_left(measure, settings, window_tokens)
    if left <= _flush_threshold_tokens(settings) and _may_flush(state, settings, window_tokens):
        return FlushMemory()
    if left > 0:
        return Proceed()
    growth_min = int(window_tokens * RETRY_GROWTH_SHARE)
    if (
        state.compaction_failed_at_tokens is not None
        and 0 <= measure.tokens - state.compaction_failed_at_tokens < growth_min
    ):
        return Proceed()
    return CompactContext(
        reason=CompactionReason.FULL,
        keep_tokens=_keep_tokens(measure, settings, window_tokens),
        records_tokens=_records_tokens(measure),
        gain_tokens_min=int(window_tokens * GAIN_SHARE_MIN),
    )


def compaction_start_tokens(base_tokens: int, settings: ContextSettings, window_tokens: int) -> int:
    """Return the number of tokens at which compaction starts.

    Compaction starts at a configured share of the window, or when only the reserve is left,
    whichever comes first. The reserve is at most half of the tokens that instructions and tools
    leave free, because it could otherwise take most of a small window. Compaction also never starts
    before there is some history.
    """
    compaction = settings.compaction
    free = max(window_tokens - base_tokens, 0)
    reserve = min(compaction.reserve_tokens_floor, int(free * RESERVE_SHARE_MAX))
    start = min(int(window_tokens * compaction.start_share), window_tokens - reserve)
    return max(start, base_tokens + min(HISTORY_TOKENS_MIN, int(free * RESERVE_SHARE_MAX)))


def tokens_left(size: ContextSize, settings: ContextSettings, window_tokens: int) -> int:
    """Return how many tokens may still be added before compaction starts.

    Compaction starts some way before the emergency limit, so that a session is compacted before it
    is reset.
    """
    window_left = compaction_start_tokens(size.base_tokens, settings, window_tokens) - size.tokens
    limit_left = int(settings.emergency_context_limit * settings.compaction.start_share) - size.records_tokens
    return min(window_left, limit_left)


def _keep_tokens(size: ContextSize, settings: ContextSettings, window_tokens: int) -> int:
    start = compaction_start_tokens(size.base_tokens, settings, window_tokens)
    limit = min(window_tokens, settings.emergency_context_limit)
    by_share = int(limit * settings.compaction.max_history_share)
    by_limit = int(settings.emergency_context_limit * settings.compaction.start_share * KEPT_SHARE_MAX)
    return max(min(by_share, by_limit, int((start - size.base_tokens) * KEPT_SHARE_MAX)), 0)


def _records_tokens(size: ContextSize) -> int:
    return max(size.tokens - size.base_tokens, size.records_tokens)


def _flush_threshold_tokens(settings: ContextSettings) -> int:
    return settings.compaction.memory_flush.soft_threshold_tokens


def _may_flush(state: ContextState, settings: ContextSettings, window_tokens: int) -> bool:
    wanted = settings.compaction.memory_flush.enabled and state.can_write and not state.size.is_flushed
    return wanted and state.size.tokens + FLUSH_TOKENS_MAX <= window_tokens


def requested_compaction(size: ContextSize, settings: ContextSettings, window_tokens: int) -> CompactContext:
    """Return the action for the command /compact: summarize everything except the newest turn, even if it is short."""
    keep_tokens = _keep_tokens(size, settings, window_tokens)
    return CompactContext(
        reason=CompactionReason.REQUESTED,
        keep_tokens=keep_tokens,
        records_tokens=_records_tokens(size),
        keep_fewest=True,
    )


# --- after an overflow ---


class OverflowAttempts(Struct, frozen=True, kw_only=True):
    """What this run has tried after overflows: compactions since the last reply, and truncation of results."""

    compactions: int = 0
    is_truncated: bool = False

    def after_compaction(self, *, helped: bool) -> OverflowAttempts:
        """Count a compaction. A failed compaction would fail again, so it uses up all attempts."""
        return replace(self, compactions=self.compactions + 1 if helped else OVERFLOW_COMPACTIONS_MAX)

    def after_truncation(self) -> OverflowAttempts:
        return replace(self, is_truncated=True)

    def after_reply(self) -> OverflowAttempts:
        """Reset the number of compactions after a reply, because compacting may help again. Results stay truncated."""
        return replace(self, compactions=0) if self.compactions else self


def is_overflow(failure: ModelFailureKind) -> bool:
    """Whether a failure means that the input was too long. A rate limit never does, whatever its message says."""
    return failure in (ModelFailureKind.CONTEXT_OVERFLOW, ModelFailureKind.TOO_LARGE)


def action_after_overflow(
    failure: ModelFailureKind,
    attempts: OverflowAttempts,
    size: ContextSize,
    settings: ContextSettings,
    window_tokens: int,
) -> CompactContext | TruncateResults | ResetContext | None:
    """Return what to try after a model failure. None if the failure was not an overflow."""
    if not is_overflow(failure):
        return None
    if attempts.compactions < OVERFLOW_COMPACTIONS_MAX:
        # The provider counts differently, so each attempt keeps less.
        really = min(window_tokens, max(size.tokens, 1))
        keep = _keep_tokens(size, settings, really) >> (attempts.compactions + 1)
        last = attempts.compactions + 1 == OVERFLOW_COMPACTIONS_MAX
        return CompactContext(
            reason=CompactionReason.OVERFLOW, keep_tokens=keep, records_tokens=_records_tokens(size), keep_fewest=last
        )
    if not attempts.is_truncated:
        return TruncateResults()
    return ResetContext(OVERFLOW_NOTICE)


# --- report of /context ---


def context_figures(
    records: Sequence[Record],
    *,
    model: str,
    window_tokens: int,
    instructions: str,
    tools: Sequence[ToolSpec],
    compactions: int,
    capped_results: int = 0,
    pruned_results: int = 0,
) -> dict[str, str | int]:
    """Return the numbers that /context shows. `records` are the records that are sent to `model`."""
    cap = result_chars_max(window_tokens)
    parts = {
        "instructions": weight_of_text(instructions).tokens,
        "tools": weight_of_tools(tools).tokens,
        "summary": 0,
        "turns": 0,
        "results": 0,
    }
    for record in records:
        parts[_part_name(record)] += weight_of_record(record, result_chars_max=cap).tokens
    measure = ContextMeter().measure(records, instructions=instructions, tools=tools, result_chars_max=cap)
    return {
        "last_reply": _last_reply_text(records, window_tokens),
        "context_tokens": f"about {_window_share_text(measure.tokens, window_tokens)}",
        "model": model,
        "records_in_context": len(records),
        "compactions": compactions,
        "results_shortened": f"{capped_results} capped, {pruned_results} pruned",
        "tokens_by_part": ", ".join(f"{name} {tokens:,}" for name, tokens in parts.items()),
    }


def _last_reply_text(records: Sequence[Record], window_tokens: int) -> str:
    reply = next((r.body for r in reversed(records) if isinstance(r.body, Reply)), None)
    if reply is None:
        return "none yet"
    usage = reply.usage
    tokens = usage.input_tokens + usage.output_tokens
    by = f" by {reply.model}" if reply.model else ""
    if not tokens:
        return f"not counted{by}"
    about = "" if is_counted(reply.usage) else "about "
    return f"{about}{_window_share_text(tokens, window_tokens)}{by}"


def _window_share_text(tokens: int, window_tokens: int) -> str:
    return f"{tokens:,} of {window_tokens:,} tokens ({tokens / max(window_tokens, 1):.0%})"


def _part_name(record: Record) -> str:
    match record.body:
        case Summary():
            return "summary"
        case ToolResult():
            return "results"
        case _:
            return "turns"
