"""What happens before a model call, after an overflow, and which notices people get."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runners.histories import (
    are_calls_paired,
    bodies,
    histories,
    make_call_reply,
    make_records,
    make_reply,
    record,
    result,
    user,
)

from retinue.config.models import (
    CompactionMode,
    CompactionSettings,
    ContextSettings,
    MemoryFlushSettings,
    PruningSettings,
)
from retinue.domain.model import ModelFailed, ModelFailureKind
from retinue.domain.record import ContextStart, Note, Record, Reply, Summary, UserTurn
from retinue.domain.structs import replace
from retinue.domain.tool import ToolSpec
from retinue.runners.compaction_plan import NotCompacted, plan_cut, summarize_cut
from retinue.runners.compaction_prompt import SummaryRequest
from retinue.runners.context_policy import (
    COMPACTING_NOTICE,
    OVERFLOW_NOTICE,
    CompactContext,
    CompactionReason,
    ContextAction,
    ContextState,
    FlushMemory,
    OverflowAttempts,
    Proceed,
    ResetContext,
    TruncateResults,
    action_after_overflow,
    compacted_notice,
    compaction_start_tokens,
    context_figures,
    flush_text,
    next_action,
    requested_compaction,
)
from retinue.runners.model_context import arrange_records, pair_calls_with_results
from retinue.runners.result_pruner import ResultShortener, result_chars_max
from retinue.runners.token_estimate import ContextMeter, ContextSize, estimate_records_tokens

WINDOW_TOKENS = 200_000
DEFAULTS = ContextSettings()
NO_FLUSH = ContextSettings(compaction=CompactionSettings(memory_flush=MemoryFlushSettings(enabled=False)))


def make_size(tokens: int, *, by_records: int = 0, base: int = 0, flushed: bool = False) -> ContextSize:
    return ContextSize(
        tokens=tokens,
        records_tokens=by_records,
        size_bytes=tokens * 4,
        base_tokens=base,
        counted_tokens=tokens,
        new_bytes=0,
        is_flushed=flushed,
    )


def decide(
    measure: ContextSize, context: ContextSettings = DEFAULTS, *, window: int = WINDOW_TOKENS, writes: bool = False
) -> ContextAction:
    return next_action(ContextState(size=measure, can_write=writes), context, window)


def compaction(**changes: object) -> ContextSettings:
    return ContextSettings(compaction=replace(CompactionSettings(), **changes))  # type: ignore[arg-type]


# When a context is compacted


@pytest.mark.spec("D23")
def test_compaction_starts_at_75_percent_of_the_window() -> None:
    assert decide(make_size(149_999)) == Proceed()
    action = decide(make_size(150_000))
    assert isinstance(action, CompactContext) and action.reason is CompactionReason.FULL


@pytest.mark.spec("C116")
def test_compaction_starts_earlier_if_the_token_reserve_would_be_used() -> None:
    floor = compaction(reserve_tokens_floor=80_000)
    assert decide(make_size(119_999), floor) == Proceed()
    assert isinstance(decide(make_size(120_000), floor), CompactContext)
    assert compaction_start_tokens(0, compaction(start_share=0.95), WINDOW_TOKENS) == 180_000
    assert compaction_start_tokens(0, compaction(start_share=0.95, reserve_tokens_floor=0), WINDOW_TOKENS) == 190_000


@pytest.mark.spec("C116")
def test_the_documented_defaults_of_the_context_policy_apply() -> None:
    assert DEFAULTS.compaction.mode is CompactionMode.DEFAULT
    assert DEFAULTS.compaction.reserve_tokens_floor == 20_000
    assert DEFAULTS.compaction.max_history_share == 0.5
    assert DEFAULTS.compaction.memory_flush == MemoryFlushSettings(enabled=True, soft_threshold_tokens=4_000)
    assert DEFAULTS.emergency_context_limit == 200_000
    action = decide(make_size(150_000))
    assert isinstance(action, CompactContext) and action.keep_tokens == 100_000


@pytest.mark.spec("C116")
def test_the_history_share_limits_the_tokens_kept_by_a_compaction() -> None:
    action = decide(make_size(150_000), compaction(max_history_share=0.1))
    assert isinstance(action, CompactContext) and action.keep_tokens == 20_000


@given(st.integers(16_000, 2_000_000), st.floats(0.1, 0.95), st.integers(0, 100_000), st.floats(0, 0.9))
def test_compaction_never_starts_right_away_in_any_context_window(
    window: int, share: float, floor: int, base_share: float
) -> None:
    context = compaction(start_share=share, reserve_tokens_floor=floor, max_history_share=0.9)
    base = int(window * base_share)
    start = compaction_start_tokens(base, context, window)
    assert base + min(4_000, (window - base) // 2) - 1 <= start <= window
    action = decide(make_size(start, base=base), replace(context, emergency_context_limit=10**9), window=window)
    assert isinstance(action, CompactContext)
    assert 0 <= action.keep_tokens <= (start - base) * 0.75  # so that the next compaction is not due at once


def test_compaction_starts_before_the_emergency_limit_as_before_the_window_limit() -> None:
    """With a large context window, a conversation is compacted before it reaches the emergency limit."""
    action = decide(make_size(100_000, by_records=150_000), window=1_000_000)
    assert isinstance(action, CompactContext) and action.keep_tokens <= 112_500
    assert decide(make_size(149_000, by_records=149_999), window=1_000_000) == Proceed()


@pytest.mark.spec("D24")
def test_a_failed_compaction_is_retried_only_after_the_context_has_grown() -> None:
    state = ContextState(size=make_size(150_000), compaction_failed_at_tokens=150_000)
    assert next_action(state, DEFAULTS, WINDOW_TOKENS) == Proceed()
    assert next_action(replace(state, size=make_size(159_999)), DEFAULTS, WINDOW_TOKENS) == Proceed()
    assert isinstance(next_action(replace(state, size=make_size(160_000)), DEFAULTS, WINDOW_TOKENS), CompactContext)


# The emergency limit


@pytest.mark.spec("D81")
def test_a_context_is_reset_at_the_emergency_limit_but_not_one_token_below() -> None:
    action = decide(make_size(10, by_records=200_000))
    assert isinstance(action, ResetContext)
    assert "200,000" in action.notice and "emergency_context_limit" in action.notice and "again" in action.notice
    assert not isinstance(decide(make_size(10, by_records=199_999)), ResetContext)


@pytest.mark.spec("D81")
def test_the_emergency_limit_applies_to_the_estimated_characters_of_the_records() -> None:
    context = ContextSettings(emergency_context_limit=1_000)
    at = make_records(user("x" * 2_000), make_reply("y" * 2_000, tokens=5))
    below = make_records(user("x" * 2_000), make_reply("y" * 1_996, tokens=5))
    assert isinstance(decide(ContextMeter().measure(at), context), ResetContext)
    assert not isinstance(decide(ContextMeter().measure(below), context), ResetContext)
    fresh = arrange_records([*at, record(3, ContextStart()), record(4, user("after the marker"))])
    assert estimate_records_tokens(fresh) == 4


# The memory flush


@pytest.mark.spec("C116")
def test_the_context_policy_asks_for_a_memory_flush_shortly_before_compaction() -> None:
    assert decide(make_size(145_999), writes=True) == Proceed()
    assert decide(make_size(146_000), writes=True) == FlushMemory()
    assert decide(make_size(150_000), writes=True) == FlushMemory()
    sooner = compaction(memory_flush=MemoryFlushSettings(soft_threshold_tokens=10_000))
    assert decide(make_size(140_000), sooner, writes=True) == FlushMemory()


@pytest.mark.spec("C116")
@pytest.mark.parametrize(
    ("context", "writes", "flushed"), [(NO_FLUSH, True, False), (DEFAULTS, False, False), (DEFAULTS, True, True)]
)
def test_the_context_policy_omits_a_memory_flush_that_is_disabled_impossible_or_already_done(
    context: ContextSettings, writes: bool, flushed: bool
) -> None:
    assert decide(make_size(146_000, flushed=flushed), context, writes=writes) == Proceed()
    assert isinstance(decide(make_size(150_000, flushed=flushed), context, writes=writes), CompactContext)


def test_the_context_policy_skips_a_memory_flush_that_would_not_fit() -> None:
    assert isinstance(decide(make_size(199_000), writes=True), CompactContext)


def test_the_context_policy_asks_for_a_memory_flush_once_before_each_compaction() -> None:
    records = make_records(user("q" * 584_000))
    assert decide(ContextMeter().measure(records), writes=True) == FlushMemory()
    records.append(record(2, Note(text=flush_text(date(2026, 1, 5)))))
    assert decide(ContextMeter().measure(records), writes=True) == Proceed()
    assert "memory/2026-01-05.md" in flush_text(date(2026, 1, 5)) and "`write`" in flush_text(date(2026, 1, 5))
    compacted = arrange_records([*records, record(3, Summary(text="s", kept_from=1))])
    assert decide(ContextMeter().measure(compacted), writes=True) == FlushMemory()


# After a refusal


@pytest.mark.spec("C40", "D25")
def test_context_overflow_leads_to_three_compactions_then_truncated_results_then_a_reset() -> None:
    attempts, kept = OverflowAttempts(), list[int]()
    for _ in range(3):
        action = action_after_overflow(
            ModelFailureKind.CONTEXT_OVERFLOW, attempts, make_size(180_000), DEFAULTS, WINDOW_TOKENS
        )
        assert (
            isinstance(action, CompactContext)
            and action.reason is CompactionReason.OVERFLOW
            and action.gain_tokens_min == 0
        )
        kept.append(action.keep_tokens)
        attempts = attempts.after_compaction(helped=True)
    assert kept == sorted(kept, reverse=True) and len(set(kept)) == 3
    assert (
        action_after_overflow(ModelFailureKind.TOO_LARGE, attempts, make_size(1), DEFAULTS, WINDOW_TOKENS)
        == TruncateResults()
    )
    attempts = attempts.after_truncation()
    action = action_after_overflow(ModelFailureKind.CONTEXT_OVERFLOW, attempts, make_size(1), DEFAULTS, WINDOW_TOKENS)
    assert action == ResetContext(OVERFLOW_NOTICE) and "send your last message again" in OVERFLOW_NOTICE


@pytest.mark.spec("C40")
def test_after_an_overflow_a_compaction_without_effect_is_not_repeated() -> None:
    attempts = OverflowAttempts().after_compaction(helped=False)
    assert (
        action_after_overflow(ModelFailureKind.CONTEXT_OVERFLOW, attempts, make_size(1), DEFAULTS, WINDOW_TOKENS)
        == TruncateResults()
    )


@pytest.mark.spec("D25")
@pytest.mark.parametrize(
    "failure", sorted(set(ModelFailureKind) - {ModelFailureKind.CONTEXT_OVERFLOW, ModelFailureKind.TOO_LARGE})
)
def test_model_failures_other_than_overflow_do_not_change_the_context(failure: ModelFailureKind) -> None:
    assert action_after_overflow(failure, OverflowAttempts(), make_size(190_000), DEFAULTS, WINDOW_TOKENS) is None
    assert (
        action_after_overflow(
            failure, OverflowAttempts(compactions=3, is_truncated=True), make_size(1), DEFAULTS, WINDOW_TOKENS
        )
        is None
    )


# A session never becomes unusable


class SimulatedSession:
    """A context and the loop around it, with a model of which only the size of its window is known."""

    def __init__(
        self, records: list[Record], context: ContextSettings, window: int, real_window_tokens: int, answers: list[str]
    ) -> None:
        self.records = pair_calls_with_results(arrange_records(records))
        self.context = context
        self.window = window
        self.real_window_tokens = real_window_tokens  # what really fits, by the model's own count
        self.answers = answers
        self.attempts = OverflowAttempts()
        self.failed_at: int | None = None
        self.summary_count = 0

    def measure(self) -> ContextSize:
        cap = result_chars_max(self.window)
        return ContextMeter().measure(self.records, instructions="i" * 400, result_chars_max=cap)

    async def summarize(self, request: SummaryRequest) -> Reply:
        self.summary_count += 1
        answer = self.answers[self.summary_count % len(self.answers)]
        if answer == "fails":
            raise ModelFailed("down", failure=ModelFailureKind.SERVER)
        return Reply(text=answer)

    async def compact(self, action: CompactContext) -> bool:
        cut = plan_cut(
            self.records,
            window_tokens=self.window,
            keep_tokens=action.keep_tokens,
            records_tokens=action.records_tokens,
            keep_fewest=action.keep_fewest,
            gain_tokens_min=action.gain_tokens_min,
        )
        if cut is None:
            return False
        try:
            mode = self.context.compaction.mode
            text = await summarize_cut(cut, self.summarize, window_tokens=self.window, mode=mode)
        except (NotCompacted, ModelFailed):
            return False
        before = estimate_records_tokens(self.records)
        seq = max(r.seq for r in self.records) + 1
        self.records = arrange_records([*self.records, record(seq, Summary(text=text, kept_from=cut.kept_from))])
        assert estimate_records_tokens(self.records) < before or not text.isascii()
        return True

    def fits(self) -> bool:
        view = ResultShortener().shorten(
            self.records[0].session,
            self.records,
            PruningSettings(),
            window_tokens=self.window,
            idle_s=None,
            truncate=self.attempts.is_truncated,
        )
        return ContextMeter().measure(view, instructions="i" * 400).tokens <= self.real_window_tokens

    async def take_turn(self) -> str:
        for _ in range(60):
            state = ContextState(size=self.measure(), compaction_failed_at_tokens=self.failed_at)
            action = next_action(state, self.context, self.window)
            if isinstance(action, Proceed):
                if self.fits():
                    return "answered"
                refused = action_after_overflow(
                    ModelFailureKind.CONTEXT_OVERFLOW, self.attempts, state.size, self.context, self.window
                )
                assert refused is not None
                action = refused
            match action:
                case ResetContext():
                    self.records = [record(max(r.seq for r in self.records) + 1, ContextStart())]
                    assert self.fits()
                    return "reset"
                case CompactContext(reason=CompactionReason.OVERFLOW):
                    self.attempts = self.attempts.after_compaction(helped=await self.compact(action))
                case CompactContext():
                    if not await self.compact(action):
                        self.failed_at = state.size.tokens
                case TruncateResults():
                    self.attempts = self.attempts.after_truncation()
                case _:
                    raise AssertionError(action)
        raise AssertionError("it went round and round")


@pytest.mark.spec("C40", "D24")
@settings(max_examples=60)
@given(
    histories(ends_with_turn=True),
    st.sampled_from([16_000, 20_000, 64_000]),
    st.floats(0.02, 1.2),
    st.lists(st.sampled_from(["", "fails", "in short", "NO_REPLY", "over-long " * 9_000, "漢" * 9_000]), min_size=1),
    st.sampled_from(CompactionMode),
    st.sampled_from([12_000, 200_000]),
)
async def test_the_context_policy_keeps_a_context_within_its_limits_or_resets_it_for_any_summaries(
    records: list[Record], window: int, real_window_tokens: float, answers: list[str], mode: CompactionMode, limit: int
) -> None:
    context = ContextSettings(emergency_context_limit=limit, compaction=CompactionSettings(mode=mode))
    session = SimulatedSession(records, context, window, int(window * real_window_tokens), answers)
    newest = records[-1].body
    assert isinstance(newest, UserTurn)
    for _ in range(3):
        outcome = await session.take_turn()
        assert are_calls_paired(session.records)
        if outcome == "answered" and not session.attempts.is_truncated:
            assert session.fits()
        if outcome == "reset":
            return
        assert newest in bodies(session.records) or any(
            isinstance(body, Summary) and newest.text.strip()[:500] in body.text for body in bodies(session.records)
        )
        seq = max(r.seq for r in session.records) + 1
        session.records.append(record(seq, make_call_reply(f"again-{seq}")))
        session.records.append(record(seq + 1, result(f"again-{seq}", "more " * 1_000)))
        session.attempts, session.failed_at = OverflowAttempts(), None


# Notices


@pytest.mark.spec("D26", "C32")
def test_context_figures_show_the_tokens_of_the_last_reply_and_by_part() -> None:
    records = [
        record(9, Summary(text="s" * 400, kept_from=5)),
        *(
            r._replace(seq=r.seq + 10)
            for r in make_records(user("u" * 40), make_call_reply("1"), result("1", "r" * 80))
        ),
        record(20, make_reply("k", tokens=50_000)),
    ]
    tool = ToolSpec(name="read", description="Read.", parameters={})
    lines = context_figures(
        records,
        model="acme/large",
        window_tokens=WINDOW_TOKENS,
        instructions="i" * 400,
        tools=[tool],
        compactions=2,
        capped_results=1,
        pruned_results=3,
    )
    assert lines["last_reply"] == "50,000 of 200,000 tokens (25%) by test/model"
    assert lines["compactions"] == 2 and lines["records_in_context"] == 5
    assert lines["results_shortened"] == "1 capped, 3 pruned"
    assert lines["tokens_by_part"] == "instructions 100, tools 3, summary 100, turns 13, results 20"


@pytest.mark.spec("D26")
def test_context_figures_report_that_the_last_reply_has_no_counted_tokens() -> None:
    lines = context_figures(
        make_records(user()), model="m", window_tokens=WINDOW_TOKENS, instructions="", tools=(), compactions=0
    )
    assert lines["last_reply"] == "none yet"
    lines = context_figures(
        make_records(user(), make_reply("k")),
        model="m",
        window_tokens=WINDOW_TOKENS,
        instructions="",
        tools=(),
        compactions=0,
    )
    assert lines["last_reply"] == "not counted by test/model"


def test_a_requested_compaction_keeps_only_the_newest_turn() -> None:
    action = requested_compaction(make_size(300), DEFAULTS, WINDOW_TOKENS)
    assert action.keep_fewest and action.gain_tokens_min == 0 and action.reason is CompactionReason.REQUESTED
    assert compacted_notice(12_000, 800, 2) == "Compacted: about 12,000 tokens became 800 (compactions so far: 2)."
    assert COMPACTING_NOTICE
