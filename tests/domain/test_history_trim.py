from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.history_trim import (
    TrimMode,
    copy_records,
    drop_unanswered_reply,
    find_context_start,
    split_requests,
    trim_records,
)
from retinue.domain.ids import RunId, SessionId
from retinue.domain.record import (
    ContextStart,
    Note,
    Record,
    RecordBody,
    RecordKind,
    Reply,
    Summary,
    Usage,
    UserTurn,
    body_kind,
    least_trust_in,
)
from retinue.domain.structs import replace
from retinue.domain.tool import Call, ToolResult
from retinue.domain.trust import Trust
from retinue.runners.model_context import arrange_records, pair_calls_with_results

SESSION, OTHER_SESSION = SessionId("a" * 32), SessionId("b" * 32)
CALL = Call(id="c1", tool="read", arguments={})


def record(seq: int, body: RecordBody, run: str | None = None, trust: Trust = Trust.PRIVATE) -> Record:
    kind = RecordKind.START if isinstance(body, ContextStart) else body_kind(body)
    return Record(
        session=SESSION,
        seq=seq,
        kind=kind,
        body=body,
        at_ms=seq,
        run=RunId(run) if run is not None else None,
        trust=trust,
    )


def make_reply(text: str, *calls: Call) -> Reply:
    return Reply(text=text, calls=calls, usage=Usage(input_tokens=100, output_tokens=5))


def make_tool_result(call: str = "c1", trust: Trust = Trust.PRIVATE) -> ToolResult:
    return ToolResult(call=call, tool="read", output="x", trust=trust)


RECORDS = [
    record(1, ContextStart()),
    record(2, UserTurn(text="one"), "r1", Trust.OWNER),
    record(3, make_reply("", CALL), "r1"),
    record(4, make_tool_result(), "r1", Trust.UNTRUSTED),
    record(5, UserTurn(text="and shorter"), "r1", Trust.OWNER),  # steered
    record(6, make_reply("1"), "r1"),
    record(7, UserTurn(text="by the way"), None, Trust.OWNER),  # silent message
    record(8, UserTurn(text="two"), "r2", Trust.OWNER),
    record(9, make_reply("2"), "r2"),
    record(10, Note(text="cancelled"), "r2"),
    record(11, UserTurn(text="three"), "r3", Trust.OWNER),
    record(12, make_reply("3"), "r3"),
]


def list_seqs(records: list[Record] | None) -> list[int]:
    assert records is not None
    return [each.seq for each in records]


def test_a_history_is_split_for_a_trim_into_messages_with_all_records_of_their_runs() -> None:
    assert [list_seqs(part) for part in split_requests(RECORDS)] == [[1], [2, 3, 4, 5, 6], [7], [8, 9, 10], [11, 12]]
    # Copied records have no run: a message then begins a request wherever no call waits for its result.
    without_runs = [each._replace(run=None) for each in RECORDS]
    assert [list_seqs(part) for part in split_requests(without_runs)] == [
        [1],
        [2, 3, 4],
        [5, 6],
        [7],
        [8, 9, 10],
        [11, 12],
    ]
    odd = [
        record(1, ContextStart()),
        record(2, make_reply("", CALL)),
        record(3, UserTurn(text="?")),
        record(4, make_tool_result()),
    ]
    assert [list_seqs(part) for part in split_requests(odd)] == [[1, 2, 3, 4]], (
        "a call and its result are never separated"
    )


@pytest.mark.parametrize(
    ("seq", "cut", "left"),
    [
        (9, TrimMode.BEFORE, [8, 9, 10, 11, 12]),
        (8, TrimMode.AFTER, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (4, TrimMode.AFTER, [1, 2, 3, 4, 5, 6]),  # in the middle of a request, which is kept whole
        (5, TrimMode.REQUEST, [1, 7, 8, 9, 10, 11, 12]),
        (12, TrimMode.AFTER, [each.seq for each in RECORDS]),
        (2, TrimMode.BEFORE, [each.seq for each in RECORDS[1:]]),
    ],
)
def test_records_are_trimmed_between_requests(seq: int, cut: TrimMode, left: list[int]) -> None:
    assert list_seqs(trim_records(RECORDS, seq, cut)) == left


@pytest.mark.parametrize("seq", [0, 1, 13])
def test_records_cannot_be_trimmed_at_a_record_outside_any_request(seq: int) -> None:
    assert all(trim_records(RECORDS, seq, cut) is None for cut in TrimMode)


def test_records_after_untrusted_ones_stay_untrusted_when_those_are_trimmed() -> None:
    left = trim_records(RECORDS, 8, TrimMode.BEFORE)
    assert left is not None
    assert {each.seq: each.trust for each in left}[9] is Trust.UNTRUSTED
    assert {each.seq: each.trust for each in left}[8] is Trust.OWNER, "a person's message keeps its own trust"
    assert least_trust_in(left) is Trust.UNTRUSTED
    # No untrusted record was removed before it, or the untrusted record came later.
    assert least_trust_in(trim_records(RECORDS[:1] + RECORDS[6:], 11, TrimMode.BEFORE) or []) is Trust.PRIVATE
    early = [RECORDS[0], *RECORDS[7:10], *RECORDS[1:6]]
    assert {each.seq: each.trust for each in trim_records(early, 3, TrimMode.REQUEST) or []}[9] is Trust.PRIVATE


def test_token_usage_after_a_trimmed_gap_is_marked_as_estimated() -> None:
    left = trim_records(RECORDS, 8, TrimMode.REQUEST)
    assert left is not None
    counted = {each.seq: each.body.usage.estimated for each in left if isinstance(each.body, Reply)}
    assert counted == {3: False, 6: False, 12: True}


def test_a_summary_is_trimmed_only_if_records_it_summarizes_are_trimmed() -> None:
    summary_record = record(13, Summary(text="short", kept_from=8), "r4")
    talk = [
        *RECORDS,
        record(14, UserTurn(text="four"), "r4"),
        summary_record._replace(seq=15),
        record(16, make_reply("4"), "r4"),
    ]
    assert 15 not in list_seqs(trim_records(talk, 2, TrimMode.REQUEST)), "the summary covers the first request"
    assert 15 not in list_seqs(trim_records(talk, 11, TrimMode.BEFORE))
    left = trim_records(talk, 11, TrimMode.REQUEST)
    assert 15 in list_seqs(left)
    made = [record(20, ContextStart()), *copy_records((left or [])[1:], session=SESSION, after=20)]
    context_from, summaries = find_context_start(made)
    assert summaries == 1
    [again] = [each.body for each in made if isinstance(each.body, Summary)]
    assert context_from == again.kept_from
    # The summary comes first, then exactly the records that it had kept, at their new position.
    words = [each.body.text for each in arrange_records(made) if isinstance(each.body, UserTurn)]
    assert words == ["two", "four"]


def test_records_copied_from_a_trimmed_history_keep_everything_except_their_run() -> None:
    made = copy_records(RECORDS[1:], session=OTHER_SESSION, after=1)
    assert [each.seq for each in made] == list(range(2, 13)) and {each.session for each in made} == {OTHER_SESSION}
    assert all(each.run is None for each in made)
    carried = [(each.kind, each.body, each.at_ms, each.trust) for each in made]
    assert carried == [(each.kind, each.body, each.at_ms, each.trust) for each in RECORDS[1:]]


def test_a_trim_can_drop_a_final_reply_whose_calls_have_no_results() -> None:
    assert list_seqs(drop_unanswered_reply(RECORDS[:3])) == [1, 2]
    assert list_seqs(drop_unanswered_reply(RECORDS[:4])) == [1, 2, 3, 4]
    assert list_seqs(drop_unanswered_reply(RECORDS[:2])) == [1, 2]
    two = replace(make_reply("", CALL, replace(CALL, id="c2")))
    assert list_seqs(
        drop_unanswered_reply([record(1, ContextStart()), record(2, two), record(3, make_tool_result())])
    ) == [1]


@given(
    st.lists(st.integers(min_value=0, max_value=3), min_size=1, max_size=6),
    st.integers(min_value=1, max_value=40),
    st.sampled_from(TrimMode),
    st.booleans(),
)
def test_trimming_never_leaves_a_call_without_its_result(
    turns: list[int], at: int, cut: TrimMode, with_runs: bool
) -> None:
    talk = [record(1, ContextStart())]
    for number, calls in enumerate(turns):
        run = f"r{number}" if with_runs else None
        talk.append(record(len(talk) + 1, UserTurn(text=str(number)), run))
        for index in range(calls):
            id_ = f"{number}.{index}"
            talk.append(record(len(talk) + 1, make_reply("", replace(CALL, id=id_)), run))
            talk.append(record(len(talk) + 1, make_tool_result(id_), run))
        talk.append(record(len(talk) + 1, make_reply("done"), run))
    left = trim_records(talk, min(at, len(talk)), cut)
    if left is None:
        assert min(at, len(talk)) == 1
        return
    made = [
        record(100, ContextStart()),
        *copy_records([each for each in left if not isinstance(each.body, ContextStart)], session=SESSION, after=100),
    ]
    assert pair_calls_with_results(made) == made, "nothing had to be added or removed"
