"""What all wires share: bodies joined from bytes that were made once."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from models.replay import facts_of, prompt_of, records_of

from retinue.config.models import WireFormat
from retinue.domain.ids import SessionId
from retinue.domain.record import Record, Reply, UserTurn
from retinue.domain.tool import Call, ToolSpec
from retinue.models.base import EncodedContextCache
from retinue.models.formats.wire_formats import (
    OUTPUT_LIMIT_PARAMS,
    PLAIN_IDS,
    RequestHeadCache,
    build_list_items,
    encode_open_object,
    fit_call_id,
    fit_tool_name,
    make_provider_format,
    merge_params,
    parse_arguments,
)
from retinue.models.provider_http import ModelTarget
from retinue.tools.toolbox import refusal

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
    assert hasattr(make_provider_format(format_, EncodedContextCache()), "build_request")


def test_only_new_records_are_encoded() -> None:
    cache, encode = EncodedContextCache(), Encoding()
    history = turns("a", "b", "c")
    assert list(cache.encode_records(ONE, history[:2], encode)) == [b"a", b"b"]
    assert list(cache.encode_records(ONE, history, encode)) == [b"a", b"b", b"c"]
    assert list(cache.encode_records(ONE, tuple(history), encode)) == [b"a", b"b", b"c"]
    assert list(cache.encode_records(ONE, turns("a", "b", "c"), encode)) == [b"a", b"b", b"c"]  # equal, if not the same
    assert encode.count == 3


def test_what_was_made_in_one_form_is_not_used_in_another() -> None:
    cache = EncodedContextCache()
    history = turns("a", "b")
    plain, marked = Encoding(), Encoding(b"*")
    for _ in range(2):
        assert list(cache.encode_records(ONE, history, plain, format_key="plain")) == [b"a", b"b"]
        assert list(cache.encode_records(ONE, history, marked, format_key="marked")) == [b"*a", b"*b"]
        assert list(cache.encode_records(OTHER, history, marked, format_key="marked")) == [b"*a", b"*b"]
    assert (plain.count, marked.count) == (2, 4)
    assert cache.size_bytes == 2 + 4 + 4


def test_from_where_a_history_differs_it_is_encoded_again() -> None:
    cache, encode = EncodedContextCache(), Encoding()
    cache.encode_records(ONE, turns("a", "b", "c"), encode)
    assert list(cache.encode_records(ONE, turns("a", "x", "c"), encode)) == [b"a", b"x", b"c"]
    assert encode.count == 5
    assert list(cache.encode_records(ONE, turns("a"), encode)) == [b"a"]
    assert cache.size_bytes == 1


def test_what_was_longest_unused_goes_first() -> None:
    cache, encode = EncodedContextCache(bytes_max=4), Encoding()
    for session in (ONE, OTHER, ONE):
        cache.encode_records(session, turns("aa"), encode)
    cache.encode_records(SessionId("3" * 32), turns("bb"), encode)
    assert cache.size_bytes == 4
    assert encode.count == 3
    cache.encode_records(ONE, turns("aa"), encode)
    assert encode.count == 3
    cache.encode_records(OTHER, turns("aa"), encode)
    assert encode.count == 4


def tool(name: str) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={"type": "object"})


def test_instructions_and_tools_are_encoded_once_for_each_pair() -> None:
    heads, made = RequestHeadCache(heads_max=2), list[str]()

    def head(instructions: str, *tools: str, form: str = "") -> bytes:
        def encode() -> bytes:
            made.append(instructions)
            return f"{form}{instructions}:{','.join(tools)}".encode()

        return heads.get_or_encode(instructions, [tool(name) for name in tools], encode, format_key=form)

    assert head("a", "x") == head("a", "x") == b"a:x"
    assert made == ["a"]
    assert head("a", "x", "y") == b"a:x,y"
    assert head("a", "x", form="f") == b"fa:x"
    assert head("b") == b"b:"
    assert head("a", "x", "y") == b"a:x,y"  # which had to go for the others
    assert made == ["a", "a", "a", "b", "a"]


def test_records_stand_in_a_list_with_commas_between() -> None:
    assert b"".join(build_list_items([b"", b",1", b"", b",2"], first=True)) == b"1,2"
    assert b"".join(build_list_items([b",1", b",2"], first=False)) == b",1,2"
    assert build_list_items([b"", b""], first=True) == []


def test_what_the_settings_say_wins_over_ours() -> None:
    both = merge_params({"a": 1, "b": 2}, {"b": 3, "c": 4, "mine": 5}, output_tokens_max=100, without=("mine",))
    assert both == {"a": 1, "b": 3, "c": 4}
    assert encode_open_object(both) == b'{"a":1,"b":3,"c":4'


@pytest.mark.parametrize("format_", list(WireFormat))
def test_no_setting_buys_more_than_was_granted(format_: WireFormat) -> None:
    """Params once went over the bound of a reply that a budget had lowered, and asked for several replies at once."""
    more: dict[str, Any] = dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens"), 64_000
    )
    more |= {"n": 8, "best_of": 8, "candidateCount": 8, "model": "a-dearer-one"}
    is_google = format_ is WireFormat.GOOGLE
    target = ModelTarget(
        facts=facts_of("acme"), url="http://x", params={**more, "generationConfig": more} if is_google else more
    )
    request = make_provider_format(format_, EncodedContextCache()).build_request(
        prompt_of(output_tokens_max=1_024), target, ""
    )
    body = json.loads(b"".join(request.body))
    for said in (body, body["generationConfig"]) if is_google else (body,):
        assert not {"n", "best_of", "candidateCount"} & said.keys()
        assert {said[name] for name in OUTPUT_LIMIT_PARAMS & said.keys()} == {1_024}
        assert said.get("model", "some-model") == "some-model"


@pytest.mark.parametrize(
    "called", ["", "functions.read", "read<|channel|>commentary", "read file", "x" * 10_000, "réad"]
)
@pytest.mark.parametrize("format_", list(WireFormat))
def test_a_call_of_a_tool_that_no_provider_would_name_so_does_not_end_a_session(
    format_: WireFormat, called: str
) -> None:
    call = Call(id="run1-0-1", tool=called)
    bodies = UserTurn(text="Go."), Reply(text="", calls=(call,)), refusal(call, "There is no such tool.")
    target = ModelTarget(facts=facts_of("acme"), url="http://x")
    request = make_provider_format(format_, EncodedContextCache()).build_request(prompt_of(*bodies), target, "")
    names = re.findall(rb'"name":"([^"]*)"', b"".join(request.body))
    assert names
    assert all(re.fullmatch(rb"[A-Za-z0-9_-]{1,64}", name) for name in names)


def test_a_name_that_fits_is_not_touched() -> None:
    assert fit_tool_name("mcp__weather-1") == "mcp__weather-1"
    assert fit_tool_name("read.file") == "read_file"


def test_an_id_that_fits_stays_and_another_always_becomes_the_same() -> None:
    assert fit_call_id("5e55ab12-0-1", PLAIN_IDS) == "5e55ab12-0-1"
    assert fit_call_id("a b", PLAIN_IDS) == fit_call_id("a b", PLAIN_IDS) != fit_call_id("a  b", PLAIN_IDS)


def test_whole_numbers_of_any_length_are_arguments() -> None:
    assert parse_arguments('{"n": 123456789012345678901234567890}') == {"n": 123456789012345678901234567890}
