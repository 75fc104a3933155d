"""Test parsing the responses of an IMAP server."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retinue.connectors.email.imap_parser import (
    ImapSyntaxError,
    get_numbers,
    literal_size,
    parse_fetch_items,
    parse_internal_date,
    parse_response,
)


def test_a_literal_in_an_imap_fetch_response_is_read_by_its_length() -> None:
    mail = b'Subject: x\r\n\r\n) {3}\r\n"r1 OK'
    response = parse_response(
        [
            b"* 12 FETCH (UID 5 FLAGS (\\Seen $x) BODY[]<0> {%d}" % len(mail),
            b' INTERNALDATE "04-Mar-2026 06:06:07 +0100")',
        ],
        [mail],
    )

    assert response.numbered == (12, b"FETCH")
    items = response.values[-1]
    assert isinstance(items, list)
    found = parse_fetch_items(items)
    assert found[b"BODY[]"] == mail
    assert found[b"FLAGS"] == [b"\\Seen", b"$x"]
    assert parse_internal_date(found[b"INTERNALDATE"]) == datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)


def test_the_code_of_an_imap_status_response_is_read_from_its_brackets() -> None:
    response = parse_response([b"r1 NO [AUTHENTICATIONFAILED] not you (ever"], [])

    assert (response.tag, response.status, response.code) == (b"r1", b"NO", b"AUTHENTICATIONFAILED")
    selected = parse_response([b"* OK [UIDVALIDITY 17] fine"], [])
    assert (selected.code, selected.code_arguments) == (b"UIDVALIDITY", b"17")


def test_imap_numbers_and_nil_are_parsed() -> None:
    assert get_numbers(parse_response([b"* SEARCH 3 1 x 2"], []).values) == [3, 1, 2]
    assert parse_response([b'* LIST (NIL) "a\\"b" NIL'], []).values == [b"LIST", [None], b'a"b', None]


@pytest.mark.parametrize(
    ("line", "size"), [(b"* 1 FETCH (X {12}", 12), (b"* x ~{5}", 5), (b"* {x}", None), (b"* {1} x", None)]
)
def test_the_size_of_an_imap_literal_is_read_from_the_end_of_a_line(line: bytes, size: int | None) -> None:
    assert literal_size(line) == size


@pytest.mark.parametrize("line", [b"* 1 FETCH (", b'* LIST "', b"* X " + b"(" * 50])
def test_unclosed_lists_and_strings_are_imap_syntax_errors(line: bytes) -> None:
    with pytest.raises(ImapSyntaxError):
        parse_response([line], [])


@given(st.binary(max_size=200), st.lists(st.binary(max_size=20), max_size=3))
def test_arbitrary_bytes_parse_or_raise_an_imap_syntax_error(line: bytes, literals: list[bytes]) -> None:
    try:
        parse_response([line, *(b" x" for _ in literals)], literals)
    except ImapSyntaxError:
        pass
