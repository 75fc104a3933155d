"""Records that were read back stand for those that were written: to whoever reads, weighs or sends them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache

import msgspec
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from models.replay import facts_of
from msgspec.structs import fields

from retinue.config.models import Pruning, WireFormat
from retinue.domain.attachment import Attachment
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.record import (
    Body,
    Mark,
    Note,
    Piece,
    PieceKind,
    Plain,
    Record,
    RecordKind,
    Reply,
    Stop,
    Summary,
    Usage,
    UserTurn,
    kind_of,
)
from retinue.domain.tool import Call, ToolResult
from retinue.domain.trust import Trust
from retinue.models.base import Prompt, WireCache
from retinue.models.formats.wire_formats import wire_of
from retinue.models.provider_http import Target
from retinue.runners.base import SILENT_TOKENS
from retinue.runners.model_context import as_read
from retinue.runners.result_pruner import Shortened, idle_s
from retinue.runners.token_estimate import Meter
from retinue.store.core import tables as t
from retinue.store.core.sqlite import connect
from retinue.store.sessions import records as stored

SESSION = SessionId("5e" * 16)
IMAGE = "data:image/png;base64," + "iVBORw0KGgo" + "A" * 100
FORMATS = [format_.value for format_ in WireFormat]
LONG = 3 * stored.ROWS_AT_ONCE

texts = st.one_of(
    st.text(max_size=200),
    st.sampled_from(["", " ", "\n", 'quoted "words"', "back\\slash\\n", "\x01\x7f\u2028", "grüße, 世界", IMAGE]),
    st.sampled_from(sorted(SILENT_TOKENS)).map(lambda token: f" {token}\n"),
)
counts = st.integers(0, 10**7)
usages = st.builds(Usage, input_tokens=counts, output_tokens=counts, cache_read_tokens=counts, estimated=st.booleans())
turns = st.builds(UserTurn, text=texts, envelopes=st.sampled_from([(), (EnvelopeId("e" * 32),)]))
replies = st.builds(
    Reply, text=texts, stop=st.sampled_from(list(Stop)), model=st.text(max_size=9), usage=usages, provider=st.just("p")
)
others: st.SearchStrategy[Body] = st.sampled_from(
    [
        UserTurn(
            text="look", attachments=(Attachment(hash="a" * 64, name="a.png", media_type="image/png", size_bytes=5),)
        ),
        Reply(text="hm", thinking="let me see"),
        Reply(text="", calls=(Call(id="c1", tool="look", arguments={"at": "it"}),), stop=Stop.CALLS),
        Reply(text="well", pieces=(Piece(kind=PieceKind.TEXT, length=4, seal="s"),), provider="p"),
        ToolResult(call="c1", tool="look", output="there"),
        Note(text="by the way"),
        Mark(text="and so on"),
        Summary(text="so far", kept_from=1),
    ]
)
bodies: st.SearchStrategy[list[Body]] = st.lists(st.one_of(turns, replies, others), max_size=12)


@cache
def _store() -> sa.Connection:
    conn = connect(":memory:", writable=True)
    t.metadata.create_all(conn)
    return conn


def _read_back(written: Sequence[Record]) -> list[Record]:
    conn = _store()
    conn.execute(t.records.delete())
    conn.execute(t.chapters.delete())
    if written:
        stored.add(conn, written)
    found, damaged = stored.read(conn, SESSION, first=0, last=2**40)
    assert not damaged
    return found


def _records(bodies: Sequence[Body]) -> list[Record]:
    start = Record(session=SESSION, seq=1, kind=RecordKind.START, body=Mark(), at_ms=5)
    return [start] + [
        Record(
            session=SESSION,
            seq=seq,
            kind=kind_of(body),
            body=body,
            at_ms=seq,
            run=RunId("r" * 32) if seq % 2 else None,
            trust=Trust.OWNER if seq % 3 else Trust.PRIVATE,
        )
        for seq, body in enumerate(bodies, start=2)
    ]


def _plainly(bodies: Sequence[Body]) -> list[Record]:
    """Read back where nothing but plain words stands beside them, so that those are found as such."""
    return [_read_back([record])[0] for record in _records(bodies)]


def _request(format_: str, records: Sequence[Record]) -> bytes:
    prompt = Prompt(session=SESSION, instructions="Be brief.", records=records, tools=())
    target = Target(facts=facts_of("p"), url="http://127.0.0.1:1")
    return b"".join(wire_of(WireFormat(format_), WireCache()).request(prompt, target, "").body)


@given(bodies)
def test_what_is_read_back_is_what_was_written(bodies: list[Body]) -> None:
    written = _records(bodies)
    for found in (_read_back(written), _plainly(bodies)):
        assert found == written and written == found
        assert not any(a != b or b != a for a, b in zip(found, written, strict=True))
        assert [tuple(record) for record in found] == [tuple(record) for record in written]
        assert list(map(repr, found)) == list(map(repr, written))
        assert [copy.copy(record) for record in found] == written
        assert [record._replace(seq=0) for record in found] == [record._replace(seq=0) for record in written]


@given(bodies)
def test_what_is_read_back_is_read_and_weighed_as_what_was_written(bodies: list[Body]) -> None:
    written, found = _records(bodies), _plainly(bodies)
    assert as_read(found) == as_read(written)
    assert Meter().measure(found, result_chars_max=9) == Meter().measure(written, result_chars_max=9)


@pytest.mark.parametrize("format_", FORMATS)
@given(bodies=bodies)
def test_what_is_read_back_is_sent_byte_for_byte_as_what_was_written(format_: str, bodies: list[Body]) -> None:
    sent = _request(format_, as_read(_records(bodies)))
    assert _request(format_, as_read(_plainly(bodies))) == sent
    assert _request(format_, as_read(_read_back(_records(bodies)))) == sent


@pytest.mark.parametrize("format_", FORMATS)
def test_in_a_long_talk_no_body_is_made_before_someone_looks_at_it(format_: str) -> None:
    usage = Usage(input_tokens=9)
    talk = [body for n in range(LONG) for body in (UserTurn(text=f"What is {n}?"), Reply(text="It is.", usage=usage))]
    context = as_read(_read_back(_records(talk)))
    Meter().measure(context)
    Shortened().view(SESSION, context, Pruning(), window_tokens=9_000, idle_s=idle_s(context, context[-1].at))
    assert _request(format_, context) == _request(format_, _records(talk))

    plain = [record for record in context if isinstance(record, Plain)]
    assert len(plain) == len(talk)
    made = [record.seq for record in plain if "body" in vars(record)]
    assert made in ([], [plain[-1].seq])  # the last reply says what its provider has counted


def test_a_usage_is_read_in_all_its_parts() -> None:
    counted = {each.name: number for number, each in enumerate(fields(Usage), start=1)}
    usage = msgspec.convert(counted | {"estimated": True}, Usage)
    (found,) = _read_back(_records([Reply(text="so much", usage=usage)])[1:])
    assert isinstance(found, Plain) and found.words == "so much"
    assert found.body == Reply(text="so much", usage=usage)
