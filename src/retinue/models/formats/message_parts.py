"""Reads stored records for all wire formats: the text that a model gets, and the parts of a reply."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from retinue.domain.record import (
    ContextStart,
    Note,
    Record,
    RecordBody,
    RecordKind,
    Reply,
    ReplyPieceKind,
    Summary,
    TextRecord,
    UserTurn,
    record_texts,
)
from retinue.domain.tool import Call

_ASSISTANT = RecordKind.ASSISTANT  # looked up once: used for every record of a context
_encode = msgspec.json.Encoder().encode
SUMMARY_HEAD = "This conversation was longer. What came before, in short:"


Wrapping = tuple[bytes, bytes]  # before and after a text


class ReplyPart(NamedTuple):
    """One part of a model's reply. `signature` is empty if the part is unsigned or from another provider."""

    kind: ReplyPieceKind
    text: str
    call: Call | None
    signature: str


def split_reply(reply: Reply, *, provider: str) -> Iterator[ReplyPart]:
    """Yield the parts of a reply in their original order.

    For a provider other than the one that replied, signatures are dropped, and so are parts that consist only of a
    signature.
    """
    if not reply.pieces:
        yield from _split_without_pieces(reply)
        return
    own = reply.provider == provider
    text_at = thinking_at = call_at = 0
    for piece in reply.pieces:
        seal = piece.seal if own else ""
        match piece.kind:
            case ReplyPieceKind.TEXT:
                words = reply.text[text_at : text_at + piece.length]
                text_at += piece.length
                if words or seal:
                    yield ReplyPart(ReplyPieceKind.TEXT, words, None, seal)
            case ReplyPieceKind.THINKING:
                words = reply.thinking[thinking_at : thinking_at + piece.length]
                thinking_at += piece.length
                if words or seal:
                    yield ReplyPart(ReplyPieceKind.THINKING, words, None, seal)
            case ReplyPieceKind.CALL:
                for call in reply.calls[call_at : call_at + piece.length]:
                    yield ReplyPart(ReplyPieceKind.CALL, "", call, seal)
                call_at += piece.length
            case ReplyPieceKind.SERVER:
                if seal:
                    yield ReplyPart(ReplyPieceKind.SERVER, "", None, seal)


def _split_without_pieces(reply: Reply) -> Iterator[ReplyPart]:
    if reply.thinking:
        yield ReplyPart(ReplyPieceKind.THINKING, reply.thinking, None, "")
    if reply.text:
        yield ReplyPart(ReplyPieceKind.TEXT, reply.text, None, "")
    for call in reply.calls:
        yield ReplyPart(ReplyPieceKind.CALL, "", call, "")


def get_plain_text(body: RecordBody) -> str:
    """Return the text of a user message or reply that has nothing but text. Empty for all other bodies."""
    if isinstance(body, Reply):
        return "" if body.calls or body.thinking or body.pieces else body.text
    return body.text if isinstance(body, UserTurn) and not body.attachments else ""


def get_record_text(record: Record) -> str:
    """Return the plain text of a record, without decoding its body if possible."""
    return record.text if type(record) is TextRecord else get_plain_text(record.body)


def encode_plain_records(records: Sequence[TextRecord], *, user: Wrapping, model: Wrapping) -> list[bytes]:
    """Encode the text of each record as a JSON string between a format's prefix and suffix: three pieces per record."""
    around = [model if record.kind is _ASSISTANT else user for record in records]
    pieces = [b""] * (3 * len(records))
    pieces[0::3] = [before for before, _ in around]
    pieces[1::3] = map(_encode, record_texts(records))
    pieces[2::3] = [after for _, after in around]
    return pieces


def get_text_for_model(body: RecordBody) -> str | None:
    """Return the text that a model reads as user input. None for the model's replies and for tool results."""
    match body:
        case UserTurn(text=text) | Note(text=text) | ContextStart(text=text):
            return text or None
        case Summary(text=text):
            return f"{SUMMARY_HEAD}\n\n{text}"
        case _:
            return None
