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

S, T = SessionId("a" * 32), SessionId("b" * 32)
CALL = Call(id="c1", tool="read", arguments={})


def record(seq: int, body: RecordBody, run: str | None = None, trust: Trust = Trust.PRIVATE) -> Record:
    kind = RecordKind.START if isinstance(body, ContextStart) else body_kind(body)
    return Record(
        session=S, seq=seq, kind=kind, body=body, at_ms=seq, run=RunId(run) if run is not None else None, trust=trust
    )


def says(text: str, *calls: Call) -> Reply:
    return Reply(text=text, calls=calls, usage=Usage(input_tokens=100, output_tokens=5))


def got(call: str = "c1", trust: Trust = Trust.PRIVATE) -> ToolResult:
    return ToolResult(call=call, tool="read", output="x", trust=trust)


TALK = [
    record(1, ContextStart()),
    record(2, UserTurn(text="one"), "r1", Trust.OWNER),
    record(3, says("", CALL), "r1"),
    record(4, got(), "r1", Trust.UNTRUSTED),
    record(5, UserTurn(text="and shorter"), "r1", Trust.OWNER),  # steered
    record(6, says("1"), "r1"),
    record(7, UserTurn(text="by the way"), None, Trust.OWNER),  # silent mail
    record(8, UserTurn(text="two"), "r2", Trust.OWNER),
    record(9, says("2"), "r2"),
    record(10, Note(text="cancelled"), "r2"),
    record(11, UserTurn(text="three"), "r3", Trust.OWNER),
    record(12, says("3"), "r3"),
]


def seqs(records: list[Record] | None) -> list[int]:
    assert records is not None
    return [each.seq for each in records]


def test_a_request_is_mail_with_all_that_came_of_it_whoever_joined_in() -> None:
    assert [seqs(part) for part in split_requests(TALK)] == [[1], [2, 3, 4, 5, 6], [7], [8, 9, 10], [11, 12]]
    # Copies belong to no run: then mail begins a request wherever no call waits for its result.
    bare = [each._replace(run=None) for each in TALK]
    assert [seqs(part) for part in split_requests(bare)] == [[1], [2, 3, 4], [5, 6], [7], [8, 9, 10], [11, 12]]
    odd = [record(1, ContextStart()), record(2, says("", CALL)), record(3, UserTurn(text="?")), record(4, got())]
    assert [seqs(part) for part in split_requests(odd)] == [[1, 2, 3, 4]], "a call and its result are never parted"


@pytest.mark.parametrize(
    ("seq", "cut", "left"),
    [
        (9, TrimMode.BEFORE, [8, 9, 10, 11, 12]),
        (8, TrimMode.AFTER, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (4, TrimMode.AFTER, [1, 2, 3, 4, 5, 6]),  # in the middle of a request: it is kept whole
        (5, TrimMode.REQUEST, [1, 7, 8, 9, 10, 11, 12]),
        (12, TrimMode.AFTER, [each.seq for each in TALK]),
        (2, TrimMode.BEFORE, [each.seq for each in TALK[1:]]),
    ],
)
def test_cuts_fall_between_requests(seq: int, cut: TrimMode, left: list[int]) -> None:
    assert seqs(trim_records(TALK, seq, cut)) == left


@pytest.mark.parametrize("seq", [0, 1, 13])
def test_what_is_in_no_request_cannot_be_cut_at(seq: int) -> None:
    assert all(trim_records(TALK, seq, cut) is None for cut in TrimMode)


def test_what_was_said_after_untrusted_words_is_not_cleaned_by_cutting_them_out() -> None:
    left = trim_records(TALK, 8, TrimMode.BEFORE)
    assert left is not None
    assert {each.seq: each.trust for each in left}[9] is Trust.UNTRUSTED
    assert {each.seq: each.trust for each in left}[8] is Trust.OWNER, "a person's words are their own"
    assert least_trust_in(left) is Trust.UNTRUSTED
    # Nothing untrusted was cut out before it, or what was came later.
    assert least_trust_in(trim_records(TALK[:1] + TALK[6:], 11, TrimMode.BEFORE) or []) is Trust.PRIVATE
    early = [TALK[0], *TALK[7:10], *TALK[1:6]]
    assert {each.seq: each.trust for each in trim_records(early, 3, TrimMode.REQUEST) or []}[9] is Trust.PRIVATE


def test_what_a_provider_counted_before_a_gap_counts_no_more() -> None:
    left = trim_records(TALK, 8, TrimMode.REQUEST)
    assert left is not None
    counted = {each.seq: each.body.usage.estimated for each in left if isinstance(each.body, Reply)}
    assert counted == {3: False, 6: False, 12: True}


def test_a_summary_goes_with_what_it_tells_of_and_stays_with_what_it_does_not() -> None:
    told = record(13, Summary(text="short", kept_from=8), "r4")
    talk = [*TALK, record(14, UserTurn(text="four"), "r4"), told._replace(seq=15), record(16, says("4"), "r4")]
    assert 15 not in seqs(trim_records(talk, 2, TrimMode.REQUEST)), "it tells of the first"
    assert 15 not in seqs(trim_records(talk, 11, TrimMode.BEFORE))
    left = trim_records(talk, 11, TrimMode.REQUEST)
    assert 15 in seqs(left)
    made = [record(20, ContextStart()), *copy_records((left or [])[1:], session=S, after=20)]
    context_from, summaries = find_context_start(made)
    assert summaries == 1
    [again] = [each.body for each in made if isinstance(each.body, Summary)]
    assert context_from == again.kept_from
    # It is read first, and then exactly what it had kept, at its new place.
    words = [each.body.text for each in arrange_records(made) if isinstance(each.body, UserTurn)]
    assert words == ["two", "four"]


def test_copies_carry_everything_but_their_run() -> None:
    made = copy_records(TALK[1:], session=T, after=1)
    assert [each.seq for each in made] == list(range(2, 13)) and {each.session for each in made} == {T}
    assert all(each.run is None for each in made)
    carried = [(each.kind, each.body, each.at_ms, each.trust) for each in made]
    assert carried == [(each.kind, each.body, each.at_ms, each.trust) for each in TALK[1:]]


def test_the_beginning_of_a_context_has_no_call_without_its_result() -> None:
    assert seqs(drop_unanswered_reply(TALK[:3])) == [1, 2]
    assert seqs(drop_unanswered_reply(TALK[:4])) == [1, 2, 3, 4]
    assert seqs(drop_unanswered_reply(TALK[:2])) == [1, 2]
    two = replace(says("", CALL, replace(CALL, id="c2")))
    assert seqs(drop_unanswered_reply([record(1, ContextStart()), record(2, two), record(3, got())])) == [1]


@given(
    st.lists(st.integers(min_value=0, max_value=3), min_size=1, max_size=6),
    st.integers(min_value=1, max_value=40),
    st.sampled_from(TrimMode),
    st.booleans(),
)
def test_no_cut_leaves_a_call_without_its_result(turns: list[int], at: int, cut: TrimMode, with_runs: bool) -> None:
    talk = [record(1, ContextStart())]
    for number, calls in enumerate(turns):
        run = f"r{number}" if with_runs else None
        talk.append(record(len(talk) + 1, UserTurn(text=str(number)), run))
        for index in range(calls):
            id_ = f"{number}.{index}"
            talk.append(record(len(talk) + 1, says("", replace(CALL, id=id_)), run))
            talk.append(record(len(talk) + 1, got(id_), run))
        talk.append(record(len(talk) + 1, says("done"), run))
    left = trim_records(talk, min(at, len(talk)), cut)
    if left is None:
        assert min(at, len(talk)) == 1
        return
    made = [
        record(100, ContextStart()),
        *copy_records([each for each in left if not isinstance(each.body, ContextStart)], session=S, after=100),
    ]
    assert pair_calls_with_results(made) == made, "nothing had to be put in or left out"
