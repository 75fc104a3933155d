"""The context for a model: every call is followed by its result, whatever was lost."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from runners.histories import are_calls_paired, histories, record, with_summary

from retinue.domain.ids import RunId, SessionId
from retinue.domain.record import ContextStart, Note, Record, Reply, Summary, UserTurn, body_kind
from retinue.domain.times import to_ms
from retinue.domain.tool import Call, ToolResult
from retinue.runners.model_context import arrange_records, leading_summary, pair_calls_with_results

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def make_history(*bodies: tuple[str | None, Any]) -> list[Record]:
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


def make_call_reply(*ids: str) -> Reply:
    return Reply(text="", calls=tuple(Call(id=id_, tool="t") for id_ in ids))


def result(id_: str) -> ToolResult:
    return ToolResult(call=id_, tool="t", output=f"result of {id_}")


def user(text: str = "hello") -> UserTurn:
    return UserTurn(text=text)


def bodies(records: list[Record]) -> list[Any]:
    return [record.body for record in records]


LOST_RESULT_TEXT = "This result was lost."


def test_the_model_context_does_not_change_a_history_with_all_results() -> None:
    records = make_history(
        ("a", user()), ("a", make_call_reply("1", "2")), ("a", result("1")), ("a", result("2")), ("a", Reply(text="k"))
    )
    assert pair_calls_with_results(records) == records


@pytest.mark.spec("C47", "D27")
def test_the_model_context_replaces_a_missing_result_by_a_failed_result() -> None:
    records = make_history(
        ("a", user()), ("a", make_call_reply("1", "2")), ("a", result("2")), ("a", Reply(text="k")), ("b", user())
    )
    made = bodies(pair_calls_with_results(records))
    assert made[2] == ToolResult(call="1", tool="t", output=LOST_RESULT_TEXT, failed=True)
    assert made[3] == result("2")


@pytest.mark.spec("C47")
def test_the_model_context_omits_a_result_without_its_call() -> None:
    records = make_history(("a", user()), ("a", result("1")), ("a", Reply(text="k")))
    assert bodies(pair_calls_with_results(records)) == [user(), Reply(text="k")]


def test_results_follow_their_calls_in_the_order_of_the_calls_in_the_model_context() -> None:
    records = make_history(
        ("a", make_call_reply("1", "2", "3")),
        ("a", result("3")),
        (None, user("a note")),
        ("a", result("1")),
        ("a", result("2")),
    )
    assert bodies(pair_calls_with_results(records)) == [
        make_call_reply("1", "2", "3"),
        result("1"),
        result("2"),
        result("3"),
        user("a note"),
    ]


def test_the_model_context_keeps_only_the_first_of_two_results_of_a_call() -> None:
    first = result("1")
    second = ToolResult(call="1", tool="t", output="another")
    made = bodies(
        pair_calls_with_results(
            make_history(("a", make_call_reply("1")), ("a", first), ("a", second), ("a", Reply(text="k")))
        )
    )
    assert made == [make_call_reply("1"), first, Reply(text="k")]


def test_the_model_context_adds_no_replacement_results_for_calls_of_an_unfinished_run() -> None:
    records = make_history(("a", user()), ("a", make_call_reply("1", "2")), ("a", result("1")))
    assert pair_calls_with_results(records) == records


@pytest.mark.spec("D27")
@pytest.mark.parametrize("next_", [("b", UserTurn(text="next")), (None, UserTurn(text="a note"))])
def test_the_model_context_adds_replacement_results_for_calls_of_a_run_followed_by_other_records(
    next_: tuple[str | None, Any],
) -> None:
    """The end of the run was lost and will not be written any more."""
    made = bodies(pair_calls_with_results(make_history(("a", user()), ("a", make_call_reply("1")), next_)))
    assert made[2] == ToolResult(call="1", tool="t", output=LOST_RESULT_TEXT, failed=True)


def test_a_replacement_result_in_the_model_context_has_the_run_and_sequence_number_of_its_call() -> None:
    records = make_history(("a", user()), ("a", make_call_reply("1")), ("b", user()))
    made = pair_calls_with_results(records)[2]
    assert (made.run, made.seq, made.kind) == ("a", 2, "tool")


def test_the_model_context_adds_nothing_to_a_history_without_calls() -> None:
    assert pair_calls_with_results([]) == []
    assert bodies(pair_calls_with_results(make_history(("a", Note(text="by the way"))))) == [Note(text="by the way")]


@pytest.mark.spec("C47")
@pytest.mark.parametrize("seed", range(50))
def test_the_model_context_gives_every_call_a_result_and_keeps_the_order_after_any_loss(seed: int) -> None:
    chance = random.Random(seed)
    all_bodies: list[tuple[str | None, Any]] = []
    for run in map(str, range(6)):
        all_bodies.append((run, user(f"question {run}")))
        for turn in range(chance.randint(0, 3)):
            ids = [f"{run}-{turn}-{n}" for n in range(chance.randint(1, 4))]
            all_bodies.append((run, make_call_reply(*ids)))
            chance.shuffle(ids)
            all_bodies += [(run, result(id_)) for id_ in ids]
        all_bodies.append((run, Reply(text=f"answer {run}")))
        if chance.random() < 0.5:
            all_bodies.append((None, user("a note")))
    left = [piece for piece in all_bodies if chance.random() < 0.7]
    left.append(("last", user("the newest question")))
    made = pair_calls_with_results(make_history(*left))
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


def test_a_summary_precedes_the_kept_records_in_the_model_context_and_replaces_the_older_records() -> None:
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


def test_only_the_newest_of_two_summaries_is_in_the_model_context() -> None:
    records = [
        record(1, user("old")),
        record(2, user("kept twice")),
        record(3, Summary(text="first", kept_from=2)),
        record(4, user("new")),
        record(5, Summary(text="second", kept_from=2)),
    ]
    assert [r.seq for r in arrange_records(records)] == [5, 2, 4]


def test_a_reset_after_a_summary_starts_a_model_context_without_the_summary() -> None:
    records = [
        record(1, user("old")),
        record(2, Summary(text="in short", kept_from=1)),
        record(3, ContextStart(text="carried over")),
        record(4, user("new")),
    ]
    assert [r.seq for r in arrange_records(records)] == [3, 4]
    assert leading_summary(arrange_records(records)) is None


def test_a_model_context_without_a_summary_is_not_rearranged() -> None:
    records = [record(1, ContextStart()), record(2, user()), record(3, Reply(text="k"))]
    assert arrange_records(records) == records
    assert arrange_records([]) == []


def test_the_model_context_omits_a_result_whose_call_was_summarized() -> None:
    records = [
        record(1, user()),
        record(2, make_call_reply("1")),
        record(3, Note(text="by the way")),
        record(4, result("1")),
        record(5, Reply(text="k")),
        record(6, Summary(text="in short", kept_from=3)),
    ]
    assert [r.seq for r in pair_calls_with_results(arrange_records(records))] == [6, 3, 5]


@given(histories(), st.lists(st.floats(0, 1), max_size=3))
def test_arranging_the_model_context_keeps_order_and_call_pairs_and_is_idempotent(
    records: list[Record], cuts: list[float]
) -> None:
    for cut in cuts:
        records = with_summary(records, "in short", records[int(cut * (len(records) - 1))].seq)
    made = pair_calls_with_results(arrange_records(records))
    assert are_calls_paired(made)
    assert pair_calls_with_results(arrange_records(made)) == made
    assert [id(r) for r in arrange_records(arrange_records(records))] == [id(r) for r in arrange_records(records)]
    seqs = [r.seq for r in made if not isinstance(r.body, ToolResult | Summary)]
    assert seqs == sorted(seqs)
    assert sum(isinstance(r.body, Summary) for r in made) == bool(cuts)
