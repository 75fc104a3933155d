"""What all wires share: bodies joined from bytes that were made once."""

from __future__ import annotations

import pytest
from models.replay import records_of

from retinue.config.minds import WireFormat
from retinue.domain.ids import SessionId
from retinue.domain.record import Record, UserTurn
from retinue.domain.tool import ToolSpec
from retinue.models.base import WireCache
from retinue.models.wires import PLAIN_IDS, Heads, arguments_of, fitting, listed, merged, wire_of

ONE, OTHER = SessionId("1" * 32), SessionId("2" * 32)


class Encoding:
    """Counts what it encodes."""

    def __init__(self, mark: bytes = b"") -> None:
        self.count = 0
        self._mark = mark

    def __call__(self, record: Record) -> bytes:
        self.count += 1
        assert isinstance(record.body, UserTurn)
        return self._mark + record.body.text.encode()


def turns(*texts: str) -> list[Record]:
    return records_of(*(UserTurn(text=text) for text in texts))


@pytest.mark.parametrize("format_", list(WireFormat))
def test_every_format_has_a_wire(format_: WireFormat) -> None:
    assert hasattr(wire_of(format_, WireCache()), "request")


def test_only_new_records_are_encoded() -> None:
    cache, encode = WireCache(), Encoding()
    history = turns("a", "b", "c")
    assert list(cache.of(ONE, history[:2], encode)) == [b"a", b"b"]
    assert list(cache.of(ONE, history, encode)) == [b"a", b"b", b"c"]
    assert list(cache.of(ONE, tuple(history), encode)) == [b"a", b"b", b"c"]
    assert list(cache.of(ONE, turns("a", "b", "c"), encode)) == [b"a", b"b", b"c"]  # equal, if not the same
    assert encode.count == 3


def test_what_was_made_in_one_form_is_not_used_in_another() -> None:
    cache = WireCache()
    history = turns("a", "b")
    plain, marked = Encoding(), Encoding(b"*")
    for _ in range(2):
        assert list(cache.of(ONE, history, plain, form="plain")) == [b"a", b"b"]
        assert list(cache.of(ONE, history, marked, form="marked")) == [b"*a", b"*b"]
        assert list(cache.of(OTHER, history, marked, form="marked")) == [b"*a", b"*b"]
    assert (plain.count, marked.count) == (2, 4)
    assert cache.size_bytes == 2 + 4 + 4


def test_from_where_a_history_differs_it_is_encoded_again() -> None:
    cache, encode = WireCache(), Encoding()
    cache.of(ONE, turns("a", "b", "c"), encode)
    assert list(cache.of(ONE, turns("a", "x", "c"), encode)) == [b"a", b"x", b"c"]
    assert encode.count == 5
    assert list(cache.of(ONE, turns("a"), encode)) == [b"a"]
    assert cache.size_bytes == 1


def test_what_was_longest_unused_goes_first() -> None:
    cache, encode = WireCache(bytes_max=4), Encoding()
    for session in (ONE, OTHER, ONE):
        cache.of(session, turns("aa"), encode)
    cache.of(SessionId("3" * 32), turns("bb"), encode)
    assert cache.size_bytes == 4
    assert encode.count == 3
    cache.of(ONE, turns("aa"), encode)
    assert encode.count == 3
    cache.of(OTHER, turns("aa"), encode)
    assert encode.count == 4


def tool(name: str) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={"type": "object"})


def test_instructions_and_tools_are_encoded_once_for_each_pair() -> None:
    heads, made = Heads(heads_max=2), list[str]()

    def head(instructions: str, *tools: str, form: str = "") -> bytes:
        def encode() -> bytes:
            made.append(instructions)
            return f"{form}{instructions}:{','.join(tools)}".encode()

        return heads.of(instructions, [tool(name) for name in tools], encode, form=form)

    assert head("a", "x") == head("a", "x") == b"a:x"
    assert made == ["a"]
    assert head("a", "x", "y") == b"a:x,y"
    assert head("a", "x", form="f") == b"fa:x"
    assert head("b") == b"b:"
    assert head("a", "x", "y") == b"a:x,y"  # which had to go for the others
    assert made == ["a", "a", "a", "b", "a"]


def test_records_stand_in_a_list_with_commas_between() -> None:
    assert b"".join(listed([b"", b",1", b"", b",2"], first=True)) == b"1,2"
    assert b"".join(listed([b",1", b",2"], first=False)) == b",1,2"
    assert listed([b"", b""], first=True) == []


def test_what_the_settings_say_wins_over_ours() -> None:
    assert merged({"a": 1, "b": 2}, {"b": 3, "c": 4, "mine": 5}, without=("mine",)) == b'{"a":1,"b":3,"c":4'


def test_an_id_that_fits_stays_and_another_always_becomes_the_same() -> None:
    assert fitting("5e55ab12-0-1", PLAIN_IDS) == "5e55ab12-0-1"
    assert fitting("a b", PLAIN_IDS) == fitting("a b", PLAIN_IDS) != fitting("a  b", PLAIN_IDS)


def test_whole_numbers_of_any_length_are_arguments() -> None:
    assert arguments_of('{"n": 123456789012345678901234567890}') == {"n": 123456789012345678901234567890}
