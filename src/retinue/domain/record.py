"""Records: a session's history, append-only, and the bodies each kind carries."""

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
from retinue.domain.trust import Trust, least


class RecordKind(StrEnum):
    START = "start"
    RESET = "reset"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    SUMMARY = "summary"
    NOTE = "note"


class Mark(Struct, frozen=True, kw_only=True):
    """Where a context begins. A reset may carry words into the next one. `because` is for people: no model reads it."""

    text: str = ""
    because: str = ""


class UserTurn(Struct, frozen=True, kw_only=True):
    """What a run was given to read, byte for byte as the model read it."""

    text: str
    envelopes: tuple[EnvelopeId, ...] = ()
    attachments: tuple[Attachment, ...] = ()  # what came with the envelopes, to be shown to a model that can see it


class Usage(Struct, frozen=True, kw_only=True):
    """What a reply took. `input_tokens` are all that were read, cached or not; `output_tokens` hold those of thinking.

    `estimated`: the provider did not say, so these are ours, and no total counts them.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cost_microusd: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    estimated: bool = False


NO_USAGE = Usage()


class Stop(StrEnum):
    """Why a model stopped replying."""

    END = "end"
    CALLS = "calls"
    LENGTH = "length"
    CUT_OFF = "cut-off"  # by us, in the middle
    FILTERED = "filtered"  # refused, by the model or by its provider
    PAUSED = "paused"  # to go on, it wants its own words back


class PieceKind(StrEnum):
    TEXT = "text"
    THINKING = "thinking"
    CALL = "call"
    SERVER = "server"  # done by the provider itself: no words and no call of ours


class Piece(Struct, frozen=True, kw_only=True):
    """A stretch of a reply, in the order in which it came: the next `length` characters of its text or thinking, or
    the next so many of its calls.

    `seal` is what the provider wants back with it: a signature, an encrypted thought. It means nothing to another.
    """

    kind: PieceKind
    length: int = 0
    seal: str = ""


class Reply(Struct, frozen=True, kw_only=True):
    """What a model said in one turn, and what it asked for.

    `pieces` are there only where order or seals matter; without them it is thinking, text, calls. A seal is good for
    the `provider` who made it, and for no other.
    """

    text: str
    calls: tuple[Call, ...] = ()
    thinking: str = ""
    stop: Stop = Stop.END
    model: str = ""
    usage: Usage = NO_USAGE
    provider: str = ""
    pieces: tuple[Piece, ...] = ()


class Summary(Struct, frozen=True, kw_only=True):
    """What a context was before `kept_from`, told in short: read first, and what it tells of is not read again."""

    text: str
    kept_from: int
    trust: Trust = Trust.PRIVATE  # of the least trusted record it tells of


class Note(Struct, frozen=True, kw_only=True):
    """Words of the house that the model reads like mail: the end of a cancelled run, mail that was left out.

    `call` names the stored call whose result this is, where one was performed after its turn had gone by. `whole` and
    `attachments` are then as in a result.
    """

    text: str
    call: str = ""
    trust: Trust = Trust.PRIVATE
    whole: str = ""
    attachments: tuple[Attachment, ...] = ()


Body = Mark | UserTurn | Reply | ToolResult | Note | Summary


class Record(NamedTuple):
    """One line of a session's history.

    A tuple, and its moment a number: thousands of them are made at once when a session is read back, and a frozen
    dataclass would take seven times as long to make.
    """

    session: SessionId
    seq: int
    kind: RecordKind
    body: Body
    at_ms: int
    run: RunId | None = None
    trust: Trust = Trust.PRIVATE

    @property
    def at(self) -> datetime:
        return from_ms(self.at_ms)


class Unmade(Protocol):
    """What a body can be made of."""

    def body(self, record: Plain) -> Body: ...


class Plain(Record):
    """A record that is words and nothing else, as it is read back: a turn of the user without attachments, or a reply
    without calls, thinking and pieces. Its body is made when someone looks at it.

    Most records are such, and thousands of them stand between a person and the first answer after a restart. To
    everyone else it is the record that it stands for; whoever goes through a whole context asks for its words alone.
    """

    # In the place of the body stands an `Unmade`, and behind all fields of a record the words. A body that was made is
    # kept in the `__dict__`, which only those have that were looked at.

    @property
    def words(self) -> str:
        return _words(self)

    @cached_property
    def body(self) -> Body:  # pyright: ignore[reportIncompatibleVariableOverride]
        unmade: Any = self[_BODY]
        return unmade.body(self)

    @property
    def whole(self) -> Record:
        return Record(self.session, self.seq, self.kind, self.body, self.at_ms, self.run, self.trust)

    def __eq__(self, other: object) -> bool:
        return self is other or self.whole == (other.whole if isinstance(other, Plain) else other)

    def __ne__(self, other: object) -> bool:  # a tuple has its own
        return not self == other

    def __hash__(self) -> int:
        return hash(self.whole)

    def __repr__(self) -> str:
        return repr(self.whole)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.whole)

    def __reduce__(self) -> tuple[type[Record], tuple[Any, ...]]:
        return Record, tuple(self.whole)

    def _replace(self, **changed: Any) -> Record:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.whole._replace(**changed)


_BODY = Record._fields.index("body")
_words: Callable[[Plain], str] = itemgetter(len(Record._fields))
_kind: Callable[[Record], RecordKind] = itemgetter(Record._fields.index("kind"))
_trust: Callable[[Record], Trust] = itemgetter(Record._fields.index("trust"))


def plain_records(
    fields: Iterable[tuple[SessionId, int, RecordKind, Unmade, int, RunId | None, Trust, str]],
) -> Iterator[Plain]:
    """Made of the fields of a record each, with an `Unmade` for a body, and its words. No line of Python is run for
    each of them."""
    return map(cast(Any, tuple).__new__, repeat(Plain), fields)


def all_plain(records: Sequence[Record]) -> TypeGuard[Sequence[Plain]]:
    return set(map(type, records)) <= {Plain}


def words_of(records: Iterable[Plain]) -> Iterator[str]:
    return map(_words, records)


def trust_of(body: Body) -> Trust:
    """How far a body can be believed, where it says so itself. Mail is believed as far as its senders are."""
    match body:
        case ToolResult(trust=trust) | Note(trust=trust) | Summary(trust=trust):
            return trust
        case Reply(provider=provider) if provider == EXTERNAL:
            return Trust.UNTRUSTED
        case _:
            return Trust.PRIVATE


def bare_model(reply: Reply) -> str:
    """What whoever sells it calls the model that replied: a reply has it by its whole name."""
    return reply.model.removeprefix(f"{reply.provider}/")


def believed(record: Record) -> Trust:
    """How far a record can be believed with all that came with it: nobody labels what is in the files that someone
    other than the owner sends."""
    if type(record) is Plain:
        return record.trust
    if type(record.body) is UserTurn and record.body.attachments and record.trust is not Trust.OWNER:
        return Trust.UNTRUSTED
    return record.trust


def least_believed(context: Sequence[Record]) -> Trust:
    """Of the least trusted words in a context. It is asked for every turn, and a context may have thousands: no line of
    Python is run for each of them, unless others than the owner have spoken."""
    met = set(zip(map(_kind, context), map(_trust, context), strict=True))
    trusts = {trust for _, trust in met}
    if Trust.UNTRUSTED in trusts:
        return Trust.UNTRUSTED
    others = any(kind is RecordKind.USER and trust is not Trust.OWNER for kind, trust in met)
    if others and any(believed(record) is Trust.UNTRUSTED for record in context if record.kind is RecordKind.USER):
        return Trust.UNTRUSTED
    return least(trusts)


def kind_of(body: Body) -> RecordKind:
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
        case Mark():
            return RecordKind.RESET
