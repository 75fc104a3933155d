"""The context a model is given: every call with its result next to it, whatever was lost."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runners.histories import histories, paired, record, with_summary

from retinue.domain.ids import RunId, SessionId
from retinue.domain.record import ContextStart, Note, Record, Reply, Summary, UserTurn, body_kind
from retinue.domain.times import to_ms
from retinue.domain.tool import Call, ToolResult
from retinue.runners.model_context import arrange_records, leading_summary, pair_calls_with_results

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def history(*bodies: tuple[str | None, Any]) -> list[Record]:
    return [
        Record(
            session=SessionId("s"),
            seq=seq,
            kind=body_kind(body),
            body=body,
            at_ms=to_ms(NOON),
            run=RunId(run) if run is not None else None,
        )
        for seq, (run, body) in enumerate(bodies, start=1)
    ]


def asks(*ids: str) -> Reply:
    return Reply(text="", calls=tuple(Call(id=id_, tool="t") for id_ in ids))


def result(id_: str) -> ToolResult:
    return ToolResult(call=id_, tool="t", output=f"result of {id_}")


def user(text: str = "hello") -> UserTurn:
    return UserTurn(text=text)


def bodies(records: list[Record]) -> list[Any]:
    return [record.body for record in records]


LOST = "This result was lost."


def test_a_whole_history_is_left_as_it_is() -> None:
    records = history(
        ("a", user()), ("a", asks("1", "2")), ("a", result("1")), ("a", result("2")), ("a", Reply(text="k"))
    )
    assert pair_calls_with_results(records) == records


@pytest.mark.spec("C47", "D27")
def test_a_missing_result_is_put_in_and_says_so() -> None:
    records = history(("a", user()), ("a", asks("1", "2")), ("a", result("2")), ("a", Reply(text="k")), ("b", user()))
    made = bodies(pair_calls_with_results(records))
    assert made[2] == ToolResult(call="1", tool="t", output=LOST, failed=True)
    assert made[3] == result("2")


@pytest.mark.spec("C47")
def test_a_result_without_its_call_is_left_out() -> None:
    records = history(("a", user()), ("a", result("1")), ("a", Reply(text="k")))
    assert bodies(pair_calls_with_results(records)) == [user(), Reply(text="k")]


def test_results_stand_in_the_order_of_their_calls_right_behind_them() -> None:
    records = history(
        ("a", asks("1", "2", "3")), ("a", result("3")), (None, user("a note")), ("a", result("1")), ("a", result("2"))
    )
    assert bodies(pair_calls_with_results(records)) == [
        asks("1", "2", "3"),
        result("1"),
        result("2"),
        result("3"),
        user("a note"),
    ]


def test_a_result_that_is_there_twice_counts_once() -> None:
    first = result("1")
    second = ToolResult(call="1", tool="t", output="another")
    made = bodies(
        pair_calls_with_results(history(("a", asks("1")), ("a", first), ("a", second), ("a", Reply(text="k"))))
    )
    assert made == [asks("1"), first, Reply(text="k")]


def test_the_calls_of_a_run_that_may_still_make_them_are_left_open() -> None:
    records = history(("a", user()), ("a", asks("1", "2")), ("a", result("1")))
    assert pair_calls_with_results(records) == records


@pytest.mark.spec("D27")
@pytest.mark.parametrize("next_", [("b", UserTurn(text="next")), (None, UserTurn(text="a note"))])
def test_the_calls_of_a_run_that_others_have_followed_are_closed(next_: tuple[str | None, Any]) -> None:
    """Its last words were lost, and nobody will make them any more."""
    made = bodies(pair_calls_with_results(history(("a", user()), ("a", asks("1")), next_)))
    assert made[2] == ToolResult(call="1", tool="t", output=LOST, failed=True)


def test_what_is_made_up_belongs_to_the_run_and_the_place_of_its_call() -> None:
    records = history(("a", user()), ("a", asks("1")), ("b", user()))
    made = pair_calls_with_results(records)[2]
    assert (made.run, made.seq, made.kind) == ("a", 2, "tool")


def test_nothing_is_made_of_nothing() -> None:
    assert pair_calls_with_results([]) == []
    assert bodies(pair_calls_with_results(history(("a", Note(text="by the way"))))) == [Note(text="by the way")]


@pytest.mark.spec("C47")
@pytest.mark.parametrize("seed", range(50))
def test_whatever_is_lost_every_call_has_its_result_and_the_rest_keeps_its_order(seed: int) -> None:
    chance = random.Random(seed)
    told: list[tuple[str | None, Any]] = []
    for run in map(str, range(6)):
        told.append((run, user(f"question {run}")))
        for turn in range(chance.randint(0, 3)):
            ids = [f"{run}-{turn}-{n}" for n in range(chance.randint(1, 4))]
            told.append((run, asks(*ids)))
            chance.shuffle(ids)
            told += [(run, result(id_)) for id_ in ids]
        told.append((run, Reply(text=f"answer {run}")))
        if chance.random() < 0.5:
            told.append((None, user("a note")))
    left = [piece for piece in told if chance.random() < 0.7]
    left.append(("last", user("the newest question")))
    made = pair_calls_with_results(history(*left))
    expected: list[str] = []
    for item in made:
        if isinstance(item.body, ToolResult):
            assert item.body.call == expected.pop(0)
            continue
        assert expected == []
        expected = [call.id for call in item.body.calls] if isinstance(item.body, Reply) else []
    assert expected == []
    plain = [body for _, body in left if not isinstance(body, ToolResult)]
    assert [record.body for record in made if not isinstance(record.body, ToolResult)] == plain


# Summaries


def test_a_summary_is_read_before_what_it_has_kept_and_in_place_of_the_rest() -> None:
    records = [
        record(1, user("old")),
        record(2, Reply(text="old answer")),
        record(3, user("kept")),
        record(4, Reply(text="kept answer")),
        record(5, Summary(text="in short", kept_from=3)),
        record(6, user("new")),
    ]
    assert [r.seq for r in arrange_records(records)] == [5, 3, 4, 6]
    assert leading_summary(arrange_records(records)) is records[4]


def test_of_two_summaries_only_the_newest_is_read() -> None:
    records = [
        record(1, user("old")),
        record(2, user("kept twice")),
        record(3, Summary(text="first", kept_from=2)),
        record(4, user("new")),
        record(5, Summary(text="second", kept_from=2)),
    ]
    assert [r.seq for r in arrange_records(records)] == [5, 2, 4]


def test_a_reset_after_a_summary_begins_afresh() -> None:
    records = [
        record(1, user("old")),
        record(2, Summary(text="in short", kept_from=1)),
        record(3, ContextStart(text="carried over")),
        record(4, user("new")),
    ]
    assert [r.seq for r in arrange_records(records)] == [3, 4]
    assert leading_summary(arrange_records(records)) is None


def test_a_context_without_a_summary_is_left_as_it_is() -> None:
    records = [record(1, ContextStart()), record(2, user()), record(3, Reply(text="k"))]
    assert arrange_records(records) == records
    assert arrange_records([]) == []


def test_a_result_whose_call_was_told_in_short_is_left_out() -> None:
    records = [
        record(1, user()),
        record(2, asks("1")),
        record(3, Note(text="by the way")),
        record(4, result("1")),
        record(5, Reply(text="k")),
        record(6, Summary(text="in short", kept_from=3)),
    ]
    assert [r.seq for r in pair_calls_with_results(arrange_records(records))] == [6, 3, 5]


@given(histories(), st.lists(st.floats(0, 1), max_size=3))
def test_arranging_keeps_the_order_and_the_pairs_and_does_nothing_twice(
    records: list[Record], cuts: list[float]
) -> None:
    for cut in cuts:
        records = with_summary(records, "in short", records[int(cut * (len(records) - 1))].seq)
    made = pair_calls_with_results(arrange_records(records))
    assert paired(made)
    assert pair_calls_with_results(arrange_records(made)) == made
    assert [id(r) for r in arrange_records(arrange_records(records))] == [id(r) for r in arrange_records(records)]
    seqs = [r.seq for r in made if not isinstance(r.body, ToolResult | Summary)]
    assert seqs == sorted(seqs)
    assert sum(isinstance(r.body, Summary) for r in made) == bool(cuts)
