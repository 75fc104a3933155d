"""Encode the bodies of records, and decode them. Bodies that contain only plain text are decoded faster."""

from __future__ import annotations

from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec

from retinue.domain.ids import EnvelopeId
from retinue.domain.record import (
    ContextStart,
    Note,
    RecordBody,
    RecordKind,
    Reply,
    StopReason,
    Summary,
    TextRecord,
    Usage,
    UserTurn,
)
from retinue.domain.tool import ToolResult

DECODERS: dict[RecordKind, msgspec.json.Decoder[Any]] = {
    RecordKind.START: msgspec.json.Decoder(ContextStart),
    RecordKind.RESET: msgspec.json.Decoder(ContextStart),
    RecordKind.USER: msgspec.json.Decoder(UserTurn),
    RecordKind.ASSISTANT: msgspec.json.Decoder(Reply),
    RecordKind.TOOL: msgspec.json.Decoder(ToolResult),
    RecordKind.SUMMARY: msgspec.json.Decoder(Summary),
    RecordKind.NOTE: msgspec.json.Decoder(Note),
}
PLAIN_KINDS = {kind.value: kind for kind in (RecordKind.USER, RecordKind.ASSISTANT)}


def decode_body(kind: str, body: str) -> RecordBody:
    return DECODERS[RecordKind(kind)].decode(body)


class _StoredUsage(msgspec.Struct, gc=False, frozen=True, forbid_unknown_fields=True):
    """The stored form of `Usage`. It does not accept unknown fields."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False


class PlainBody(msgspec.Struct, gc=False, forbid_unknown_fields=True):
    """The stored form of a `UserTurn` or `Reply` that contains only plain text.

    Decoding a body to this form takes half as long as decoding it to a `UserTurn` or `Reply`, which
    is built only when it is first needed. Unknown fields and other values are rejected, so that a
    body of any other form is not decoded as a plain body.
    """

    text: Annotated[str, msgspec.Meta(min_length=1)]
    envelopes: tuple[EnvelopeId, ...] = ()
    attachments: tuple[()] = ()
    calls: tuple[()] = ()
    thinking: Literal[""] = ""
    stop: Literal["end", "calls", "length", "cut-off", "filtered"] = "end"  # a reply with any other value has more data
    model: str = ""
    usage: _StoredUsage = _StoredUsage()
    provider: str = ""
    pieces: tuple[()] = ()

    def body(self, record: TextRecord) -> UserTurn | Reply:
        if record.kind is RecordKind.USER:
            return UserTurn(text=self.text, envelopes=self.envelopes)
        u = self.usage
        return Reply(
            text=self.text,
            stop=StopReason(self.stop),
            model=self.model,
            usage=Usage(
                input_tokens=u.input_tokens,
                output_tokens=u.output_tokens,
                cost_microusd=u.cost_microusd,
                cache_read_tokens=u.cache_read_tokens,
                cache_write_tokens=u.cache_write_tokens,
                reasoning_tokens=u.reasoning_tokens,
                estimated=u.estimated,
            ),
            provider=self.provider,
        )


decode_plain_body = msgspec.json.Decoder(PlainBody).decode
get_text = attrgetter("text")
