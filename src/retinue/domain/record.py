"""Records: the append-only history of a session, and the content of each kind of record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from itertools import repeat
from operator import itemgetter
from typing import Any, NamedTuple, Protocol, TypeGuard, cast

from msgspec import Struct

from retinue.domain.address import EXTERNAL
from retinue.domain.attachment import Attachment
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.times import from_ms
from retinue.domain.tool import Call, ToolResult
from retinue.domain.trust import Trust, least_trust


class RecordKind(StrEnum):
    START = "start"
    RESET = "reset"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SUMMARY = "summary"
    NOTE = "note"


class ContextStart(Struct, frozen=True, kw_only=True):
    """A record that starts a new context. `text` is the first message of the new context, if any.

    `because` is for people; no model reads it.
    """

    text: str = ""
    because: str = ""


class UserTurn(Struct, frozen=True, kw_only=True):
    """A record with the input of a run, byte for byte as the model read it."""

    text: str
    envelopes: tuple[EnvelopeId, ...] = ()
    attachments: tuple[Attachment, ...] = ()  # attachments of the envelopes, shown to a model that can read them


class Usage(Struct, frozen=True, kw_only=True):
    """The tokens and cost of a reply.

    `input_tokens` includes cached tokens; `output_tokens` includes reasoning tokens. With `estimated`, the numbers are
    estimates, because the provider reported none. No total includes estimates.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False


NO_USAGE = Usage()


class StopReason(StrEnum):
    """Why a model ended its reply."""

    END = "end"
    CALLS = "calls"
    LENGTH = "length"
    CUT_OFF = "cut-off"  # the server cancelled the reply while it streamed
    FILTERED = "filtered"  # refused by the model or its provider
    PAUSED = "paused"  # to continue, the provider needs its output sent back


class ReplyPieceKind(StrEnum):
    TEXT = "text"
    THINKING = "thinking"
    CALL = "call"
    SERVER = "server"  # a tool that the provider executed: neither text nor a call of ours


class ReplyPiece(Struct, frozen=True, kw_only=True):
    """A section of a reply: the next `length` characters of its text or reasoning, or the next `length` calls.

    `seal` is opaque data to send back with the section, such as a signature or encrypted reasoning. Only the provider
    of the reply can use it.
    """

    kind: ReplyPieceKind
    length: int = 0
    seal: str = ""


class Reply(Struct, frozen=True, kw_only=True):
    """A record with the text that a model replied in one turn, and the calls that it requested.

    `pieces` is set only if order or seals matter. Otherwise the order is thinking, text, calls. A seal is valid only
    for the `provider` that made it.
    """

    text: str
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    stop: StopReason = StopReason.END
    model: str = ""
    usage: Usage = NO_USAGE
    provider: str = ""
    pieces: tuple[ReplyPiece, ...] = ()


class Summary(Struct, frozen=True, kw_only=True):
    """A record with a summary of the records before `kept_from`, which is a seq.

    Models read it in place of these records.
    """

    text: str
    kept_from: int
    trust: Trust = Trust.PRIVATE  # the least trust of the records it covers


class Note(Struct, frozen=True, kw_only=True):
    """A record with text from the server, which the model reads like a message.

    For example, a note says that a run was cancelled or that envelopes were left out. A note can also have the result
    of a tool call that was performed after its turn had ended. Then `call` is the id of the stored call,
    and `whole` and `attachments` have the same meaning as in `ToolResult`.
    """

    text: str
    call: str = ""
    trust: Trust = Trust.PRIVATE
    whole: str = ""
    attachments: tuple[Attachment, ...] = ()


RecordBody = ContextStart | UserTurn | Reply | ToolResult | Note | Summary


class Record(NamedTuple):
    """One record of a session's history.

    It is a tuple with a numeric timestamp, because loading a session creates thousands of records. A frozen dataclass
    would take seven times as long to create.
    """

    session: SessionId
    seq: int
    kind: RecordKind
    body: RecordBody
    at_ms: int
    run: RunId | None = None
    trust: Trust = Trust.PRIVATE

    @property
    def at(self) -> datetime:
        return from_ms(self.at_ms)


class LazyBody(Protocol):
    """Builds the body of a record when the body is first read."""

    def body(self, record: TextRecord) -> RecordBody: ...


class TextRecord(Record):
    """A text-only record as loaded from the store. Its body is built on first access.

    It is a user turn without attachments, or a reply without calls, reasoning and pieces. Most records are text-only,
    and thousands are loaded before the first answer after a restart. A text record behaves like the `Record` that it
    replaces. Code that processes a whole context can read `text` without building the body.
    """

    # The body's tuple slot holds a `LazyBody`, and the text follows after all fields of `Record`. A
    # built body is cached in `__dict__`, which exists only once the body has been accessed.

    @property
    def text(self) -> str:
        return _get_text(self)

    @cached_property
    def body(self) -> RecordBody:  # pyright: ignore[reportIncompatibleVariableOverride]
        unmade: Any = self[_BODY_INDEX]
        return unmade.body(self)

    @property
    def full_record(self) -> Record:
        return Record(self.session, self.seq, self.kind, self.body, self.at_ms, self.run, self.trust)

    def __eq__(self, other: object) -> bool:
        return self is other or self.full_record == (other.full_record if isinstance(other, TextRecord) else other)

    def __ne__(self, other: object) -> bool:  # `tuple` defines `!=` separately
        return not self == other

    def __hash__(self) -> int:
        return hash(self.full_record)

    def __repr__(self) -> str:
        return repr(self.full_record)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.full_record)

    def __reduce__(self) -> tuple[type[Record], tuple[Any, ...]]:
        return Record, tuple(self.full_record)

    def _replace(self, **changed: Any) -> Record:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.full_record._replace(**changed)


_BODY_INDEX = Record._fields.index("body")
_get_text: Callable[[TextRecord], str] = itemgetter(len(Record._fields))
_get_kind: Callable[[Record], RecordKind] = itemgetter(Record._fields.index("kind"))
_get_trust: Callable[[Record], Trust] = itemgetter(Record._fields.index("trust"))


def make_text_records(
    fields: Iterable[tuple[SessionId, int, RecordKind, LazyBody, int, RunId | None, Trust, str]],
) -> Iterator[TextRecord]:
    """Create text records from tuples of record fields, with a `LazyBody` as the body and the text last.

    No Python code runs per record, so thousands are created quickly.
    """
    return map(cast(Any, tuple).__new__, repeat(TextRecord), fields)


def are_all_text(records: Sequence[Record]) -> TypeGuard[Sequence[TextRecord]]:
    return set(map(type, records)) <= {TextRecord}


def record_texts(records: Iterable[TextRecord]) -> Iterator[str]:
    return map(_get_text, records)


def body_trust(body: RecordBody) -> Trust:
    """Return the trust of a record from its body alone.

    Do not call this for a user turn: the trust of a user turn depends on its senders.
    """
    match body:
        case ToolResult(trust=trust) | Note(trust=trust) | Summary(trust=trust):
            return trust
        case Reply(provider=provider) if provider == EXTERNAL:
            return Trust.UNTRUSTED
        case _:
            return Trust.PRIVATE


def model_without_provider(reply: Reply) -> str:
    """Return the model of a reply without its provider prefix."""
    return reply.model.removeprefix(f"{reply.provider}/")


def effective_trust(record: Record) -> Trust:
    """Return the trust of a record together with its attachments.

    The contents of files have no trust level of their own. Files from anyone but the owner are therefore untrusted.
    """
    if type(record) is TextRecord:
        return record.trust
    if type(record.body) is UserTurn and record.body.attachments and record.trust is not Trust.OWNER:
        return Trust.UNTRUSTED
    return record.trust


def least_trust_in(context: Sequence[Record]) -> Trust:
    """Return the least trust of any record in a context.

    This is called every turn, and a context may have thousands of records. Python code therefore runs per record only
    if a user turn in the context is from someone other than the owner.
    """
    met = set(zip(map(_get_kind, context), map(_get_trust, context), strict=True))
    trusts = {trust for _, trust in met}
    if Trust.UNTRUSTED in trusts:
        return Trust.UNTRUSTED
    others = any(kind is RecordKind.USER and trust is not Trust.OWNER for kind, trust in met)
    if others and any(
        effective_trust(record) is Trust.UNTRUSTED for record in context if record.kind is RecordKind.USER
    ):
        return Trust.UNTRUSTED
    return least_trust(trusts)


def body_kind(body: RecordBody) -> RecordKind:
    match body:
        case UserTurn():
            return RecordKind.USER
        case Reply():
            return RecordKind.ASSISTANT
        case ToolResult():
            return RecordKind.TOOL
        case Note():
            return RecordKind.NOTE
        case Summary():
            return RecordKind.SUMMARY
        case ContextStart():
            return RecordKind.RESET
