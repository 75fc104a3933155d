"""The model protocol: a model gets the whole context and replies with a stream of chunks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from typing import Protocol, TypeVar, cast

from msgspec import Struct, field

from retinue.domain.attachment import Attachment
from retinue.domain.ids import SessionId
from retinue.domain.model import OUTPUT_TOKENS_MAX, ModelFacts
from retinue.domain.record import PieceKind, Plain, Record, Stop, Usage, all_plain
from retinue.domain.tool import Call, ToolSpec

WIRE_CACHE_BYTES_MAX = 16 * 1024 * 1024
WOVEN_AT_ONCE = 256  # records


class Text(Struct, frozen=True):
    text: str


class Thinking(Struct, frozen=True):
    text: str


class Asks(Struct, frozen=True):
    """A complete tool call."""

    call: Call


class Seals(Struct, frozen=True):
    """What the provider wants back together with the preceding chunks, such as a signature.

    If those are of another kind, or already signed, it belongs to a new, empty part.
    """

    kind: PieceKind
    seal: str


class Ended(Struct, frozen=True):
    """Always the last chunk of a complete reply. A cost of zero means: compute it from the price."""

    stop: Stop
    usage: Usage


Chunk = Text | Thinking | Asks | Seals | Ended


class Media(Protocol):
    """Reads the bytes of an attachment. None if they are gone."""

    def read(self, attachment: Attachment) -> bytes | None: ...


class Prompt(Struct, frozen=True, kw_only=True):
    """Everything a model gets for one reply."""

    session: SessionId
    instructions: str
    records: Sequence[Record]
    tools: Sequence[ToolSpec]
    output_tokens_max: int = OUTPUT_TOKENS_MAX
    effort: str | None = None
    media: Media | None = None


class Model(Protocol):
    """Replies to a prompt with a stream that ends with `EndChunk`, or raises `ModelFailed`.

    `key` is the API key to use, empty if none is needed. It never appears in an error, a log or a
    `repr`.
    """

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> ModelFacts: ...

    def reply(self, prompt: Prompt, *, key: str = "") -> AsyncIterator[Chunk]: ...


class Weaver(Protocol):
    """Joins encoded records, for as long as they are cached."""

    def add(self, records: Sequence[Record], wires: Sequence[bytes]) -> None: ...


W = TypeVar("W", bound=Weaver)
Encode = Callable[[Record], bytes]
EncodePlain = Callable[[Sequence[Plain]], Sequence[bytes]]


class WireCache:
    """Cache of encoded contexts.

    Each record is encoded once, so the cost of a turn does not grow with the history.

    Keyed by session and by everything else that shapes the bytes: provider, format and options.
    Limited in bytes; the least recently used entry is evicted first. Entries are rebuilt after
    eviction, never stored. They are compared by the records themselves, not by their sequence
    numbers: a number is reused if a run could not be stored and is resumed.
    """

    def __init__(self, bytes_max: int = WIRE_CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0
        self._kept: OrderedDict[tuple[SessionId, Hashable], _Encoded] = OrderedDict()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def of(
        self, session: SessionId, records: Sequence[Record], encode: Encode, *, form: Hashable = ""
    ) -> Sequence[bytes]:
        """Return the encoded records of a session's context.

        Only new ones are encoded.

        The result of `encode` may depend on the records before and on `format_key`, and on nothing
        else.
        """
        kept = self._take((session, form), records)
        kept.encode(encode)
        self._keep((session, form), kept)
        return kept.wires

    def woven(
        self,
        session: SessionId,
        records: Sequence[Record],
        encode: Encode,
        make: Callable[[], W],
        *,
        form: Hashable = "",
        plain: EncodePlain | None = None,
    ) -> W:
        """Return the records of a context, joined by the object that `make_joiner` creates.

        The joiner is cached and gets only new records, or all of them if an older one has changed.
        `encode_plain` does for many records at once what `encode` does for each. It is for joiners
        that only concatenate, and may return any number of pieces.
        """
        kept = self._take((session, form), records)
        kept.weave(make, encode, plain)
        self._keep((session, form), kept)
        return cast("W", kept.woven)

    def _take(self, key: tuple[SessionId, Hashable], records: Sequence[Record]) -> _Encoded:
        kept = self._kept.pop(key, None) or _Encoded()
        self._size_bytes -= kept.size_bytes
        # Usually the same objects, which compares fast. As a list, because a list never equals a tuple.
        if kept.records != list(records[: len(kept.records)]):
            kept = kept.only(records)
        kept.records += records[len(kept.records) :]
        return kept

    def _keep(self, key: tuple[SessionId, Hashable], kept: _Encoded) -> None:
        if kept.size_bytes > self._bytes_max:
            return
        self._kept[key] = kept
        self._size_bytes += kept.size_bytes
        while self._size_bytes > self._bytes_max:
            _, evicted = self._kept.popitem(last=False)
            self._size_bytes -= evicted.size_bytes


class _Encoded(Struct):
    records: list[Record] = field(default_factory=list[Record])
    wires: list[bytes] = field(default_factory=list[bytes])  # of the first records
    woven: Weaver | None = None
    woven_records: int = 0
    size_bytes: int = 0

    def encode(self, encode: Encode) -> None:
        wires = list(map(encode, self.records[len(self.wires) :]))
        self.wires += wires
        self.size_bytes += sum(map(len, wires))

    def weave(self, make: Callable[[], Weaver], encode: Encode, plain: EncodePlain | None) -> None:
        """Encode and join in batches, so that the memory of one batch is freed before the next."""
        if self.woven is None:
            self.woven = make()
        while new := self.records[self.woven_records : self.woven_records + WOVEN_AT_ONCE]:
            wires = plain(new) if plain is not None and all_plain(new) else list(map(encode, new))
            self.woven.add(new, wires)
            self.woven_records += len(new)
            self.size_bytes += sum(map(len, wires))

    def only(self, records: Sequence[Record]) -> _Encoded:
        """Return what is still valid: the prefix that both have in common."""
        pairs = enumerate(zip(self.records, records, strict=False))
        count = next((at for at, (ours, theirs) in pairs if ours != theirs), min(len(self.records), len(records)))
        common = _Encoded(list(records[:count]), self.wires[:count])
        common.size_bytes = sum(map(len, common.wires))
        return common
