"""Events out of bytes, wherever these are cut."""

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


SMALL = "\ufeff: hello\r\nevent: word\r\ndata: grüße\r\n\r\ndata: a\rdata: b\r\rdata:{}\n\nid: 7\ndata: last".encode()
SMALL_READ = [(b"word", "grüße".encode()), (b"", b"a\nb"), (b"", b"{}"), (b"", b"last")]


@pytest.mark.parametrize("cut", range(len(SMALL) + 1))
def test_a_stream_is_the_same_wherever_it_is_cut_in_two(cut: int) -> None:
    assert read(SMALL[:cut], SMALL[cut:]) == SMALL_READ


def test_a_stream_may_come_byte_by_byte() -> None:
    assert read(*(SMALL[at : at + 1] for at in range(len(SMALL)))) == SMALL_READ


@given(st.lists(st.integers(0, len(SMALL))))
def test_a_stream_is_the_same_wherever_it_is_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(SMALL)]
    assert read(*(SMALL[a:b] for a, b in itertools.pairwise(places))) == SMALL_READ


def test_lines_end_in_lf_crlf_or_cr() -> None:
    for end in (b"\n", b"\r\n", b"\r"):
        assert read(b"event: a" + end + b"data: 1" + end + end + b"data: 2" + end + end) == [(b"a", b"1"), (b"", b"2")]


def test_a_crlf_cut_in_two_is_one_line_end() -> None:
    assert read(b"data: 1\r", b"\n", b"data: 2\r", b"\n\r", b"\n") == [(b"", b"1\n2")]


def test_a_mark_of_byte_order_is_no_part_of_the_first_line() -> None:
    assert read(b"\xef", b"\xbb", b"\xbfdata: 1\n\n") == [(b"", b"1")]


def test_comments_and_unknown_fields_are_passed_over() -> None:
    assert read(b": PROCESSING\n\n: still\nretry: 10\nid: 4\nwhatever\ndata: 1\n\n") == [(b"", b"1")]


def test_lines_of_data_are_joined_and_lose_one_space_each() -> None:
    assert read(b"data: {\ndata:  1}\ndata\n\n") == [(b"", b"{\n 1}\n")]


def test_an_event_without_data_is_none_and_its_name_does_not_stay() -> None:
    assert read(b"event: ping\n\ndata: 1\n\n") == [(b"", b"1")]


def test_the_last_event_needs_no_blank_line_and_no_line_end() -> None:
    assert read(b"data: 1\n\ndata: 2\n") == [(b"", b"1"), (b"", b"2")]
    assert read(b"data: 1\n\ndata: 2") == [(b"", b"1"), (b"", b"2")]
    assert read(b"data: 1\r") == [(b"", b"1")]
    assert read(b"") == []


def test_an_event_is_told_as_soon_as_it_is_whole() -> None:
    events = SseParser()
    assert events.feed(b"data: 1\n") == []
    assert events.feed(b"\nda") == [(b"", b"1")]
    assert events.feed(b"ta: 2\n\n") == [(b"", b"2")]


@pytest.mark.parametrize("endless", [b"data: ", b"data: 1234567\n"])
def test_an_event_without_end_is_refused(monkeypatch: pytest.MonkeyPatch, endless: bytes) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 1000)
    with pytest.raises(ModelFailed) as failed:
        read(*[endless] * 1000)
    assert failed.value.failure is ModelFailureKind.MALFORMED
    assert failed.value.code == "model.event_too_large"


def test_a_long_line_in_small_pieces_is_put_together_once() -> None:
    pieces = [b"data: ", *[b"x" * 1000] * 3000, b"\r", b"\n\r\n"]
    assert read(*pieces) == [(b"", b"x" * 3_000_000)]


def test_many_small_events_are_no_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 100)
    events = SseParser()
    assert sum(len(events.feed(b"data: 123\n\n")) for _ in range(1000)) == 1000
