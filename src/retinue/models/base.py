"""The model protocol: a model gets the whole conversation and replies with a stream of chunks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from typing import Protocol, TypeVar, cast

from msgspec import Struct, field

from retinue.domain.attachment import Attachment
from retinue.domain.ids import SessionId
from retinue.domain.model import DEFAULT_OUTPUT_TOKENS_MAX, ModelFacts
from retinue.domain.record import Record, ReplyPieceKind, StopReason, TextRecord, Usage, are_all_text
from retinue.domain.tool import Call, ToolSpec

CONTEXT_CACHE_BYTES_MAX = 16 * 1024 * 1024
JOIN_BATCH_RECORDS = 256  # records


class TextChunk(Struct, frozen=True):
    text: str


class ThinkingChunk(Struct, frozen=True):
    text: str


class ToolCallChunk(Struct, frozen=True):
    """A complete tool call in a model's reply."""

    call: Call


class SignatureChunk(Struct, frozen=True):
    """Data that the provider requires back with the preceding text or thinking, such as a signature.

    It signs the preceding chunks of its own kind. If those are of another kind, or already signed, it belongs to a new,
    empty part.
    """

    kind: ReplyPieceKind
    signature: str


class EndChunk(Struct, frozen=True):
    """The last chunk of every complete reply. If the reported cost is zero, it is computed from the model's price."""

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

    `key` is the API key to use, empty if none is needed. It never appears in an error, a log or a
    `repr`.
    """

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> ModelFacts: ...

    def reply(self, prompt: ModelPrompt, *, key: str = "") -> AsyncIterator[ReplyChunk]: ...


class RecordJoiner(Protocol):
    """Joins the encoded records of one session into its message list.

    The joiner is kept as long as the records are cached.
    """

    def add(self, records: Sequence[Record], encoded: Sequence[bytes]) -> None: ...


W = TypeVar("W", bound=RecordJoiner)
EncodeRecord = Callable[[Record], bytes]
EncodePlainRecords = Callable[[Sequence[TextRecord]], Sequence[bytes]]


class EncodedContextCache:
    """Cache of conversations that are already encoded for a provider.

    Each record is encoded once, so the cost of a turn does not grow with the history. The key is the session and
    everything else that shapes the bytes: provider, format and options.

    The cache is limited in bytes, and evicts the least recently used entry first. Entries are never stored, but rebuilt
    when needed.

    Records are compared by content, not only by sequence number. If a run could not be stored and is resumed, its
    numbers are used again.
    """

    def __init__(self, bytes_max: int = CONTEXT_CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._entries: OrderedDict[tuple[SessionId, Hashable], _EncodedContext] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def encode_records(
        self, session: SessionId, records: Sequence[Record], encode: EncodeRecord, *, format_key: Hashable = ""
    ) -> Sequence[bytes]:
        """Return the encoded records of a session's context.

        Only new records are encoded.

        The result of `encode` may depend only on the record, on the records before it and on `format_key`.
        """
        kept = self._pop_entry((session, format_key), records)
        kept.encode(encode)
        self._put_entry((session, format_key), kept)
        return kept.encoded_records

    def join_records(
        self,
        session: SessionId,
        records: Sequence[Record],
        encode: EncodeRecord,
        make_joiner: Callable[[], W],
        *,
        format_key: Hashable = "",
        encode_plain: EncodePlainRecords | None = None,
    ) -> W:
        """Return the records of a context, joined by the object that `make_joiner` creates.

        The joiner is cached and gets only new records, or all of them if an older one has changed. `encode_plain`
        encodes many records in one call. It may be passed only for joiners that concatenate, and may return any number
        of pieces.
        """
        kept = self._pop_entry((session, format_key), records)
        kept.join(make_joiner, encode, encode_plain)
        self._put_entry((session, format_key), kept)
        return cast("W", kept.joiner)

    def _pop_entry(self, key: tuple[SessionId, Hashable], records: Sequence[Record]) -> _EncodedContext:
        kept = self._entries.pop(key, None) or _EncodedContext()
        self._size_bytes -= kept.size_bytes
        # Usually the same objects, which compares fast. As a list, because a list never equals a tuple.
        if kept.records != list(records[: len(kept.records)]):
            kept = kept.keep_common_prefix(records)
        kept.records += records[len(kept.records) :]
        return kept

    def _put_entry(self, key: tuple[SessionId, Hashable], entry: _EncodedContext) -> None:
        if entry.size_bytes > self._bytes_max:
            return
        self._entries[key] = entry
        self._size_bytes += entry.size_bytes
        while self._size_bytes > self._bytes_max:
            _, evicted = self._entries.popitem(last=False)
            self._size_bytes -= evicted.size_bytes


class _EncodedContext(Struct):
    records: list[Record] = field(default_factory=list[Record])
    encoded_records: list[bytes] = field(default_factory=list[bytes])  # of the first records
    joiner: RecordJoiner | None = None
    joined_count: int = 0
    size_bytes: int = 0

    def encode(self, encode: EncodeRecord) -> None:
        wires = list(map(encode, self.records[len(self.encoded_records) :]))
        self.encoded_records += wires
        self.size_bytes += sum(map(len, wires))

    def join(
        self, make_joiner: Callable[[], RecordJoiner], encode: EncodeRecord, encode_plain: EncodePlainRecords | None
    ) -> None:
        """Encode and join the records in batches, so that the memory of one batch is freed before the next."""
        if self.joiner is None:
            self.joiner = make_joiner()
        while new := self.records[self.joined_count : self.joined_count + JOIN_BATCH_RECORDS]:
            wires = encode_plain(new) if encode_plain is not None and are_all_text(new) else list(map(encode, new))
            self.joiner.add(new, wires)
            self.joined_count += len(new)
            self.size_bytes += sum(map(len, wires))

    def keep_common_prefix(self, records: Sequence[Record]) -> _EncodedContext:
        """Return a copy of the cached entry with only the records that both lists share at the beginning."""
        pairs = enumerate(zip(self.records, records, strict=False))
        count = next((at for at, (ours, theirs) in pairs if ours != theirs), min(len(self.records), len(records)))
        common = _EncodedContext(list(records[:count]), self.encoded_records[:count])
        common.size_bytes = sum(map(len, common.encoded_records))
        return common
