"""Views of records that all wire formats need: the text for a model, and its replies part by part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import msgspec

from retinue.domain.record import (
    Body,
    Mark,
    Note,
    PieceKind,
    Plain,
    Record,
    RecordKind,
    Reply,
    Summary,
    UserTurn,
    words_of,
)
from retinue.domain.tool import Call

_ASSISTANT = RecordKind.ASSISTANT  # looked up once: used for every record of a context
_encode = msgspec.json.Encoder().encode
SUMMARY_HEAD = "This conversation was longer. What came before, in short:"


Around = tuple[bytes, bytes]  # before and after a text


class Part(NamedTuple):
    """A part of a reply. `signature` is empty unless the provider being called made it."""

    kind: PieceKind
    text: str
    call: Call | None
    seal: str


def parts(reply: Reply, *, provider: str) -> Iterator[Part]:
    """Yield the parts of a reply as it came.

    For another provider, signatures are dropped, and parts that were only a signature.
    """
    if not reply.pieces:
        yield from _usual(reply)
        return
    own = reply.provider == provider
    text_at = thinking_at = call_at = 0
    for piece in reply.pieces:
        seal = piece.seal if own else ""
        match piece.kind:
            case PieceKind.TEXT:
                words = reply.text[text_at : text_at + piece.length]
                text_at += piece.length
                if words or seal:
                    yield Part(PieceKind.TEXT, words, None, seal)
            case PieceKind.THINKING:
                words = reply.thinking[thinking_at : thinking_at + piece.length]
                thinking_at += piece.length
                if words or seal:
                    yield Part(PieceKind.THINKING, words, None, seal)
            case PieceKind.CALL:
                for call in reply.calls[call_at : call_at + piece.length]:
                    yield Part(PieceKind.CALL, "", call, seal)
                call_at += piece.length
            case PieceKind.SERVER:
                if seal:
                    yield Part(PieceKind.SERVER, "", None, seal)


def _usual(reply: Reply) -> Iterator[Part]:
    if reply.thinking:
        yield Part(PieceKind.THINKING, reply.thinking, None, "")
    if reply.text:
        yield Part(PieceKind.TEXT, reply.text, None, "")
    for call in reply.calls:
        yield Part(PieceKind.CALL, "", call, "")


def plain_words(body: Body) -> str:
    """Return the text of a body that is only text, of a person or the model; empty for all others."""
    if isinstance(body, Reply):
        return "" if body.calls or body.thinking or body.pieces else body.text
    return body.text if isinstance(body, UserTurn) and not body.attachments else ""


def said_plainly(record: Record) -> str:
    """Return the plain text of a record, without decoding its body if possible."""
    return record.words if type(record) is Plain else plain_words(record.body)


def told_plainly(records: Sequence[Plain], *, user: Around, model: Around) -> list[bytes]:
    """Encode the text of each record as a JSON string inside a format's wrapping: three pieces per record."""
    around = [model if record.kind is _ASSISTANT else user for record in records]
    pieces = [b""] * (3 * len(records))
    pieces[0::3] = [before for before, _ in around]
    pieces[1::3] = map(_encode, words_of(records))
    pieces[2::3] = [after for _, after in around]
    return pieces


def said_to_model(body: Body) -> str | None:
    """Return the text that a model reads as user input; None for its own replies and for tool results."""
    match body:
        case UserTurn(text=text) | Note(text=text) | Mark(text=text):
            return text or None
        case Summary(text=text):
            return f"{SUMMARY_HEAD}\n\n{text}"
        case _:
            return None
