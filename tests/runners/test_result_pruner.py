"""Results that are too long or too old are sent shorter, and kept as they are."""

from __future__ import annotations

import copy
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runners.histories import NOON, SESSION, asks, bodies, histories, record, result, says, told, user

from retinue.config.models import HardClearSettings, PrunedToolSettings, PruningMode, PruningSettings, SoftTrimSettings
from retinue.domain.ids import SessionId
from retinue.domain.record import Record, RecordBody, Summary
from retinue.domain.structs import replace
from retinue.domain.tool import ToolResult
from retinue.models.base import EncodedContextCache
from retinue.runners.result_pruner import (
    RESULT_CHARS_CAP,
    RESULT_CHARS_KEPT_MIN,
    ResultShortener,
    cap_results,
    prune_results,
    result_chars_max,
    seconds_since_reply,
)

WINDOW = 20_000  # 80,000 characters
ON = PruningSettings(mode=PruningMode.CACHE_TTL)
COLD_S = 301.0
WARM_S = 299.0


def exchanges(count: int, *, chars: int = 10_000, tool: str = "read") -> list[Record]:
    made: list[RecordBody] = []
    for n in range(count):
        made += [user(f"question {n}"), asks(str(n), tool=tool), result(str(n), "r" * chars, tool=tool), says("answer")]
    return told(*made)


def outputs(records: object) -> list[str]:
    assert isinstance(records, list)
    return [r.body.output for r in records if isinstance(r.body, ToolResult)]


def view(
    records: list[Record], settings: PruningSettings, *, idle: float | None = COLD_S, window: int = WINDOW
) -> list[Record]:
    return list(ResultShortener().shorten(SESSION, records, settings, window_tokens=window, idle_s=idle))


# The cap


@pytest.mark.spec("C45")
def test_one_result_takes_at_most_30_percent_of_the_window_and_400000_characters() -> None:
    assert result_chars_max(20_000) == 24_000
    assert result_chars_max(1_000_000) == RESULT_CHARS_CAP == 400_000
    assert result_chars_max(1_000) == RESULT_CHARS_KEPT_MIN == 2_000


@pytest.mark.spec("C45")
def test_a_longer_result_is_cut_at_the_end_of_a_line_with_a_note() -> None:
    records = told(user(), asks("1"), result("1", "a line of words\n" * 5_000))
    [output] = outputs(view(records, PruningSettings()))
    cut, _, note = output.partition("\n\n[cut: ")
    assert cut.endswith("a line of words") and "80000 characters" in note
    assert 24_000 * 0.8 <= len(output) <= 24_000


@pytest.mark.spec("C45")
@given(st.text(alphabet="ab\n漢", min_size=2_500, max_size=9_000), st.integers(2_000, 2_400))
def test_whatever_is_cut_at_least_2000_characters_stay(text: str, chars_max: int) -> None:
    [output] = outputs(list(cap_results(told(result("1", text)), chars_max)))
    kept = output.rpartition("\n\n[cut: ")[0]
    assert text.startswith(kept) and len(kept) >= 2_000


def test_a_result_that_fits_is_left_alone_and_the_list_is_the_same() -> None:
    records = exchanges(3, chars=100)
    assert cap_results(records, 2_000) is records
    seen = ResultShortener().shorten(SESSION, records, ON, window_tokens=WINDOW, idle_s=COLD_S)
    assert seen is records


# Pruning: when


@pytest.mark.spec("C44", "C117")
def test_old_results_are_pruned_only_once_the_cache_is_cold() -> None:
    records = exchanges(6)
    assert view(records, ON, idle=WARM_S) == records
    assert view(records, ON, idle=None) == records
    assert view(records, ON, idle=COLD_S) != records
    assert view(records, replace(ON, ttl_s=200.0), idle=WARM_S) != records


@pytest.mark.spec("C117")
def test_pruning_is_off_unless_it_is_asked_for() -> None:
    records = exchanges(6)
    assert view(records, PruningSettings()) == records


def test_the_last_call_is_as_old_as_the_newest_reply() -> None:
    assert seconds_since_reply(told(user(), says("k"), user()), NOON + timedelta(seconds=62)) == 60
    assert seconds_since_reply(told(user()), NOON) is None


# Pruning: what


@pytest.mark.spec("C44", "C117")
def test_the_results_of_the_last_replies_stay_as_they_are() -> None:
    records = exchanges(6)
    lengths = [len(output) for output in outputs(view(records, ON))]
    assert [n == 10_000 for n in lengths] == [False] * 4 + [False, True]  # three replies: two answers and a call
    lengths = [len(output) for output in outputs(view(records, replace(ON, keep_last_assistants=6)))]
    assert [n == 10_000 for n in lengths] == [False] * 3 + [True] * 3
    assert view(records, replace(ON, keep_last_assistants=13)) == records


@pytest.mark.spec("C44")
def test_what_stands_before_the_first_turn_stays_as_it_is() -> None:
    records = told(asks("0"), result("0", "s" * 10_000), *bodies(exchanges(6)))
    first, second, *_ = outputs(view(records, ON))
    assert len(first) == 10_000 and len(second) < 10_000


def test_after_a_summary_everything_follows_a_turn() -> None:
    rest = [r._replace(seq=r.seq + 10) for r in told(asks("0"), result("0", "s" * 10_000), *bodies(exchanges(6)))]
    records = [record(9, Summary(text="in short", kept_from=11)), *rest]
    assert len(outputs(view(records, ON))[0]) < 10_000


@pytest.mark.spec("C44")
def test_a_result_with_an_image_stays_as_it_is() -> None:
    records = exchanges(6)
    shown = "a plot: data:image/png;base64," + "A" * 10_000
    records[2] = records[2]._replace(body=result("0", shown))
    first, second, *_ = outputs(view(records, ON))
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
def test_only_allowed_tools_are_pruned_and_denied_ones_never(tools: PrunedToolSettings, expected: set[str]) -> None:
    made: list[RecordBody] = []
    for n, tool in enumerate(["web_fetch", "read", "shell"] * 3):
        made += [user("q"), asks(str(n), tool=tool), result(str(n), "r" * 10_000, tool=tool), says("answer")]
    made += [user("q"), says("a"), says("b"), says("c")]
    seen = view(told(*made), replace(ON, tools=tools))
    changed = {b.tool for b in bodies(seen) if isinstance(b, ToolResult) and len(b.output) != 10_000}
    assert changed == expected


# Pruning: how


@pytest.mark.spec("C117")
def test_from_30_percent_of_the_window_long_results_keep_their_beginning_and_end() -> None:
    records = exchanges(3, chars=9_000)  # 27,000 of 80,000 characters
    records[2] = records[2]._replace(body=result("0", "a" * 4_500 + "z" * 4_500))
    first, *_ = outputs(view(records, ON))
    assert first.startswith("a" * 1_500 + "\n") and "z" * 1_500 in first and "z" * 1_501 not in first
    assert "9000 characters" in first
    assert view(records, replace(ON, soft_trim_ratio=0.35)) == records


@pytest.mark.spec("C117")
def test_how_much_of_a_result_is_kept_is_as_set() -> None:
    records = exchanges(4, chars=9_000)
    soft = SoftTrimSettings(max_chars=8_999, head_chars=10, tail_chars=0)
    first, *_ = outputs(view(records, replace(ON, soft_trim=soft)))
    assert first.startswith("r" * 10 + "\n") and first.count("r") < 40
    assert view(records, replace(ON, soft_trim=replace(soft, max_chars=9_000))) == records
    assert (
        view(records, replace(ON, soft_trim=SoftTrimSettings(max_chars=100, head_chars=4_500, tail_chars=4_500)))
        == records
    )


@pytest.mark.spec("C117")
def test_from_50_percent_on_the_oldest_are_cleared_until_it_is_less() -> None:
    records = exchanges(20, chars=4_000)  # too short to be trimmed, 80,000 characters in all
    seen = outputs(view(records, ON))
    cleared = [output == "[Old tool result content cleared]" for output in seen]
    assert cleared == sorted(cleared, reverse=True) and 0 < sum(cleared) < 19
    left = sum(map(len, seen)) + sum(len("question 00answer") + len("read{}") for _ in range(20))
    assert left < 40_500
    more = outputs(view(records, replace(ON, hard_clear_ratio=0.2)))
    assert sum(output.startswith("[Old") for output in more) > sum(cleared)


@pytest.mark.spec("C117")
def test_clearing_can_be_turned_off_worded_otherwise_and_is_not_done_for_little() -> None:
    records = exchanges(20, chars=4_000)
    assert view(records, replace(ON, hard_clear=HardClearSettings(enabled=False))) == records
    assert outputs(view(records, replace(ON, hard_clear=HardClearSettings(placeholder="gone"))))[0] == "gone"
    assert view(records, replace(ON, min_prunable_chars=80_001)) == records
    assert outputs(view(records, replace(ON, min_prunable_chars=1)))[0].startswith("[Old")


# From turn to turn


def test_what_was_pruned_stays_so_while_the_cache_is_warm_again() -> None:
    """The provider's cache now begins with the shorter form: the longer one would be read at its full price."""
    shortened = ResultShortener()
    records = exchanges(6)
    cold = shortened.shorten(SESSION, records, ON, window_tokens=WINDOW, idle_s=COLD_S)
    records += [r._replace(seq=r.seq + 100) for r in exchanges(1)]
    warm = shortened.shorten(SESSION, records, ON, window_tokens=WINDOW, idle_s=1.0)
    assert all(ours is theirs for ours, theirs in zip(cold, warm, strict=False))
    assert list(warm[len(cold) :]) == records[len(cold) :]
    assert shortened.counts(SESSION) == (0, 5)


def test_the_same_records_are_handed_out_again_so_that_nothing_is_encoded_twice() -> None:
    shortened, cache = ResultShortener(), EncodedContextCache()
    encoded: list[int] = []

    def encode(item: Record) -> bytes:
        encoded.append(item.seq)
        return repr(item.body).encode()

    records = exchanges(6, chars=30_000)
    for idle in (COLD_S, 1.0, 1.0, COLD_S):
        seen = shortened.shorten(SESSION, records, ON, window_tokens=WINDOW, idle_s=idle)
        cache.encode_records(SESSION, list(seen), encode)
    assert len(encoded) == len(records)


def test_a_context_that_is_another_now_is_looked_at_afresh() -> None:
    shortened = ResultShortener()
    shortened.shorten(SESSION, exchanges(6), ON, window_tokens=WINDOW, idle_s=COLD_S)
    others = exchanges(6, chars=50)
    assert shortened.shorten(SESSION, others, ON, window_tokens=WINDOW, idle_s=1.0) is others


def test_when_no_compaction_helps_results_can_be_sent_as_short_as_may_be() -> None:
    records = exchanges(3, chars=20_000)
    seen = ResultShortener().shorten(
        SESSION, records, PruningSettings(), window_tokens=WINDOW, idle_s=1.0, truncate=True
    )
    assert all(2_000 <= len(output) <= 2_200 for output in outputs(seen))


def test_what_is_remembered_of_shortened_results_is_bounded() -> None:
    shortened = ResultShortener(chars_max=50_000)
    for n in range(5):
        session = SessionId(str(n))
        shortened.shorten(session, exchanges(1, chars=30_000), PruningSettings(), window_tokens=WINDOW, idle_s=1.0)
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
def test_pruning_changes_outputs_of_results_in_what_is_sent_and_nothing_that_is_kept(
    records: list[Record], settings: PruningSettings, window: int
) -> None:
    before = copy.deepcopy(records)
    seen = view(records, settings, window=window)
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
