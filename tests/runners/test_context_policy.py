"""What comes before a model call, what comes after a refusal, and what people are told of it."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runners.histories import asks, bodies, histories, paired, record, result, says, told, user

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

WINDOW = 200_000
DEFAULTS = ContextSettings()
NO_FLUSH = ContextSettings(compaction=CompactionSettings(memory_flush=MemoryFlushSettings(enabled=False)))


def measured(tokens: int, *, by_records: int = 0, base: int = 0, flushed: bool = False) -> ContextSize:
    return ContextSize(
        tokens=tokens,
        records_tokens=by_records,
        size_bytes=tokens * 4,
        base_tokens=base,
        counted_tokens=tokens,
        new_bytes=0,
        is_flushed=flushed,
    )


def decided(
    measure: ContextSize, context: ContextSettings = DEFAULTS, *, window: int = WINDOW, writes: bool = False
) -> ContextAction:
    return next_action(ContextState(size=measure, can_write=writes), context, window)


def compaction(**changes: object) -> ContextSettings:
    return ContextSettings(compaction=replace(CompactionSettings(), **changes))  # type: ignore[arg-type]


# When a context is compacted


@pytest.mark.spec("D23")
def test_compaction_starts_at_75_percent_of_the_window() -> None:
    assert decided(measured(149_999)) == Proceed()
    action = decided(measured(150_000))
    assert isinstance(action, CompactContext) and action.reason is CompactionReason.FULL


@pytest.mark.spec("C116")
def test_compaction_starts_earlier_where_the_reserve_would_be_touched() -> None:
    floor = compaction(reserve_tokens_floor=80_000)
    assert decided(measured(119_999), floor) == Proceed()
    assert isinstance(decided(measured(120_000), floor), CompactContext)
    assert compaction_start_tokens(0, compaction(start_share=0.95), WINDOW) == 180_000
    assert compaction_start_tokens(0, compaction(start_share=0.95, reserve_tokens_floor=0), WINDOW) == 190_000


@pytest.mark.spec("C116")
def test_the_documented_defaults_are_the_real_ones() -> None:
    assert DEFAULTS.compaction.mode is CompactionMode.DEFAULT
    assert DEFAULTS.compaction.reserve_tokens_floor == 20_000
    assert DEFAULTS.compaction.max_history_share == 0.5
    assert DEFAULTS.compaction.memory_flush == MemoryFlushSettings(enabled=True, soft_threshold_tokens=4_000)
    assert DEFAULTS.emergency_context_limit == 200_000
    action = decided(measured(150_000))
    assert isinstance(action, CompactContext) and action.keep_tokens == 100_000


@pytest.mark.spec("C116")
def test_the_share_of_history_bounds_what_stays() -> None:
    action = decided(measured(150_000), compaction(max_history_share=0.1))
    assert isinstance(action, CompactContext) and action.keep_tokens == 20_000


@given(st.integers(16_000, 2_000_000), st.floats(0.1, 0.95), st.integers(0, 100_000), st.floats(0, 0.9))
def test_in_no_window_does_compaction_start_at_once(window: int, share: float, floor: int, base_share: float) -> None:
    context = compaction(start_share=share, reserve_tokens_floor=floor, max_history_share=0.9)
    base = int(window * base_share)
    start = compaction_start_tokens(base, context, window)
    assert base + min(4_000, (window - base) // 2) - 1 <= start <= window
    action = decided(measured(start, base=base), replace(context, emergency_context_limit=10**9), window=window)
    assert isinstance(action, CompactContext)
    assert 0 <= action.keep_tokens <= (start - base) * 0.75  # so that the next one is not due at once


def test_the_emergency_limit_is_neared_like_the_window() -> None:
    """A model with a large window has its conversations told in short before they are given up."""
    action = decided(measured(100_000, by_records=150_000), window=1_000_000)
    assert isinstance(action, CompactContext) and action.keep_tokens <= 112_500
    assert decided(measured(149_000, by_records=149_999), window=1_000_000) == Proceed()


@pytest.mark.spec("D24")
def test_a_compaction_that_came_to_nothing_is_tried_again_only_after_some_growth() -> None:
    state = ContextState(size=measured(150_000), compaction_failed_at_tokens=150_000)
    assert next_action(state, DEFAULTS, WINDOW) == Proceed()
    assert next_action(replace(state, size=measured(159_999)), DEFAULTS, WINDOW) == Proceed()
    assert isinstance(next_action(replace(state, size=measured(160_000)), DEFAULTS, WINDOW), CompactContext)


# The emergency limit


@pytest.mark.spec("D81")
def test_at_the_emergency_limit_a_context_is_begun_afresh_and_one_token_below_it_is_not() -> None:
    action = decided(measured(10, by_records=200_000))
    assert isinstance(action, ResetContext)
    assert "200,000" in action.notice and "emergency_context_limit" in action.notice and "again" in action.notice
    assert not isinstance(decided(measured(10, by_records=199_999)), ResetContext)


@pytest.mark.spec("D81")
def test_the_emergency_limit_is_compared_with_the_characters_of_the_records() -> None:
    context = ContextSettings(emergency_context_limit=1_000)
    at = told(user("x" * 2_000), says("y" * 2_000, tokens=5))
    below = told(user("x" * 2_000), says("y" * 1_996, tokens=5))
    assert isinstance(decided(ContextMeter().measure(at), context), ResetContext)
    assert not isinstance(decided(ContextMeter().measure(below), context), ResetContext)
    fresh = arrange_records([*at, record(3, ContextStart()), record(4, user("after the marker"))])
    assert estimate_records_tokens(fresh) == 4


# The memory flush


@pytest.mark.spec("C116")
def test_shortly_before_compaction_the_agent_may_write_down_what_it_wants_to_keep() -> None:
    assert decided(measured(145_999), writes=True) == Proceed()
    assert decided(measured(146_000), writes=True) == FlushMemory()
    assert decided(measured(150_000), writes=True) == FlushMemory()
    sooner = compaction(memory_flush=MemoryFlushSettings(soft_threshold_tokens=10_000))
    assert decided(measured(140_000), sooner, writes=True) == FlushMemory()


@pytest.mark.spec("C116")
@pytest.mark.parametrize(
    ("context", "writes", "flushed"), [(NO_FLUSH, True, False), (DEFAULTS, False, False), (DEFAULTS, True, True)]
)
def test_no_flush_where_it_is_off_cannot_be_written_or_was_done(
    context: ContextSettings, writes: bool, flushed: bool
) -> None:
    assert decided(measured(146_000, flushed=flushed), context, writes=writes) == Proceed()
    assert isinstance(decided(measured(150_000, flushed=flushed), context, writes=writes), CompactContext)


def test_a_flush_that_would_not_fit_is_left_out() -> None:
    assert isinstance(decided(measured(199_000), writes=True), CompactContext)


def test_a_flush_is_done_once_in_each_cycle() -> None:
    records = told(user("q" * 584_000))
    assert decided(ContextMeter().measure(records), writes=True) == FlushMemory()
    records.append(record(2, Note(text=flush_text(date(2026, 1, 5)))))
    assert decided(ContextMeter().measure(records), writes=True) == Proceed()
    assert "memory/2026-01-05.md" in flush_text(date(2026, 1, 5)) and "`write`" in flush_text(date(2026, 1, 5))
    compacted = arrange_records([*records, record(3, Summary(text="s", kept_from=1))])
    assert decided(ContextMeter().measure(compacted), writes=True) == FlushMemory()


# After a refusal


@pytest.mark.spec("C40", "D25")
def test_an_overflow_leads_to_three_compactions_then_short_results_then_a_fresh_context() -> None:
    tries, kept = OverflowAttempts(), list[int]()
    for _ in range(3):
        action = action_after_overflow(ModelFailureKind.CONTEXT_OVERFLOW, tries, measured(180_000), DEFAULTS, WINDOW)
        assert (
            isinstance(action, CompactContext)
            and action.reason is CompactionReason.OVERFLOW
            and action.gain_tokens_min == 0
        )
        kept.append(action.keep_tokens)
        tries = tries.after_compaction(helped=True)
    assert kept == sorted(kept, reverse=True) and len(set(kept)) == 3
    assert action_after_overflow(ModelFailureKind.TOO_LARGE, tries, measured(1), DEFAULTS, WINDOW) == TruncateResults()
    tries = tries.after_truncation()
    action = action_after_overflow(ModelFailureKind.CONTEXT_OVERFLOW, tries, measured(1), DEFAULTS, WINDOW)
    assert action == ResetContext(OVERFLOW_NOTICE) and "send your last message again" in OVERFLOW_NOTICE


@pytest.mark.spec("C40")
def test_a_compaction_that_came_to_nothing_is_not_tried_three_times() -> None:
    tries = OverflowAttempts().after_compaction(helped=False)
    assert (
        action_after_overflow(ModelFailureKind.CONTEXT_OVERFLOW, tries, measured(1), DEFAULTS, WINDOW)
        == TruncateResults()
    )


@pytest.mark.spec("D25")
@pytest.mark.parametrize(
    "failure", sorted(set(ModelFailureKind) - {ModelFailureKind.CONTEXT_OVERFLOW, ModelFailureKind.TOO_LARGE})
)
def test_no_other_failure_touches_the_context(failure: ModelFailureKind) -> None:
    assert action_after_overflow(failure, OverflowAttempts(), measured(190_000), DEFAULTS, WINDOW) is None
    assert (
        action_after_overflow(
            failure, OverflowAttempts(compactions=3, is_truncated=True), measured(1), DEFAULTS, WINDOW
        )
        is None
    )


# A session never becomes unusable


class Session:
    """A context and the loop around it, with a model of which only the size of its window is known."""

    def __init__(
        self, records: list[Record], context: ContextSettings, window: int, really: int, answers: list[str]
    ) -> None:
        self.records = pair_calls_with_results(arrange_records(records))
        self.context = context
        self.window = window
        self.really = really  # what fits in truth, by its own count
        self.answers = answers
        self.tries = OverflowAttempts()
        self.failed_at: int | None = None
        self.asked = 0

    def measure(self) -> ContextSize:
        cap = result_chars_max(self.window)
        return ContextMeter().measure(self.records, instructions="i" * 400, result_chars_max=cap)

    async def scribe(self, request: SummaryRequest) -> Reply:
        self.asked += 1
        answer = self.answers[self.asked % len(self.answers)]
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
            text = await summarize_cut(cut, self.scribe, window_tokens=self.window, mode=mode)
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
            truncate=self.tries.is_truncated,
        )
        return ContextMeter().measure(view, instructions="i" * 400).tokens <= self.really

    async def turn(self) -> str:
        for _ in range(60):
            state = ContextState(size=self.measure(), compaction_failed_at_tokens=self.failed_at)
            action = next_action(state, self.context, self.window)
            if isinstance(action, Proceed):
                if self.fits():
                    return "answered"
                refused = action_after_overflow(
                    ModelFailureKind.CONTEXT_OVERFLOW, self.tries, state.size, self.context, self.window
                )
                assert refused is not None
                action = refused
            match action:
                case ResetContext():
                    self.records = [record(max(r.seq for r in self.records) + 1, ContextStart())]
                    assert self.fits()
                    return "reset"
                case CompactContext(reason=CompactionReason.OVERFLOW):
                    self.tries = self.tries.after_compaction(helped=await self.compact(action))
                case CompactContext():
                    if not await self.compact(action):
                        self.failed_at = state.size.tokens
                case TruncateResults():
                    self.tries = self.tries.after_truncation()
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
async def test_whatever_the_model_answers_a_context_ends_in_bounds_or_afresh(
    records: list[Record], window: int, really: float, answers: list[str], mode: CompactionMode, limit: int
) -> None:
    context = ContextSettings(emergency_context_limit=limit, compaction=CompactionSettings(mode=mode))
    session = Session(records, context, window, int(window * really), answers)
    newest = records[-1].body
    assert isinstance(newest, UserTurn)
    for _ in range(3):
        outcome = await session.turn()
        assert paired(session.records)
        if outcome == "answered" and not session.tries.is_truncated:
            assert session.fits()
        if outcome == "reset":
            return
        assert newest in bodies(session.records) or any(
            isinstance(body, Summary) and newest.text.strip()[:500] in body.text for body in bodies(session.records)
        )
        seq = max(r.seq for r in session.records) + 1
        session.records.append(record(seq, asks(f"again-{seq}")))
        session.records.append(record(seq + 1, result(f"again-{seq}", "more " * 1_000)))
        session.tries, session.failed_at = OverflowAttempts(), None


# What people are told


@pytest.mark.spec("D26", "C32")
def test_a_report_says_how_much_was_in_mind_at_the_last_reply() -> None:
    records = [
        record(9, Summary(text="s" * 400, kept_from=5)),
        *(r._replace(seq=r.seq + 10) for r in told(user("u" * 40), asks("1"), result("1", "r" * 80))),
        record(20, says("k", tokens=50_000)),
    ]
    tool = ToolSpec(name="read", description="Read.", parameters={})
    lines = context_figures(
        records,
        model="acme/large",
        window_tokens=WINDOW,
        instructions="i" * 400,
        tools=[tool],
        compactions=2,
        capped_results=1,
        pruned_results=3,
    )
    assert lines["last-reply"] == "50,000 of 200,000 tokens (25%) by test/model"
    assert lines["compactions"] == 2 and lines["records-in-context"] == 5
    assert lines["results-shortened"] == "1 capped, 3 pruned"
    assert lines["about-tokens-by-part"] == "instructions 100, tools 3, summary 100, turns 13, results 20"


@pytest.mark.spec("D26")
def test_a_report_before_the_first_reply_says_that_there_is_none_yet() -> None:
    lines = context_figures(told(user()), model="m", window_tokens=WINDOW, instructions="", tools=(), compactions=0)
    assert lines["last-reply"] == "none yet"
    lines = context_figures(
        told(user(), says("k")), model="m", window_tokens=WINDOW, instructions="", tools=(), compactions=0
    )
    assert lines["last-reply"] == "not counted by test/model"


def test_compaction_by_hand_leaves_only_the_newest_turn() -> None:
    action = requested_compaction(measured(300), DEFAULTS, WINDOW)
    assert action.keep_fewest and action.gain_tokens_min == 0 and action.reason is CompactionReason.REQUESTED
    assert compacted_notice(12_000, 800, 2) == "Compacted: about 12,000 tokens became 800 (compactions so far: 2)."
    assert COMPACTING_NOTICE
