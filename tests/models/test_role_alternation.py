"""Cached encodings of growing contexts: always the same bytes as a new encoding."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models.replay import SESSION, make_model_facts, make_records

from retinue.config.models import WireFormat
from retinue.domain.record import Note, Reply, StopReason, UserTurn
from retinue.domain.tool import Call, ToolResult
from retinue.models.base import ModelPrompt
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.formats.role_alternation import MERGED_PIECES_MIN, JoinedPieces
from retinue.models.formats.wire_formats import make_provider_format
from retinue.models.provider_http import ModelTarget, ProviderFormat

FORMATS = [format_.value for format_ in WireFormat]
HISTORY_RECORDS = 3 * MERGED_PIECES_MIN  # so many that some are merged, and then some more


def request_body(wire: ProviderFormat, bodies: list[Any]) -> bytes:
    target = ModelTarget(facts=make_model_facts("anthropic"), url="http://127.0.0.1:1")
    prompt = ModelPrompt(session=SESSION, instructions="Be brief.", records=make_records(*bodies), tools=())
    return b"".join(wire.build_request(prompt, target, "").body)


def make_turn(number: int) -> list[Any]:
    """A turn with a call, a message that arrived in between, and the result after it."""
    call = Call(id=f"call_{number}", tool="read", arguments={"path": f"/{number}"})
    return [
        UserTurn(text=f"What is in {number}?"),
        Reply(text="I look.", calls=(call,), provider="anthropic"),
        Note(text="Someone else wrote too."),
        ToolResult(call=call.id, tool="read", output=f"It is {number}."),
        Reply(text=f"{number}."),
    ]


RECORD_BODIES = st.sampled_from(
    [
        UserTurn(text="Hello?"),
        UserTurn(text=""),
        Note(text="It is late."),
        Reply(text="Yes?"),
        Reply(text=""),
        Reply(text="One moment.", stop=StopReason.PAUSED, provider="anthropic"),
        ToolResult(call="call_1", tool="read", output="It is there."),
    ]
)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_grown_cached_request_with_alternating_roles_equals_one_built_from_scratch(format_: str) -> None:
    wire = make_provider_format(WireFormat(format_), EncodedContextCache())
    bodies: list[Any] = []
    for number in range(HISTORY_RECORDS // 5):
        for body in make_turn(number):
            bodies.append(body)
            if number % 7 == 0 or number > HISTORY_RECORDS // 5 - 4:
                assert request_body(wire, bodies) == request_body(
                    make_provider_format(WireFormat(format_), EncodedContextCache()), bodies
                )


@pytest.mark.parametrize("format_", FORMATS)
@given(start=st.integers(0, HISTORY_RECORDS), more=st.lists(RECORD_BODIES, max_size=12))
def test_with_any_records_a_cached_request_with_alternating_roles_equals_one_from_scratch(
    format_: str, start: int, more: list[Any]
) -> None:
    wire = make_provider_format(WireFormat(format_), EncodedContextCache())
    bodies = [body for number in range(HISTORY_RECORDS // 5) for body in make_turn(number)][:start]
    request_body(wire, bodies)
    for body in more:
        bodies.append(body)
        grown = request_body(wire, bodies)
        assert grown == request_body(make_provider_format(WireFormat(format_), EncodedContextCache()), bodies)
        json.loads(grown)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_changed_history_of_a_request_with_alternating_roles_is_encoded_again(format_: str) -> None:
    wire = make_provider_format(WireFormat(format_), EncodedContextCache())
    bodies = [body for number in range(HISTORY_RECORDS // 5) for body in make_turn(number)]
    request_body(wire, bodies)
    changed = [*bodies[:10], Note(text="This note was changed."), *bodies[11:]]
    assert request_body(wire, changed) == request_body(
        make_provider_format(WireFormat(format_), EncodedContextCache()), changed
    )


def test_records_joined_for_role_alternation_count_toward_the_cache_size_and_are_evicted_with_it() -> None:
    cache = EncodedContextCache(bytes_max=10_000)
    records = make_records(*(UserTurn(text=f"number {number}") for number in range(MERGED_PIECES_MIN + 1)))
    pieces = cache.join_records(SESSION, records, lambda _: b"x" * 50, JoinedPieces).pieces
    assert b"".join(pieces) == b"x" * 50 * len(records)
    assert len(pieces) == 2  # the first stays unchanged
    assert cache.size_bytes == 50 * len(records)
    many = make_records(*(UserTurn(text=f"number {number}") for number in range(4 * MERGED_PIECES_MIN)))
    cache.join_records(SESSION, many, lambda _: b"x" * 50, JoinedPieces)
    assert cache.size_bytes == 0  # more than the cache may hold
