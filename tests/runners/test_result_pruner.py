"""Results that are too long or too old are shortened in requests, and unchanged in the store."""

from __future__ import annotations

import copy
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runners.histories import (
    NOON,
    SESSION,
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
    HardClearSettings,
    PrunedToolSettings,
    PruningMode,
    PruningSettings,
    SoftTrimSettings,
)
from retinue.domain.ids import SessionId
from retinue.domain.record import Record, RecordBody, Summary
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.runners.result_pruner import (
    RESULT_CHARS_CAP,
    RESULT_CHARS_KEPT_MIN,
    ResultShortener,
    cap_results,
    prune_results,
    result_chars_max,
    seconds_since_reply,
)

WINDOW_TOKENS = 20_000  # 80,000 characters
PRUNING_ON = PruningSettings(mode=PruningMode.CACHE_TTL)
COLD_CACHE_S = 301.0
WARM_CACHE_S = 299.0


def exchanges(count: int, *, chars: int = 10_000, tool: str = "read") -> list[Record]:
    made: list[RecordBody] = []
    for n in range(count):
        made += [
            user(f"question {n}"),
            make_call_reply(str(n), tool=tool),
            result(str(n), "r" * chars, tool=tool),
            make_reply("answer"),
        ]
    return make_records(*made)


def outputs(records: object) -> list[str]:
    assert isinstance(records, list)
    return [r.body.output for r in records if isinstance(r.body, ToolResult)]


def shorten_records(
    records: list[Record], settings: PruningSettings, *, idle: float | None = COLD_CACHE_S, window: int = WINDOW_TOKENS
) -> list[Record]:
    return list(ResultShortener().shorten(SESSION, records, settings, window_tokens=window, idle_s=idle))


# The cap


@pytest.mark.spec("C45")
def test_the_result_pruner_limits_a_result_to_30_percent_of_the_window_and_400000_characters() -> None:
    assert result_chars_max(20_000) == 24_000
    assert result_chars_max(1_000_000) == RESULT_CHARS_CAP == 400_000
    assert result_chars_max(1_000) == RESULT_CHARS_KEPT_MIN == 2_000


@pytest.mark.spec("C45")
def test_the_result_pruner_truncates_a_result_over_the_limit_at_the_end_of_a_line_with_a_note() -> None:
    records = make_records(user(), make_call_reply("1"), result("1", "a line of words\n" * 5_000))
    [output] = outputs(shorten_records(records, PruningSettings()))
    cut, _, note = output.partition("\n\n[cut: ")
    assert cut.endswith("a line of words") and "80000 characters" in note
    assert 24_000 * 0.8 <= len(output) <= 24_000


@pytest.mark.spec("C45")
@given(st.text(alphabet="ab\n漢", min_size=2_500, max_size=9_000), st.integers(2_000, 2_400))
def test_a_result_truncated_by_the_result_pruner_keeps_at_least_2000_characters(text: str, chars_max: int) -> None:
    [output] = outputs(list(cap_results(make_records(result("1", text)), chars_max)))
    kept = output.rpartition("\n\n[cut: ")[0]
    assert text.startswith(kept) and len(kept) >= 2_000


def test_the_result_pruner_returns_results_that_fit_as_the_same_list() -> None:
    records = exchanges(3, chars=100)
    assert cap_results(records, 2_000) is records
    seen = ResultShortener().shorten(SESSION, records, PRUNING_ON, window_tokens=WINDOW_TOKENS, idle_s=COLD_CACHE_S)
    assert seen is records


# Pruning: when


@pytest.mark.spec("C44", "C117")
def test_old_tool_results_are_pruned_only_once_the_cache_is_cold() -> None:
    records = exchanges(6)
    assert shorten_records(records, PRUNING_ON, idle=WARM_CACHE_S) == records
    assert shorten_records(records, PRUNING_ON, idle=None) == records
    assert shorten_records(records, PRUNING_ON, idle=COLD_CACHE_S) != records
    assert shorten_records(records, replace(PRUNING_ON, ttl_s=200.0), idle=WARM_CACHE_S) != records


@pytest.mark.spec("C117")
def test_result_pruning_is_off_by_default() -> None:
    records = exchanges(6)
    assert shorten_records(records, PruningSettings()) == records


def test_the_result_pruner_counts_idle_seconds_from_the_newest_reply() -> None:
    assert seconds_since_reply(make_records(user(), make_reply("k"), user()), NOON + timedelta(seconds=62)) == 60
    assert seconds_since_reply(make_records(user()), NOON) is None


# Pruning: what


@pytest.mark.spec("C44", "C117")
def test_results_near_the_last_replies_are_not_pruned() -> None:
    records = exchanges(6)
    lengths = [len(output) for output in outputs(shorten_records(records, PRUNING_ON))]
    assert [n == 10_000 for n in lengths] == [False] * 4 + [False, True]  # three replies: two answers and a call
    lengths = [len(output) for output in outputs(shorten_records(records, replace(PRUNING_ON, keep_last_assistants=6)))]
    assert [n == 10_000 for n in lengths] == [False] * 3 + [True] * 3
    assert shorten_records(records, replace(PRUNING_ON, keep_last_assistants=13)) == records


@pytest.mark.spec("C44")
def test_results_before_the_first_turn_are_not_pruned() -> None:
    records = make_records(make_call_reply("0"), result("0", "s" * 10_000), *bodies(exchanges(6)))
    first, second, *_ = outputs(shorten_records(records, PRUNING_ON))
    assert len(first) == 10_000 and len(second) < 10_000


def test_results_after_a_summary_are_pruned_even_before_the_first_turn() -> None:
    rest = [
        r._replace(seq=r.seq + 10)
        for r in make_records(make_call_reply("0"), result("0", "s" * 10_000), *bodies(exchanges(6)))
    ]
    records = [record(9, Summary(text="in short", kept_from=11)), *rest]
    assert len(outputs(shorten_records(records, PRUNING_ON))[0]) < 10_000


@pytest.mark.spec("C44")
def test_a_result_with_an_image_is_not_pruned() -> None:
    records = exchanges(6)
    shown = "a plot: data:image/png;base64," + "A" * 10_000
    records[2] = records[2]._replace(body=result("0", shown))
    first, second, *_ = outputs(shorten_records(records, PRUNING_ON))
    assert first == shown and len(second) < 10_000


@pytest.mark.spec("C117")
@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (PrunedToolSettings(allow=("web_*",)), {"web_fetch"}),
        (PrunedToolSettings(deny=("READ",)), {"web_fetch", "shell"}),
        (PrunedToolSettings(allow=("*",), deny=("web_*", "shell")), {"read"}),
        (PrunedToolSettings(allow=()), set()),
    ],
)
def test_only_results_of_allowed_tools_are_pruned_and_of_denied_tools_never(
    tools: PrunedToolSettings, expected: set[str]
) -> None:
    made: list[RecordBody] = []
    for n, tool in enumerate(["web_fetch", "read", "shell"] * 3):
        made += [
            user("q"),
            make_call_reply(str(n), tool=tool),
            result(str(n), "r" * 10_000, tool=tool),
            make_reply("answer"),
        ]
    made += [user("q"), make_reply("a"), make_reply("b"), make_reply("c")]
    seen = shorten_records(make_records(*made), replace(PRUNING_ON, tools=tools))
    changed = {b.tool for b in bodies(seen) if isinstance(b, ToolResult) and len(b.output) != 10_000}
    assert changed == expected


# Pruning: how


@pytest.mark.spec("C117")
def test_the_result_pruner_trims_long_results_to_beginning_and_end_from_30_percent_of_the_window() -> None:
    records = exchanges(3, chars=9_000)  # 27,000 of 80,000 characters
    records[2] = records[2]._replace(body=result("0", "a" * 4_500 + "z" * 4_500))
    first, *_ = outputs(shorten_records(records, PRUNING_ON))
    assert first.startswith("a" * 1_500 + "\n") and "z" * 1_500 in first and "z" * 1_501 not in first
    assert "9000 characters" in first
    assert shorten_records(records, replace(PRUNING_ON, soft_trim_ratio=0.35)) == records


@pytest.mark.spec("C117")
def test_the_soft_trim_settings_decide_how_much_of_a_result_the_result_pruner_keeps() -> None:
    records = exchanges(4, chars=9_000)
    soft = SoftTrimSettings(max_chars=8_999, head_chars=10, tail_chars=0)
    first, *_ = outputs(shorten_records(records, replace(PRUNING_ON, soft_trim=soft)))
    assert first.startswith("r" * 10 + "\n") and first.count("r") < 40
    assert shorten_records(records, replace(PRUNING_ON, soft_trim=replace(soft, max_chars=9_000))) == records
    assert (
        shorten_records(
            records, replace(PRUNING_ON, soft_trim=SoftTrimSettings(max_chars=100, head_chars=4_500, tail_chars=4_500))
        )
        == records
    )


@pytest.mark.spec("C117")
def test_the_result_pruner_clears_the_oldest_results_from_50_percent_of_the_window() -> None:
    records = exchanges(20, chars=4_000)  # too short to be trimmed, but 80,000 characters in all
    seen = outputs(shorten_records(records, PRUNING_ON))
    cleared = [output == "[Old tool result content cleared]" for output in seen]
    assert cleared == sorted(cleared, reverse=True) and 0 < sum(cleared) < 19
    left = sum(map(len, seen)) + sum(len("question 00answer") + len("read{}") for _ in range(20))
    assert left < 40_500
    more = outputs(shorten_records(records, replace(PRUNING_ON, hard_clear_ratio=0.2)))
    assert sum(output.startswith("[Old") for output in more) > sum(cleared)


@pytest.mark.spec("C117")
def test_clearing_by_the_result_pruner_can_be_disabled_reworded_and_needs_a_minimum_of_characters() -> None:
    records = exchanges(20, chars=4_000)
    assert shorten_records(records, replace(PRUNING_ON, hard_clear=HardClearSettings(enabled=False))) == records
    assert (
        outputs(shorten_records(records, replace(PRUNING_ON, hard_clear=HardClearSettings(placeholder="gone"))))[0]
        == "gone"
    )
    assert shorten_records(records, replace(PRUNING_ON, min_prunable_chars=80_001)) == records
    assert outputs(shorten_records(records, replace(PRUNING_ON, min_prunable_chars=1)))[0].startswith("[Old")


# Between turns


def test_pruned_results_stay_pruned_while_the_cache_is_warm_again() -> None:
    """The provider's cache now starts with the shortened form; the longer one would be charged at the full price."""
    shortened = ResultShortener()
    records = exchanges(6)
    cold = shortened.shorten(SESSION, records, PRUNING_ON, window_tokens=WINDOW_TOKENS, idle_s=COLD_CACHE_S)
    records += [r._replace(seq=r.seq + 100) for r in exchanges(1)]
    warm = shortened.shorten(SESSION, records, PRUNING_ON, window_tokens=WINDOW_TOKENS, idle_s=1.0)
    assert all(ours is theirs for ours, theirs in zip(cold, warm, strict=False))
    assert list(warm[len(cold) :]) == records[len(cold) :]
    assert shortened.counts(SESSION) == (0, 5)


def test_records_shortened_by_the_result_pruner_are_reused_so_that_no_record_is_encoded_twice() -> None:
    shortened, cache = ResultShortener(), EncodedContextCache()
    encoded: list[int] = []

    def encode(item: Record) -> bytes:
        encoded.append(item.seq)
        return repr(item.body).encode()

    records = exchanges(6, chars=30_000)
    for idle in (COLD_CACHE_S, 1.0, 1.0, COLD_CACHE_S):
        seen = shortened.shorten(SESSION, records, PRUNING_ON, window_tokens=WINDOW_TOKENS, idle_s=idle)
        cache.encode_records(SESSION, list(seen), encode)
    assert len(encoded) == len(records)


def test_the_result_pruner_does_not_reuse_earlier_shortened_records_in_a_replaced_context() -> None:
    shortened = ResultShortener()
    shortened.shorten(SESSION, exchanges(6), PRUNING_ON, window_tokens=WINDOW_TOKENS, idle_s=COLD_CACHE_S)
    others = exchanges(6, chars=50)
    assert shortened.shorten(SESSION, others, PRUNING_ON, window_tokens=WINDOW_TOKENS, idle_s=1.0) is others


def test_truncation_by_the_result_pruner_shortens_every_result_to_its_minimum() -> None:
    records = exchanges(3, chars=20_000)
    seen = ResultShortener().shorten(
        SESSION, records, PruningSettings(), window_tokens=WINDOW_TOKENS, idle_s=1.0, truncate=True
    )
    assert all(2_000 <= len(output) <= 2_200 for output in outputs(seen))


def test_the_result_pruner_limits_its_memory_of_shortened_results() -> None:
    shortened = ResultShortener(chars_max=50_000)
    for n in range(5):
        session = SessionId(str(n))
        shortened.shorten(
            session, exchanges(1, chars=30_000), PruningSettings(), window_tokens=WINDOW_TOKENS, idle_s=1.0
        )
    assert [shortened.counts(SessionId(str(n))) for n in range(5)] == [(0, 0)] * 3 + [(1, 0)] * 2


@pytest.mark.spec("C44", "C117")
@given(
    histories(),
    st.builds(
        PruningSettings,
        mode=st.just(PruningMode.CACHE_TTL),
        keep_last_assistants=st.integers(0, 3),
        soft_trim_ratio=st.floats(0, 1),
        hard_clear_ratio=st.floats(0, 1),
        min_prunable_chars=st.integers(0, 5_000),
        soft_trim=st.builds(
            SoftTrimSettings,
            max_chars=st.integers(0, 9_000),
            head_chars=st.integers(0, 900),
            tail_chars=st.integers(0, 900),
        ),
    ),
    st.integers(1_000, 30_000),
)
def test_pruning_changes_only_result_outputs_and_never_the_stored_records(
    records: list[Record], settings: PruningSettings, window: int
) -> None:
    before = copy.deepcopy(records)
    seen = shorten_records(records, settings, window=window)
    assert records == before
    assert len(seen) == len(records)
    for ours, theirs in zip(seen, records, strict=True):
        if isinstance(theirs.body, ToolResult) and isinstance(ours.body, ToolResult):
            assert ours._replace(body=replace(ours.body, output=theirs.body.output)) == theirs
        else:
            assert ours is theirs
    assert all(len(o) <= len(t) for o, t in zip(outputs(seen), outputs(records), strict=True))
    assert prune_results(records, settings, window_tokens=window) == prune_results(
        records, settings, window_tokens=window
    )
