"""Server-sent events are parsed from bytes that are split anywhere."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.domain.model import ModelFailed, ModelFailureKind
from retinue.models import sse
from retinue.models.sse import SseParser


def read(*pieces: bytes) -> list[tuple[bytes, bytes]]:
    events = SseParser()
    found = [event for piece in pieces for event in events.feed(piece)]
    return found + events.finish()


SMALL_STREAM = (
    "\ufeff: hello\r\nevent: word\r\ndata: grüße\r\n\r\ndata: a\rdata: b\r\rdata:{}\n\nid: 7\ndata: last".encode()
)
SMALL_STREAM_EVENTS = [(b"word", "grüße".encode()), (b"", b"a\nb"), (b"", b"{}"), (b"", b"last")]


@pytest.mark.parametrize("cut", range(len(SMALL_STREAM) + 1))
def test_sse_events_are_the_same_for_any_split_into_two_pieces(cut: int) -> None:
    assert read(SMALL_STREAM[:cut], SMALL_STREAM[cut:]) == SMALL_STREAM_EVENTS


def test_an_sse_stream_is_parsed_byte_by_byte() -> None:
    assert read(*(SMALL_STREAM[at : at + 1] for at in range(len(SMALL_STREAM)))) == SMALL_STREAM_EVENTS


@given(st.lists(st.integers(0, len(SMALL_STREAM))))
def test_sse_events_are_the_same_for_any_split(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(SMALL_STREAM)]
    assert read(*(SMALL_STREAM[a:b] for a, b in itertools.pairwise(places))) == SMALL_STREAM_EVENTS


def test_sse_lines_end_in_lf_crlf_or_cr() -> None:
    for end in (b"\n", b"\r\n", b"\r"):
        assert read(b"event: a" + end + b"data: 1" + end + end + b"data: 2" + end + end) == [(b"a", b"1"), (b"", b"2")]


def test_a_crlf_split_between_two_pieces_of_an_sse_stream_is_one_line_end() -> None:
    assert read(b"data: 1\r", b"\n", b"data: 2\r", b"\n\r", b"\n") == [(b"", b"1\n2")]


def test_a_byte_order_mark_is_removed_from_the_first_line_of_an_sse_stream() -> None:
    assert read(b"\xef", b"\xbb", b"\xbfdata: 1\n\n") == [(b"", b"1")]


def test_sse_comments_and_unknown_fields_are_ignored() -> None:
    assert read(b": PROCESSING\n\n: still\nretry: 10\nid: 4\nwhatever\ndata: 1\n\n") == [(b"", b"1")]


def test_data_lines_of_an_sse_event_are_joined_without_their_first_space() -> None:
    assert read(b"data: {\ndata:  1}\ndata\n\n") == [(b"", b"{\n 1}\n")]


def test_an_sse_event_without_data_is_dropped_with_its_name() -> None:
    assert read(b"event: ping\n\ndata: 1\n\n") == [(b"", b"1")]


def test_the_last_sse_event_needs_no_blank_line_or_line_end() -> None:
    assert read(b"data: 1\n\ndata: 2\n") == [(b"", b"1"), (b"", b"2")]
    assert read(b"data: 1\n\ndata: 2") == [(b"", b"1"), (b"", b"2")]
    assert read(b"data: 1\r") == [(b"", b"1")]
    assert read(b"") == []


def test_an_sse_event_is_returned_as_soon_as_it_is_complete() -> None:
    events = SseParser()
    assert events.feed(b"data: 1\n") == []
    assert events.feed(b"\nda") == [(b"", b"1")]
    assert events.feed(b"ta: 2\n\n") == [(b"", b"2")]


@pytest.mark.parametrize("endless", [b"data: ", b"data: 1234567\n"])
def test_an_sse_event_over_the_size_limit_is_refused(monkeypatch: pytest.MonkeyPatch, endless: bytes) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 1000)
    with pytest.raises(ModelFailed) as failed:
        read(*[endless] * 1000)
    assert failed.value.failure is ModelFailureKind.MALFORMED
    assert failed.value.code == "model.event_too_large"


def test_a_long_sse_line_in_many_pieces_is_parsed() -> None:
    pieces = [b"data: ", *[b"x" * 1000] * 3000, b"\r", b"\n\r\n"]
    assert read(*pieces) == [(b"", b"x" * 3_000_000)]


def test_many_small_sse_events_do_not_count_as_one_large_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 100)
    events = SseParser()
    assert sum(len(events.feed(b"data: 123\n\n")) for _ in range(1000)) == 1000
