"""Cache of conversations that are already encoded for a provider."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeVar, cast

from msgspec import Struct, field

from retinue.domain.ids import SessionId
from retinue.domain.record import Record, TextRecord, are_all_text

CONTEXT_CACHE_BYTES_MAX = 16 * 1024 * 1024
JOIN_BATCH_RECORDS = 256  # records


class RecordJoiner(Protocol):
    """Joins the encoded records of one session into the message list of a request.

    The cache keeps a joiner together with the records that it has joined.
    """

    def add(self, records: Sequence[Record], encoded: Sequence[bytes]) -> None: ...


W = TypeVar("W", bound=RecordJoiner)
EncodeRecord = Callable[[Record], bytes]
EncodePlainRecords = Callable[[Sequence[TextRecord]], Sequence[bytes]]


class EncodedContextCache:
    """Cache of conversations that are already encoded for a provider.

    Each record is encoded once, so a turn does not take longer as the history grows. The cache key
    is the session and everything else that affects the encoding: provider, format and options.

    The cache is limited in bytes, and evicts the least recently used entry first. Entries exist
    only in memory, and are rebuilt when needed.

    A cached record is used only if it still has the same content. A sequence number is not enough: if
    a run could not be stored, its numbers are used again when it is resumed.
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

        The joiner is cached and gets only new records. If an older record has changed, a new joiner
        gets all records. `encode_plain` encodes many text records in one call. It may return more
        or fewer pieces than records, so pass it only if the joiner just concatenates its input.
        """
        kept = self._pop_entry((session, format_key), records)
        kept.join(make_joiner, encode, encode_plain)
        self._put_entry((session, format_key), kept)
        return cast("W", kept.joiner)

    def _pop_entry(self, key: tuple[SessionId, Hashable], records: Sequence[Record]) -> _EncodedContext:
        kept = self._entries.pop(key, None) or _EncodedContext()
        self._size_bytes -= kept.size_bytes
        # These are usually the same objects, which compare fast. Compare lists: a list never equals a tuple.
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
        """Return a copy of this entry, cut to the records that are also at the start of `records`."""
        pairs = enumerate(zip(self.records, records, strict=False))
        count = next((at for at, (ours, theirs) in pairs if ours != theirs), min(len(self.records), len(records)))
        common = _EncodedContext(list(records[:count]), self.encoded_records[:count])
        common.size_bytes = sum(map(len, common.encoded_records))
        return common
