"""The model protocol: a model gets the whole conversation and replies with a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from msgspec import Struct

from retinue.domain.attachment import Attachment
from retinue.domain.ids import SessionId
from retinue.domain.model import DEFAULT_OUTPUT_TOKENS_MAX, ModelFacts
from retinue.domain.record import Record, ReplyPieceKind, StopReason, Usage
from retinue.domain.tool import Call, ToolSpec


class TextChunk(Struct, frozen=True):
    text: str


class ThinkingChunk(Struct, frozen=True):
    text: str


class ToolCallChunk(Struct, frozen=True):
    """A complete tool call in a model's reply."""

    call: Call


class SignatureChunk(Struct, frozen=True):
    """Data, such as a signature, that must be sent back to the provider with a part of its reply.

    If the preceding chunks are of this `kind` and unsigned, the data belongs to the part they form.
    Otherwise it belongs to a new part without content.
    """

    kind: ReplyPieceKind
    signature: str


class EndChunk(Struct, frozen=True):
    """The last chunk of every complete reply. If `usage` has no cost, the cost is computed from the model's price."""

    stop: StopReason
    usage: Usage


ReplyChunk = TextChunk | ThinkingChunk | ToolCallChunk | SignatureChunk | EndChunk


class AttachmentReader(Protocol):
    """Reads the bytes of an attachment's file. Returns None if the file was deleted."""

    def read(self, attachment: Attachment) -> bytes | None: ...


class ModelPrompt(Struct, frozen=True, kw_only=True):
    """The whole input of a model call: instructions, records, tools and options."""

    session: SessionId
    instructions: str
    records: Sequence[Record]
    tools: Sequence[ToolSpec]
    output_tokens_max: int = DEFAULT_OUTPUT_TOKENS_MAX
    effort: str | None = None
    media: AttachmentReader | None = None


class Model(Protocol):
    """Replies to a prompt with a stream that ends with `EndChunk`, or raises `ModelFailed`.

    `key` is the API key to use, or empty if none is needed. The key never appears in an error, a
    log or a `repr`.
    """

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> ModelFacts: ...

    def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]: ...
