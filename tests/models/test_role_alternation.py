"""Contexts that are kept as bytes and grow: always the same bytes as if they were made anew."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from models.replay import SESSION, facts_of, records_of

from retinue.config.models import WireFormat
from retinue.domain.record import Note, Reply, StopReason, UserTurn
from retinue.domain.tool import Call, ToolResult
from retinue.models.base import EncodedContextCache, ModelPrompt
from retinue.models.formats.role_alternation import MERGED_PIECES_MIN, JoinedPieces
from retinue.models.formats.wire_formats import make_provider_format
from retinue.models.provider_http import ModelTarget, ProviderFormat

FORMATS = [format_.value for format_ in WireFormat]
HISTORY = 3 * MERGED_PIECES_MIN  # long enough that some of it is settled, and then some more


def body_of(wire: ProviderFormat, bodies: list[Any]) -> bytes:
    target = ModelTarget(facts=facts_of("anthropic"), url="http://127.0.0.1:1")
    prompt = ModelPrompt(session=SESSION, instructions="Be brief.", records=records_of(*bodies), tools=())
    return b"".join(wire.build_request(prompt, target, "").body)


def asked(number: int) -> list[Any]:
    """A turn with a call, mail that came in between, and the result after it."""
    call = Call(id=f"call_{number}", tool="read", arguments={"path": f"/{number}"})
    return [
        UserTurn(text=f"What is in {number}?"),
        Reply(text="I look.", calls=(call,), provider="anthropic"),
        Note(text="Someone else wrote too."),
        ToolResult(call=call.id, tool="read", output=f"It is {number}."),
        Reply(text=f"{number}."),
    ]


TURNS = st.sampled_from(
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
def test_a_context_that_grew_is_the_same_as_one_made_anew(format_: str) -> None:
    wire = make_provider_format(WireFormat(format_), EncodedContextCache())
    bodies: list[Any] = []
    for number in range(HISTORY // 5):
        for body in asked(number):
            bodies.append(body)
            if number % 7 == 0 or number > HISTORY // 5 - 4:
                assert body_of(wire, bodies) == body_of(
                    make_provider_format(WireFormat(format_), EncodedContextCache()), bodies
                )


@pytest.mark.parametrize("format_", FORMATS)
@given(start=st.integers(0, HISTORY), more=st.lists(TURNS, max_size=12))
def test_whatever_comes_next_a_context_is_the_same_as_one_made_anew(format_: str, start: int, more: list[Any]) -> None:
    wire = make_provider_format(WireFormat(format_), EncodedContextCache())
    bodies = [body for number in range(HISTORY // 5) for body in asked(number)][:start]
    body_of(wire, bodies)
    for body in more:
        bodies.append(body)
        grown = body_of(wire, bodies)
        assert grown == body_of(make_provider_format(WireFormat(format_), EncodedContextCache()), bodies)
        json.loads(grown)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_context_that_was_changed_is_put_together_anew(format_: str) -> None:
    wire = make_provider_format(WireFormat(format_), EncodedContextCache())
    bodies = [body for number in range(HISTORY // 5) for body in asked(number)]
    body_of(wire, bodies)
    changed = [*bodies[:10], Note(text="This was said otherwise."), *bodies[11:]]
    assert body_of(wire, changed) == body_of(make_provider_format(WireFormat(format_), EncodedContextCache()), changed)


def test_what_is_joined_is_counted_and_goes_when_the_rest_goes() -> None:
    cache = EncodedContextCache(bytes_max=10_000)
    records = records_of(*(UserTurn(text=f"number {number}") for number in range(MERGED_PIECES_MIN + 1)))
    pieces = cache.join_records(SESSION, records, lambda _: b"x" * 50, JoinedPieces).pieces
    assert b"".join(pieces) == b"x" * 50 * len(records)
    assert len(pieces) == 2  # the first stays as it is
    assert cache.size_bytes == 50 * len(records)
    many = records_of(*(UserTurn(text=f"number {number}") for number in range(4 * MERGED_PIECES_MIN)))
    cache.join_records(SESSION, many, lambda _: b"x" * 50, JoinedPieces)
    assert cache.size_bytes == 0  # more than may be kept
