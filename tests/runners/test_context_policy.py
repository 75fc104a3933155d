"""What comes before a model call, what comes after a refusal, and what people are told of it."""

from __future__ import annotations

from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runners.histories import asks, bodies, histories, paired, record, result, says, told, user

from retinue.config.models import Compaction, CompactionMode, Context, MemoryFlush, Pruning
from retinue.domain.model import Failure, ModelFailed
from retinue.domain.record import Mark, Note, Record, Reply, Summary, UserTurn
from retinue.domain.structs import replace
from retinue.domain.tool import ToolSpec
from retinue.runners.compaction_plan import NotCompacted, plan_cut, summarize
from retinue.runners.compaction_prompt import Request
from retinue.runners.context_policy import (
    COMPACTING,
    OVERFLOWED,
    Action,
    Compact,
    ContextState,
    Flush,
    Proceed,
    Reset,
    Tries,
    TruncateResults,
    Why,
    after_overflow,
    asked,
    assess,
    compacted_notice,
    flush_text,
    report,
    start_tokens,
)
from retinue.runners.model_context import arranged, whole
from retinue.runners.result_pruner import Shortened, result_chars_max
from retinue.runners.token_estimate import Measure, Meter, by_records

WINDOW = 200_000
DEFAULTS = Context()
NO_FLUSH = Context(compaction=Compaction(memory_flush=MemoryFlush(enabled=False)))


def measured(tokens: int, *, by_records: int = 0, base: int = 0, flushed: bool = False) -> Measure:
    return Measure(
        tokens=tokens,
        by_records=by_records,
        size_bytes=tokens * 4,
        base_tokens=base,
        known_tokens=tokens,
        new_bytes=0,
        flushed=flushed,
    )


def decided(measure: Measure, context: Context = DEFAULTS, *, window: int = WINDOW, writes: bool = False) -> Action:
    return assess(ContextState(measure=measure, can_write=writes), context, window)


def compaction(**changes: object) -> Context:
    return Context(compaction=replace(Compaction(), **changes))  # type: ignore[arg-type]


# When a context is compacted


@pytest.mark.spec("D23")
def test_compaction_starts_at_75_percent_of_the_window() -> None:
    assert decided(measured(149_999)) == Proceed()
    action = decided(measured(150_000))
    assert isinstance(action, Compact) and action.why is Why.FULL


@pytest.mark.spec("C116")
def test_compaction_starts_earlier_where_the_reserve_would_be_touched() -> None:
    floor = compaction(reserve_tokens_floor=80_000)
    assert decided(measured(119_999), floor) == Proceed()
    assert isinstance(decided(measured(120_000), floor), Compact)
    assert start_tokens(0, compaction(start_share=0.95), WINDOW) == 180_000
    assert start_tokens(0, compaction(start_share=0.95, reserve_tokens_floor=0), WINDOW) == 190_000


@pytest.mark.spec("C116")
def test_the_documented_defaults_are_the_real_ones() -> None:
    assert DEFAULTS.compaction.mode is CompactionMode.DEFAULT
    assert DEFAULTS.compaction.reserve_tokens_floor == 20_000
    assert DEFAULTS.compaction.max_history_share == 0.5
    assert DEFAULTS.compaction.memory_flush == MemoryFlush(enabled=True, soft_threshold_tokens=4_000)
    assert DEFAULTS.emergency_context_limit == 200_000
    action = decided(measured(150_000))
    assert isinstance(action, Compact) and action.keep_tokens == 100_000


@pytest.mark.spec("C116")
def test_the_share_of_history_bounds_what_stays() -> None:
    action = decided(measured(150_000), compaction(max_history_share=0.1))
    assert isinstance(action, Compact) and action.keep_tokens == 20_000


@given(st.integers(16_000, 2_000_000), st.floats(0.1, 0.95), st.integers(0, 100_000), st.floats(0, 0.9))
def test_in_no_window_does_compaction_start_at_once(window: int, share: float, floor: int, base_share: float) -> None:
    context = compaction(start_share=share, reserve_tokens_floor=floor, max_history_share=0.9)
    base = int(window * base_share)
    start = start_tokens(base, context, window)
    assert base + min(4_000, (window - base) // 2) - 1 <= start <= window
    action = decided(measured(start, base=base), replace(context, emergency_context_limit=10**9), window=window)
    assert isinstance(action, Compact)
    assert 0 <= action.keep_tokens <= (start - base) * 0.75  # so that the next one is not due at once


def test_the_emergency_limit_is_neared_like_the_window() -> None:
    """A model with a large window has its conversations told in short before they are given up."""
    action = decided(measured(100_000, by_records=150_000), window=1_000_000)
    assert isinstance(action, Compact) and action.keep_tokens <= 112_500
    assert decided(measured(149_000, by_records=149_999), window=1_000_000) == Proceed()


@pytest.mark.spec("D24")
def test_a_compaction_that_came_to_nothing_is_tried_again_only_after_some_growth() -> None:
    state = ContextState(measure=measured(150_000), failed_at=150_000)
    assert assess(state, DEFAULTS, WINDOW) == Proceed()
    assert assess(replace(state, measure=measured(159_999)), DEFAULTS, WINDOW) == Proceed()
    assert isinstance(assess(replace(state, measure=measured(160_000)), DEFAULTS, WINDOW), Compact)


# The emergency limit


@pytest.mark.spec("D81")
def test_at_the_emergency_limit_a_context_is_begun_afresh_and_one_token_below_it_is_not() -> None:
    action = decided(measured(10, by_records=200_000))
    assert isinstance(action, Reset)
    assert "200,000" in action.notice and "emergency_context_limit" in action.notice and "again" in action.notice
    assert not isinstance(decided(measured(10, by_records=199_999)), Reset)


@pytest.mark.spec("D81")
def test_the_emergency_limit_is_compared_with_the_characters_of_the_records() -> None:
    context = Context(emergency_context_limit=1_000)
    at = told(user("x" * 2_000), says("y" * 2_000, tokens=5))
    below = told(user("x" * 2_000), says("y" * 1_996, tokens=5))
    assert isinstance(decided(Meter().measure(at), context), Reset)
    assert not isinstance(decided(Meter().measure(below), context), Reset)
    fresh = arranged([*at, record(3, Mark()), record(4, user("after the marker"))])
    assert by_records(fresh) == 4


# The memory flush


@pytest.mark.spec("C116")
def test_shortly_before_compaction_the_agent_may_write_down_what_it_wants_to_keep() -> None:
    assert decided(measured(145_999), writes=True) == Proceed()
    assert decided(measured(146_000), writes=True) == Flush()
    assert decided(measured(150_000), writes=True) == Flush()
    sooner = compaction(memory_flush=MemoryFlush(soft_threshold_tokens=10_000))
    assert decided(measured(140_000), sooner, writes=True) == Flush()


@pytest.mark.spec("C116")
@pytest.mark.parametrize(
    ("context", "writes", "flushed"), [(NO_FLUSH, True, False), (DEFAULTS, False, False), (DEFAULTS, True, True)]
)
def test_no_flush_where_it_is_off_cannot_be_written_or_was_done(context: Context, writes: bool, flushed: bool) -> None:
    assert decided(measured(146_000, flushed=flushed), context, writes=writes) == Proceed()
    assert isinstance(decided(measured(150_000, flushed=flushed), context, writes=writes), Compact)


def test_a_flush_that_would_not_fit_is_left_out() -> None:
    assert isinstance(decided(measured(199_000), writes=True), Compact)


def test_a_flush_is_done_once_in_each_cycle() -> None:
    records = told(user("q" * 584_000))
    assert decided(Meter().measure(records), writes=True) == Flush()
    records.append(record(2, Note(text=flush_text(date(2026, 1, 5)))))
    assert decided(Meter().measure(records), writes=True) == Proceed()
    assert "memory/2026-01-05.md" in flush_text(date(2026, 1, 5)) and "`write`" in flush_text(date(2026, 1, 5))
    compacted = arranged([*records, record(3, Summary(text="s", kept_from=1))])
    assert decided(Meter().measure(compacted), writes=True) == Flush()


# After a refusal


@pytest.mark.spec("C40", "D25")
def test_an_overflow_leads_to_three_compactions_then_short_results_then_a_fresh_context() -> None:
    tries, kept = Tries(), list[int]()
    for _ in range(3):
        action = after_overflow(Failure.CONTEXT_OVERFLOW, tries, measured(180_000), DEFAULTS, WINDOW)
        assert isinstance(action, Compact) and action.why is Why.OVERFLOW and action.gain_tokens_min == 0
        kept.append(action.keep_tokens)
        tries = tries.compacted(helped=True)
    assert kept == sorted(kept, reverse=True) and len(set(kept)) == 3
    assert after_overflow(Failure.TOO_LARGE, tries, measured(1), DEFAULTS, WINDOW) == TruncateResults()
    tries = tries.truncating()
    action = after_overflow(Failure.CONTEXT_OVERFLOW, tries, measured(1), DEFAULTS, WINDOW)
    assert action == Reset(OVERFLOWED) and "send your last message again" in OVERFLOWED


@pytest.mark.spec("C40")
def test_a_compaction_that_came_to_nothing_is_not_tried_three_times() -> None:
    tries = Tries().compacted(helped=False)
    assert after_overflow(Failure.CONTEXT_OVERFLOW, tries, measured(1), DEFAULTS, WINDOW) == TruncateResults()


@pytest.mark.spec("D25")
@pytest.mark.parametrize("failure", sorted(set(Failure) - {Failure.CONTEXT_OVERFLOW, Failure.TOO_LARGE}))
def test_no_other_failure_touches_the_context(failure: Failure) -> None:
    assert after_overflow(failure, Tries(), measured(190_000), DEFAULTS, WINDOW) is None
    assert after_overflow(failure, Tries(compactions=3, truncated=True), measured(1), DEFAULTS, WINDOW) is None


# A session never becomes unusable


class Session:
    """A context and the loop around it, with a model of which only the size of its window is known."""

    def __init__(self, records: list[Record], context: Context, window: int, really: int, answers: list[str]) -> None:
        self.records = whole(arranged(records))
        self.context = context
        self.window = window
        self.really = really  # what fits in truth, by its own count
        self.answers = answers
        self.tries = Tries()
        self.failed_at: int | None = None
        self.asked = 0

    def measure(self) -> Measure:
        cap = result_chars_max(self.window)
        return Meter().measure(self.records, instructions="i" * 400, result_chars_max=cap)

    async def scribe(self, request: Request) -> Reply:
        self.asked += 1
        answer = self.answers[self.asked % len(self.answers)]
        if answer == "fails":
            raise ModelFailed("down", failure=Failure.SERVER)
        return Reply(text=answer)

    async def compact(self, action: Compact) -> bool:
        cut = plan_cut(
            self.records,
            window_tokens=self.window,
            keep_tokens=action.keep_tokens,
            records_tokens=action.records_tokens,
            fewest=action.fewest,
            gain_tokens_min=action.gain_tokens_min,
        )
        if cut is None:
            return False
        try:
            mode = self.context.compaction.mode
            text = await summarize(cut, self.scribe, window_tokens=self.window, mode=mode)
        except (NotCompacted, ModelFailed):
            return False
        before = by_records(self.records)
        seq = max(r.seq for r in self.records) + 1
        self.records = arranged([*self.records, record(seq, Summary(text=text, kept_from=cut.kept_from))])
        assert by_records(self.records) < before or not text.isascii()
        return True

    def fits(self) -> bool:
        view = Shortened().view(
            self.records[0].session,
            self.records,
            Pruning(),
            window_tokens=self.window,
            idle_s=None,
            truncate=self.tries.truncated,
        )
        return Meter().measure(view, instructions="i" * 400).tokens <= self.really

    async def turn(self) -> str:
        for _ in range(60):
            state = ContextState(measure=self.measure(), failed_at=self.failed_at)
            action = assess(state, self.context, self.window)
            if isinstance(action, Proceed):
                if self.fits():
                    return "answered"
                refused = after_overflow(Failure.CONTEXT_OVERFLOW, self.tries, state.measure, self.context, self.window)
                assert refused is not None
                action = refused
            match action:
                case Reset():
                    self.records = [record(max(r.seq for r in self.records) + 1, Mark())]
                    assert self.fits()
                    return "reset"
                case Compact(why=Why.OVERFLOW):
                    self.tries = self.tries.compacted(helped=await self.compact(action))
                case Compact():
                    if not await self.compact(action):
                        self.failed_at = state.measure.tokens
                case TruncateResults():
                    self.tries = self.tries.truncating()
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
    context = Context(emergency_context_limit=limit, compaction=Compaction(mode=mode))
    session = Session(records, context, window, int(window * really), answers)
    newest = records[-1].body
    assert isinstance(newest, UserTurn)
    for _ in range(3):
        outcome = await session.turn()
        assert paired(session.records)
        if outcome == "answered" and not session.tries.truncated:
            assert session.fits()
        if outcome == "reset":
            return
        assert newest in bodies(session.records) or any(
            isinstance(body, Summary) and newest.text.strip()[:500] in body.text for body in bodies(session.records)
        )
        seq = max(r.seq for r in session.records) + 1
        session.records.append(record(seq, asks(f"again-{seq}")))
        session.records.append(record(seq + 1, result(f"again-{seq}", "more " * 1_000)))
        session.tries, session.failed_at = Tries(), None


# What people are told


@pytest.mark.spec("D26", "C32")
def test_a_report_says_how_much_was_in_mind_at_the_last_reply() -> None:
    records = [
        record(9, Summary(text="s" * 400, kept_from=5)),
        *(r._replace(seq=r.seq + 10) for r in told(user("u" * 40), asks("1"), result("1", "r" * 80))),
        record(20, says("k", tokens=50_000)),
    ]
    tool = ToolSpec(name="read", description="Read.", parameters={})
    lines = report(
        records,
        model="acme/large",
        window_tokens=WINDOW,
        instructions="i" * 400,
        tools=[tool],
        compactions=2,
        capped=1,
        pruned=3,
    )
    assert lines["last-reply"] == "50,000 of 200,000 tokens (25%) by test/model"
    assert lines["compactions"] == 2 and lines["records-in-context"] == 5
    assert lines["results-shortened"] == "1 capped, 3 pruned"
    assert lines["about-tokens-by-part"] == "instructions 100, tools 3, summary 100, turns 13, results 20"


@pytest.mark.spec("D26")
def test_a_report_before_the_first_reply_says_that_there_is_none_yet() -> None:
    lines = report(told(user()), model="m", window_tokens=WINDOW, instructions="", tools=(), compactions=0)
    assert lines["last-reply"] == "none yet"
    lines = report(told(user(), says("k")), model="m", window_tokens=WINDOW, instructions="", tools=(), compactions=0)
    assert lines["last-reply"] == "not counted by test/model"


def test_compaction_by_hand_leaves_only_the_newest_turn() -> None:
    action = asked(measured(300), DEFAULTS, WINDOW)
    assert action.fewest and action.gain_tokens_min == 0 and action.why is Why.ASKED
    assert compacted_notice(12_000, 800, 2) == "Compacted: about 12,000 tokens became 800 (compactions so far: 2)."
    assert COMPACTING
