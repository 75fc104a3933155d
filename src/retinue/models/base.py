"""What replies. A model is handed the whole context and answers with a stream; nothing else is asked of it."""

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
    """A tool call, complete."""

    call: Call


class Seals(Struct, frozen=True):
    """What the provider wants back with what it has just said. Where that was of another kind, or is sealed already,
    it belongs to a new stretch without words."""

    kind: PieceKind
    seal: str


class Ended(Struct, frozen=True):
    """Always the last chunk of a reply that came through whole. A cost of nothing means: work it out from the price."""

    stop: Stop
    usage: Usage


Chunk = Text | Thinking | Asks | Seals | Ended


class Media(Protocol):
    """Where the bytes of an attachment are. None where they are gone."""

    def read(self, attachment: Attachment) -> bytes | None: ...


class Prompt(Struct, frozen=True, kw_only=True):
    """Everything a model is given for one reply."""

    session: SessionId
    instructions: str
    records: Sequence[Record]
    tools: Sequence[ToolSpec]
    output_tokens_max: int = OUTPUT_TOKENS_MAX
    effort: str | None = None
    media: Media | None = None


class Model(Protocol):
    """Replies to a prompt as a stream that ends with `Ended`, or raises `ModelFailed`.

    `key` is the credential to ask with: empty where none is needed. It is in no error, no log and no `repr`.
    """

    @property
    def name(self) -> str: ...

    @property
    def facts(self) -> ModelFacts: ...

    def reply(self, prompt: Prompt, *, key: str = "") -> AsyncIterator[Chunk]: ...


class Weaver(Protocol):
    """Puts encoded records together, for as long as they are kept."""

    def add(self, records: Sequence[Record], wires: Sequence[bytes]) -> None: ...


W = TypeVar("W", bound=Weaver)
Encode = Callable[[Record], bytes]
EncodePlain = Callable[[Sequence[Plain]], Sequence[bytes]]


class WireCache:
    """Contexts as bytes, each record encoded once: the cost of a turn does not grow with the history.

    Kept by session and by the form of its bytes (who is asked, in which format, and whatever else shapes them), and
    bounded in bytes, the longest unused going first; rebuilt when evicted, never stored.
    What is kept is known by the records themselves: a number may come to mean something else, when a run that could not
    be stored is taken up again.
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
        """The records of a session's context, each as bytes. Only those that are new are encoded.

        What `encode` makes of a record may depend on those before it, and on what is in `form`; on nothing else.
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
        """The same, put together by what `make` makes. That is kept instead, and given only the records that are new;
        where an older one has changed, all of them. `plain` makes of many at once what `encode` makes of each: for one
        that puts bytes behind bytes and asks no more, in as many pieces as it likes.
        """
        kept = self._take((session, form), records)
        kept.weave(make, encode, plain)
        self._keep((session, form), kept)
        return cast("W", kept.woven)

    def _take(self, key: tuple[SessionId, Hashable], records: Sequence[Record]) -> _Encoded:
        kept = self._kept.pop(key, None) or _Encoded()
        self._size_bytes -= kept.size_bytes
        # The same objects as a rule, which is seen at a glance; and a list, since no list equals a tuple.
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
    wires: list[bytes] = field(default_factory=list[bytes])  # of the first so many of them
    woven: Weaver | None = None
    woven_records: int = 0
    size_bytes: int = 0

    def encode(self, encode: Encode) -> None:
        wires = list(map(encode, self.records[len(self.wires) :]))
        self.wires += wires
        self.size_bytes += sum(map(len, wires))

    def weave(self, make: Callable[[], Weaver], encode: Encode, plain: EncodePlain | None) -> None:
        """Some at a time, so that what is joined of them is let go before the next are made."""
        if self.woven is None:
            self.woven = make()
        while new := self.records[self.woven_records : self.woven_records + WOVEN_AT_ONCE]:
            wires = plain(new) if plain is not None and all_plain(new) else list(map(encode, new))
            self.woven.add(new, wires)
            self.woven_records += len(new)
            self.size_bytes += sum(map(len, wires))

    def only(self, records: Sequence[Record]) -> _Encoded:
        """What is kept of the beginning that both have in common."""
        pairs = enumerate(zip(self.records, records, strict=False))
        count = next((at for at, (ours, theirs) in pairs if ours != theirs), min(len(self.records), len(records)))
        common = _Encoded(list(records[:count]), self.wires[:count])
        common.size_bytes = sum(map(len, common.wires))
        return common
