"""Records that were read back are equal to those that were written, for every code that uses them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from models.replay import make_model_facts
from msgspec.structs import fields

from retinue.config.models import PruningSettings, WireFormat
from retinue.domain.attachment import Attachment
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.record import (
    ContextStart,
    Note,
    Record,
    RecordBody,
    RecordKind,
    Reply,
    ReplyPiece,
    ReplyPieceKind,
    StopReason,
    Summary,
    TextRecord,
    Usage,
    UserTurn,
    body_kind,
)
from retinue.domain.tool import Call, ToolResult
from retinue.domain.trust import Trust
from retinue.models.base import ModelPrompt
from retinue.models.encoded_context_cache import EncodedContextCache
from retinue.models.formats.wire_formats import make_provider_format
from retinue.models.provider_http import ModelTarget
from retinue.runners.base import SILENT_TOKENS
from retinue.runners.model_context import context_from_records
from retinue.runners.result_pruner import ResultShortener, seconds_since_reply
from retinue.runners.token_estimate import ContextMeter
from retinue.store.core import tables as t
from retinue.store.core.sqlite import connect
from retinue.store.sessions import records as stored

SESSION = SessionId("5e" * 16)
IMAGE = "data:image/png;base64," + "iVBORw0KGgo" + "A" * 100
FORMATS = [format_.value for format_ in WireFormat]
MANY = 3 * stored.ROWS_PER_BATCH

texts = st.one_of(
    st.text(max_size=200),
    st.sampled_from(["", " ", "\n", 'quoted "words"', "back\\slash\\n", "\x01\x7f\u2028", "grüße, 世界", IMAGE]),
    st.sampled_from(sorted(SILENT_TOKENS)).map(lambda token: f" {token}\n"),
)
counts = st.integers(0, 10**7)
usages = st.builds(Usage, input_tokens=counts, output_tokens=counts, cache_read_tokens=counts, estimated=st.booleans())
user_turns = st.builds(UserTurn, text=texts, envelopes=st.sampled_from([(), (EnvelopeId("e" * 32),)]))
replies = st.builds(
    Reply,
    text=texts,
    stop=st.sampled_from(list(StopReason)),
    model=st.text(max_size=9),
    usage=usages,
    provider=st.just("p"),
)
other_bodies: st.SearchStrategy[RecordBody] = st.sampled_from(
    [
        UserTurn(
            text="look", attachments=(Attachment(hash="a" * 64, name="a.png", media_type="image/png", size_bytes=5),)
        ),
        Reply(text="hm", thinking="let me see"),
        Reply(text="", calls=(Call(id="c1", tool="look", arguments={"at": "it"}),), stop=StopReason.CALLS),
        Reply(text="well", pieces=(ReplyPiece(kind=ReplyPieceKind.TEXT, length=4, seal="s"),), provider="p"),
        ToolResult(call="c1", tool="look", output="there"),
        Note(text="by the way"),
        ContextStart(text="and so on"),
        Summary(text="so far", kept_from=1),
    ]
)
bodies: st.SearchStrategy[list[RecordBody]] = st.lists(st.one_of(user_turns, replies, other_bodies), max_size=12)


@cache
def _store() -> sa.Connection:
    conn = connect(":memory:", writable=True)
    t.metadata.create_all(conn)
    return conn


def _read_back(written: Sequence[Record]) -> list[Record]:
    conn = _store()
    conn.execute(t.records.delete())
    conn.execute(t.record_chunks.delete())
    if written:
        stored.add(conn, written)
    found, damaged = stored.read_range(conn, SESSION, first=0, last=2**40)
    assert not damaged
    return found


def _records(bodies: Sequence[RecordBody]) -> list[Record]:
    start = Record(session=SESSION, seq=1, kind=RecordKind.START, body=ContextStart(), at_ms=5)
    return [start] + [
        Record(
            session=SESSION,
            seq=seq,
            kind=body_kind(body),
            body=body,
            at_ms=seq,
            run=RunId("r" * 32) if seq % 2 else None,
            trust=Trust.OWNER if seq % 3 else Trust.PRIVATE,
        )
        for seq, body in enumerate(bodies, start=2)
    ]


def _read_back_one_by_one(bodies: Sequence[RecordBody]) -> list[Record]:
    """Read each record back alone, so that text records are recognized as such."""
    return [_read_back([record])[0] for record in _records(bodies)]


def _request(format_: str, records: Sequence[Record]) -> bytes:
    prompt = ModelPrompt(session=SESSION, instructions="Be brief.", records=records, tools=())
    target = ModelTarget(facts=make_model_facts("p"), url="http://127.0.0.1:1")
    return b"".join(
        make_provider_format(WireFormat(format_), EncodedContextCache()).build_request(prompt, target, "").body
    )


@given(bodies)
def test_records_read_back_equal_the_written_records(bodies: list[RecordBody]) -> None:
    written = _records(bodies)
    for found in (_read_back(written), _read_back_one_by_one(bodies)):
        assert found == written and written == found
        assert not any(a != b or b != a for a, b in zip(found, written, strict=True))
        assert [tuple(record) for record in found] == [tuple(record) for record in written]
        assert list(map(repr, found)) == list(map(repr, written))
        assert [copy.copy(record) for record in found] == written
        assert [record._replace(seq=0) for record in found] == [record._replace(seq=0) for record in written]


@given(bodies)
def test_records_read_back_have_the_same_context_and_size_as_written(bodies: list[RecordBody]) -> None:
    written, found = _records(bodies), _read_back_one_by_one(bodies)
    assert context_from_records(found) == context_from_records(written)
    assert ContextMeter().measure(found, result_chars_max=9) == ContextMeter().measure(written, result_chars_max=9)


@pytest.mark.parametrize("format_", FORMATS)
@given(bodies=bodies)
def test_records_read_back_make_the_same_model_request_bytes(format_: str, bodies: list[RecordBody]) -> None:
    sent = _request(format_, context_from_records(_records(bodies)))
    assert _request(format_, context_from_records(_read_back_one_by_one(bodies))) == sent
    assert _request(format_, context_from_records(_read_back(_records(bodies)))) == sent


@pytest.mark.parametrize("format_", FORMATS)
def test_text_records_of_a_long_session_become_a_model_request_without_creating_their_bodies(format_: str) -> None:
    usage = Usage(input_tokens=9)
    talk = [body for n in range(MANY) for body in (UserTurn(text=f"What is {n}?"), Reply(text="It is.", usage=usage))]
    context = context_from_records(_read_back(_records(talk)))
    ContextMeter().measure(context)
    ResultShortener().shorten(
        SESSION, context, PruningSettings(), window_tokens=9_000, idle_s=seconds_since_reply(context, context[-1].at)
    )
    assert _request(format_, context) == _request(format_, _records(talk))

    plain = [record for record in context if isinstance(record, TextRecord)]
    assert len(plain) == len(talk)
    made = [record.seq for record in plain if "body" in vars(record)]
    assert made in ([], [plain[-1].seq])  # the last reply has the usage that its provider reported


def test_the_usage_of_a_stored_reply_record_is_read_back_with_every_field() -> None:
    counted = {each.name: number for number, each in enumerate(fields(Usage), start=1)}
    usage = msgspec.convert(counted | {"estimated": True}, Usage)
    (found,) = _read_back(_records([Reply(text="so much", usage=usage)])[1:])
    assert isinstance(found, TextRecord) and found.text == "so much"
    assert found.body == Reply(text="so much", usage=usage)
