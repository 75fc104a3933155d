"""Decide how to keep a context within its limits, before a model call and after an overflow.

Nothing is done here. The order is fixed: above the emergency limit the context is reset. Near its
limit it gets a memory flush, then a compaction. After a provider rejected it, it is compacted up to
three times, then its results are truncated, and then it is reset.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from enum import StrEnum

from msgspec import Struct

from retinue.config.models import Context
from retinue.domain.model import Failure
from retinue.domain.record import Record, Reply, Summary
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult, ToolSpec
from retinue.runners.model_context import FLUSH_HEAD
from retinue.runners.result_pruner import result_chars_max
from retinue.runners.token_estimate import Measure, Meter, is_known, weight_of, weight_of_text, weight_of_tools

OVERFLOW_COMPACTIONS_MAX = 3
RESERVE_SHARE_MAX = 0.5  # share of the tokens that instructions and tools leave free
HISTORY_TOKENS_MIN = 4_000  # minimum history beside large instructions before compaction starts
KEPT_OF_START_MAX = 0.75  # the kept part leaves space before the next compaction
GAIN_SHARE_MIN = 0.05  # minimum gain as a share of the window
RETRY_GROWTH_SHARE = 0.05  # growth as a share of the window before a failed compaction is retried
FLUSH_ROOM_TOKENS = 4_000  # tokens that the flush itself may use
WRITE_TOOL = "write"

# --- texts for people ---

COMPACTING = "This conversation has grown long, so I am summing up its older part. One moment."
OVERFLOWED = (
    "This conversation no longer fits into what the model can have in mind, and summing it up did not help. "
    "I have begun a fresh context: what was said before is kept, but I no longer have it in mind. "
    "Please send your last message again; if it was very long, send it in parts or as a file."
)


def emergency_notice(tokens: int, limit: int) -> str:
    return (
        f"This conversation has reached about {tokens:,} tokens, and its limit is {limit:,} "
        "(`emergency_context_limit`). I have begun a fresh context before asking a model: what was said before is "
        "kept, but I no longer have it in mind. Please send your last message again."
    )


def compacted_notice(before_tokens: int, after_tokens: int, compactions: int) -> str:
    """Return the answer to a successful /compact."""
    return f"Compacted: about {before_tokens:,} tokens became {after_tokens:,} (compactions so far: {compactions})."


def compacted_before_notice(after_tokens: int, compactions: int) -> str:
    """Return the answer to a /compact that succeeded before a restart, so its old size is unknown."""
    return f"Compacted: about {after_tokens:,} tokens are left (compactions so far: {compactions})."


NOT_COMPACTED = "Not compacted: there is too little to tell in short, or no model could do it."


def flush_text(today: date) -> str:
    """Return the note that asks the agent to save memories before a compaction. It needs no extra turn."""
    return (
        f"{FLUSH_HEAD} Soon the older part of what you have in mind will be replaced by a summary. First, before "
        f"anything else, use `{WRITE_TOOL}` to keep what must not be lost and is not written down yet: decisions, "
        f"promises, facts about people, open work. It belongs into memory/{today.isoformat()}.md, added to what "
        "already stands there. If there is nothing to keep, write nothing. Then go on with what you were asked as if "
        "this note were not here, and do not mention it; if nothing was asked, answer NO_REPLY."
    )


# --- before a model call ---


class Why(StrEnum):
    """Why a context is compacted."""

    FULL = "nearly full"
    OVERFLOW = "refused as too long"
    ASKED = "asked for"


class Proceed(Struct, frozen=True):
    """Call the model."""


class Reset(Struct, frozen=True):
    """Reset the context and notify the person. No model is called."""

    notice: str


class Flush(Struct, frozen=True):
    """Add `flush_text` as a note, then continue. Once per compaction."""


class Compact(Struct, frozen=True, kw_only=True):
    """Summarize the older part. All fields but the reason are for `plan_cut`."""

    why: Why
    keep_tokens: int
    records_tokens: int
    fewest: bool = False
    gain_tokens_min: int = 0


class TruncateResults(Struct, frozen=True):
    """Truncate every result in model calls for the rest of this run."""


Action = Proceed | Reset | Flush | Compact | TruncateResults


class ContextState(Struct, frozen=True, kw_only=True):
    """A context before a model call. `compaction_failed_at_tokens`: its size when a compaction last failed."""

    measure: Measure
    can_write: bool = False  # the agent has a tool named `write`
    failed_at: int | None = None


def assess(state: ContextState, settings: Context, window_tokens: int) -> Action:
    """Return what to do before the next model call.

    After a flush or a compaction, measure and decide again: each action is chosen once per size.
    """
    measure = state.measure
    limit = settings.emergency_context_limit
    if measure.by_records >= limit:
        return Reset(emergency_notice(measure.by_records, limit))
    left = tokens_left(measure, settings, window_tokens)
    if left <= _flush_from(settings) and _may_flush(state, settings, window_tokens):
        return Flush()
    if left > 0:
        return Proceed()
    growth_min = int(window_tokens * RETRY_GROWTH_SHARE)
    if state.failed_at is not None and 0 <= measure.tokens - state.failed_at < growth_min:
        return Proceed()
    return Compact(
        why=Why.FULL,
        keep_tokens=_keep_tokens(measure, settings, window_tokens),
        records_tokens=_records_tokens(measure),
        gain_tokens_min=int(window_tokens * GAIN_SHARE_MIN),
    )


def start_tokens(base_tokens: int, settings: Context, window_tokens: int) -> int:
    """Return the number of tokens at which compaction starts.

    It is the share of the window or the floor of the reserve, whichever is earlier. In a small
    window the floor may be most of it. So the reserve takes at most half of what instructions and
    tools leave free, and compaction never starts before there is some history.
    """
    compaction = settings.compaction
    free = max(window_tokens - base_tokens, 0)
    reserve = min(compaction.reserve_tokens_floor, int(free * RESERVE_SHARE_MAX))
    start = min(int(window_tokens * compaction.start_share), window_tokens - reserve)
    return max(start, base_tokens + min(HISTORY_TOKENS_MIN, int(free * RESERVE_SHARE_MAX)))


def tokens_left(measure: Measure, settings: Context, window_tokens: int) -> int:
    """Return how many tokens may still be added before compaction starts.

    The emergency limit has the same margin as the window: a session is compacted before it is
    reset.
    """
    window_left = start_tokens(measure.base_tokens, settings, window_tokens) - measure.tokens
    limit_left = int(settings.emergency_context_limit * settings.compaction.start_share) - measure.by_records
    return min(window_left, limit_left)


def _keep_tokens(measure: Measure, settings: Context, window_tokens: int) -> int:
    start = start_tokens(measure.base_tokens, settings, window_tokens)
    limit = min(window_tokens, settings.emergency_context_limit)
    by_share = int(limit * settings.compaction.max_history_share)
    by_limit = int(settings.emergency_context_limit * settings.compaction.start_share * KEPT_OF_START_MAX)
    return max(min(by_share, by_limit, int((start - measure.base_tokens) * KEPT_OF_START_MAX)), 0)


def _records_tokens(measure: Measure) -> int:
    return max(measure.tokens - measure.base_tokens, measure.by_records)


def _flush_from(settings: Context) -> int:
    return settings.compaction.memory_flush.soft_threshold_tokens


def _may_flush(state: ContextState, settings: Context, window_tokens: int) -> bool:
    wanted = settings.compaction.memory_flush.enabled and state.can_write and not state.measure.flushed
    return wanted and state.measure.tokens + FLUSH_ROOM_TOKENS <= window_tokens


def asked(measure: Measure, settings: Context, window_tokens: int) -> Compact:
    """Return the action of /compact: summarize everything but the newest turn, however little it is."""
    keep_tokens = _keep_tokens(measure, settings, window_tokens)
    return Compact(why=Why.ASKED, keep_tokens=keep_tokens, records_tokens=_records_tokens(measure), fewest=True)


# --- after an overflow ---


class Tries(Struct, frozen=True, kw_only=True):
    """What was tried: compactions since the last reply of this run, truncation since its start."""

    compactions: int = 0
    truncated: bool = False

    def compacted(self, *, helped: bool) -> Tries:
        """Count a compaction. A failed one would fail again, so it uses up all attempts."""
        return replace(self, compactions=self.compactions + 1 if helped else OVERFLOW_COMPACTIONS_MAX)

    def truncating(self) -> Tries:
        return replace(self, truncated=True)

    def replied(self) -> Tries:
        """A model replied, so compaction may help again. Results stay truncated: they would not fit."""
        return replace(self, compactions=0) if self.compactions else self


def is_overflow(failure: Failure) -> bool:
    """Whether a failure means that the input was too long. A rate limit does not, whatever its text says."""
    return failure in (Failure.CONTEXT_OVERFLOW, Failure.TOO_LARGE)


def after_overflow(
    failure: Failure, tries: Tries, measure: Measure, settings: Context, window_tokens: int
) -> Compact | TruncateResults | Reset | None:
    """Return what to try after a model failure. None if it was not an overflow."""
    if not is_overflow(failure):
        return None
    if tries.compactions < OVERFLOW_COMPACTIONS_MAX:
        # The provider counts differently, so each attempt keeps less.
        really = min(window_tokens, max(measure.tokens, 1))
        keep = _keep_tokens(measure, settings, really) >> (tries.compactions + 1)
        last = tries.compactions + 1 == OVERFLOW_COMPACTIONS_MAX
        return Compact(why=Why.OVERFLOW, keep_tokens=keep, records_tokens=_records_tokens(measure), fewest=last)
    if not tries.truncated:
        return TruncateResults()
    return Reset(OVERFLOWED)


# --- report of /context ---


def report(
    records: Sequence[Record],
    *,
    model: str,
    window_tokens: int,
    instructions: str,
    tools: Sequence[ToolSpec],
    compactions: int,
    capped: int = 0,
    pruned: int = 0,
) -> dict[str, str | int]:
    """Return the figures of a context. `records` as they are sent to `model`."""
    cap = result_chars_max(window_tokens)
    parts = {
        "instructions": weight_of_text(instructions).tokens,
        "tools": weight_of_tools(tools).tokens,
        "summary": 0,
        "turns": 0,
        "results": 0,
    }
    for record in records:
        parts[_part(record)] += weight_of(record, result_chars_max=cap).tokens
    measure = Meter().measure(records, instructions=instructions, tools=tools, result_chars_max=cap)
    return {
        "last-reply": _last_reply(records, window_tokens),
        "in-mind-now": f"about {_of_window(measure.tokens, window_tokens)}",
        "model": model,
        "records-in-context": len(records),
        "compactions": compactions,
        "results-shortened": f"{capped} capped, {pruned} pruned",
        "about-tokens-by-part": ", ".join(f"{name} {tokens:,}" for name, tokens in parts.items()),
    }


def _last_reply(records: Sequence[Record], window_tokens: int) -> str:
    reply = next((r.body for r in reversed(records) if isinstance(r.body, Reply)), None)
    if reply is None:
        return "none yet"
    usage = reply.usage
    tokens = usage.input_tokens + usage.output_tokens
    by = f" by {reply.model}" if reply.model else ""
    if not tokens:
        return f"not counted{by}"
    about = "" if is_known(reply) else "about "
    return f"{about}{_of_window(tokens, window_tokens)}{by}"


def _of_window(tokens: int, window_tokens: int) -> str:
    return f"{tokens:,} of {window_tokens:,} tokens ({tokens / max(window_tokens, 1):.0%})"


def _part(record: Record) -> str:
    match record.body:
        case Summary():
            return "summary"
        case ToolResult():
            return "results"
        case _:
            return "turns"
