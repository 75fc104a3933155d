"""Shared by all formats: bodies joined from bytes that were encoded once."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from models.replay import make_model_facts, make_records, prompt_of

from retinue.config.models import WireFormat
from retinue.domain.ids import SessionId
from retinue.domain.record import Record, Reply, UserTurn
from retinue.domain.tool import Call, ToolSpec
from retinue.models.encoded_context_cache import EncodedContextCache
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

ONE_SESSION, OTHER_SESSION = SessionId("1" * 32), SessionId("2" * 32)


class CountingEncoder:
    """Counts the values that it encodes."""

    def __init__(self, mark: bytes = b"") -> None:
        self.count = 0
        self._mark = mark

    def __call__(self, record: Record) -> bytes:
        self.count += 1
        assert isinstance(record.body, UserTurn)
        return self._mark + record.body.text.encode()


def make_user_turns(*texts: str) -> list[Record]:
    return make_records(*(UserTurn(text=text) for text in texts))


@pytest.mark.parametrize("format_", list(WireFormat))
def test_every_wire_format_has_an_implementation(format_: WireFormat) -> None:
    assert hasattr(make_provider_format(format_, EncodedContextCache()), "build_request")


def test_only_the_new_records_of_a_session_are_encoded_for_a_wire_format() -> None:
    cache, encode = EncodedContextCache(), CountingEncoder()
    history = make_user_turns("a", "b", "c")
    assert list(cache.encode_records(ONE_SESSION, history[:2], encode)) == [b"a", b"b"]
    assert list(cache.encode_records(ONE_SESSION, history, encode)) == [b"a", b"b", b"c"]
    assert list(cache.encode_records(ONE_SESSION, tuple(history), encode)) == [b"a", b"b", b"c"]
    assert list(cache.encode_records(ONE_SESSION, make_user_turns("a", "b", "c"), encode)) == [
        b"a",
        b"b",
        b"c",
    ]  # equal, but not the same objects
    assert encode.count == 3


def test_records_encoded_for_one_wire_format_variant_are_not_used_for_another() -> None:
    cache = EncodedContextCache()
    history = make_user_turns("a", "b")
    plain, marked = CountingEncoder(), CountingEncoder(b"*")
    for _ in range(2):
        assert list(cache.encode_records(ONE_SESSION, history, plain, format_key="plain")) == [b"a", b"b"]
        assert list(cache.encode_records(ONE_SESSION, history, marked, format_key="marked")) == [b"*a", b"*b"]
        assert list(cache.encode_records(OTHER_SESSION, history, marked, format_key="marked")) == [b"*a", b"*b"]
    assert (plain.count, marked.count) == (2, 4)
    assert cache.size_bytes == 2 + 4 + 4


def test_a_history_in_a_wire_format_is_encoded_again_from_its_first_difference() -> None:
    cache, encode = EncodedContextCache(), CountingEncoder()
    cache.encode_records(ONE_SESSION, make_user_turns("a", "b", "c"), encode)
    assert list(cache.encode_records(ONE_SESSION, make_user_turns("a", "x", "c"), encode)) == [b"a", b"x", b"c"]
    assert encode.count == 5
    assert list(cache.encode_records(ONE_SESSION, make_user_turns("a"), encode)) == [b"a"]
    assert cache.size_bytes == 1


def test_the_least_recently_used_session_is_evicted_first_from_the_wire_format_cache() -> None:
    cache, encode = EncodedContextCache(bytes_max=4), CountingEncoder()
    for session in (ONE_SESSION, OTHER_SESSION, ONE_SESSION):
        cache.encode_records(session, make_user_turns("aa"), encode)
    cache.encode_records(SessionId("3" * 32), make_user_turns("bb"), encode)
    assert cache.size_bytes == 4
    assert encode.count == 3
    cache.encode_records(ONE_SESSION, make_user_turns("aa"), encode)
    assert encode.count == 3
    cache.encode_records(OTHER_SESSION, make_user_turns("aa"), encode)
    assert encode.count == 4


def tool(name: str) -> ToolSpec:
    return ToolSpec(name=name, description="", parameters={"type": "object"})


def test_the_head_of_a_request_in_a_wire_format_is_encoded_once_per_instructions_and_tools() -> None:
    heads, made = RequestHeadCache(heads_max=2), list[str]()

    def encode_head(instructions: str, *tools: str, form: str = "") -> bytes:
        def encode() -> bytes:
            made.append(instructions)
            return f"{form}{instructions}:{','.join(tools)}".encode()

        return heads.get_or_encode(instructions, [tool(name) for name in tools], encode, format_key=form)

    assert encode_head("a", "x") == encode_head("a", "x") == b"a:x"
    assert made == ["a"]
    assert encode_head("a", "x", "y") == b"a:x,y"
    assert encode_head("a", "x", form="f") == b"fa:x"
    assert encode_head("b") == b"b:"
    assert encode_head("a", "x", "y") == b"a:x,y"  # it was evicted for the others
    assert made == ["a", "a", "a", "b", "a"]


def test_records_encoded_in_a_wire_format_are_joined_with_commas() -> None:
    assert b"".join(build_list_items([b"", b",1", b"", b",2"], first=True)) == b"1,2"
    assert b"".join(build_list_items([b",1", b",2"], first=False)) == b",1,2"
    assert build_list_items([b"", b""], first=True) == []


def test_params_from_the_model_settings_override_the_defaults_of_a_wire_format() -> None:
    merged = merge_params({"a": 1, "b": 2}, {"b": 3, "c": 4, "mine": 5}, output_tokens_max=100, without=("mine",))
    assert merged == {"a": 1, "b": 3, "c": 4}
    assert encode_open_object(merged) == b'{"a":1,"b":3,"c":4'


@pytest.mark.parametrize("format_", list(WireFormat))
def test_params_cannot_raise_the_output_limit_or_the_reply_count_in_any_wire_format(format_: WireFormat) -> None:
    """Params once raised a reply limit that a budget had lowered, and requested several replies at once."""
    more: dict[str, Any] = dict.fromkeys(
        ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens"), 64_000
    )
    more |= {"n": 8, "best_of": 8, "candidateCount": 8, "model": "a-dearer-one"}
    is_google = format_ is WireFormat.GOOGLE
    target = ModelTarget(
        facts=make_model_facts("acme"), url="http://x", params={**more, "generationConfig": more} if is_google else more
    )
    request = make_provider_format(format_, EncodedContextCache()).build_request(
        prompt_of(output_tokens_max=1_024), target, ""
    )
    body = json.loads(b"".join(request.body))
    for params in (body, body["generationConfig"]) if is_google else (body,):
        assert not {"n", "best_of", "candidateCount"} & params.keys()
        assert {params[name] for name in OUTPUT_LIMIT_PARAMS & params.keys()} == {1_024}
        assert params.get("model", "some-model") == "some-model"


@pytest.mark.parametrize(
    "called", ["", "functions.read", "read<|channel|>commentary", "read file", "x" * 10_000, "réad"]
)
@pytest.mark.parametrize("format_", list(WireFormat))
def test_a_call_with_an_invalid_tool_name_is_sent_with_a_valid_name_in_each_wire_format(
    format_: WireFormat, called: str
) -> None:
    call = Call(id="run1-0-1", tool=called)
    bodies = UserTurn(text="Go."), Reply(text="", calls=(call,)), refusal(call, "There is no such tool.")
    target = ModelTarget(facts=make_model_facts("acme"), url="http://x")
    request = make_provider_format(format_, EncodedContextCache()).build_request(prompt_of(*bodies), target, "")
    names = re.findall(rb'"name":"([^"]*)"', b"".join(request.body))
    assert names
    assert all(re.fullmatch(rb"[A-Za-z0-9_-]{1,64}", name) for name in names)


def test_a_valid_tool_name_is_kept_in_a_wire_format_and_an_invalid_one_is_replaced() -> None:
    assert fit_tool_name("mcp__weather-1") == "mcp__weather-1"
    assert fit_tool_name("read.file") == "read_file"


def test_a_wire_format_keeps_a_valid_call_id_and_replaces_an_invalid_one_deterministically() -> None:
    assert fit_call_id("5e55ab12-0-1", PLAIN_IDS) == "5e55ab12-0-1"
    assert fit_call_id("a b", PLAIN_IDS) == fit_call_id("a b", PLAIN_IDS) != fit_call_id("a  b", PLAIN_IDS)


def test_integers_of_any_length_are_valid_tool_call_arguments_in_a_wire_format() -> None:
    assert parse_arguments('{"n": 123456789012345678901234567890}') == {"n": 123456789012345678901234567890}
