"""Converts sessions to and from the files of the program Daycare: `descriptor.json`, `state.json`, `history.jsonl`.

If an imported session is exported again, the files are byte-for-byte the same. A line that retinue would
write differently is therefore stored unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.agents.errors import ImportTooLong, ImportUnreadable, SessionTooLongToExport
from retinue.domain.agent import Agent
from retinue.domain.ids import SessionId
from retinue.domain.record import (
    ContextStart,
    Note,
    Record,
    RecordBody,
    RecordKind,
    Reply,
    StopReason,
    Summary,
    Usage,
    UserTurn,
    body_kind,
)
from retinue.domain.session import Origin, OriginKind, Session
from retinue.domain.times import to_ms
from retinue.domain.tool import Call, ToolResult
from retinue.domain.trust import Trust
from retinue.store.agents import agents
from retinue.store.sessions import imported_lines, sessions
from retinue.store.sessions.imported_lines import ImportedFiles, ImportedRecord
from retinue.store.sessions.records import DamagedRecord

DESCRIPTOR_FILE, STATE_FILE, HISTORY_FILE = "descriptor.json", "state.json", "history.jsonl"
FILE_NAMES = (DESCRIPTOR_FILE, STATE_FILE, HISTORY_FILE)
HISTORY_CHARS_MAX = 64 * 1024 * 1024
IMPORT_LINES_MAX = 100_000
TIME_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999

_encode = msgspec.json.Encoder().encode


class DaycareFiles(Struct, frozen=True, kw_only=True):
    """The contents of a session's three files. `history` may start at a later record than the first."""

    session: Session
    descriptor: str
    state: str
    history: str
    damaged_records: Sequence[DamagedRecord]

    def by_name(self) -> dict[str, str]:
        return {DESCRIPTOR_FILE: self.descriptor, STATE_FILE: self.state, HISTORY_FILE: self.history}


def read_files(conn: sa.Connection, id_: str, *, first_seq: int = 1) -> DaycareFiles | None:
    """Return a session's files, with the history from the record `first_seq` on.

    Returns None if the session does not exist.
    """
    session = sessions.get(conn, id_)
    if session is None:
        return None
    opening = imported_lines.get_imported_files(conn, id_)
    kept, damaged = imported_lines.read(conn, id_, first=first_seq, last=session.record_seq)
    lines: list[str] = []
    size = 0
    for each in kept:
        line = each.line if each.line is not None else encode_line(each.record)
        size += len(line)
        if size > HISTORY_CHARS_MAX:
            raise SessionTooLongToExport(chars_max=HISTORY_CHARS_MAX)
        lines.append(line)
    return DaycareFiles(
        session=session,
        descriptor=opening.descriptor if opening else _encode_pretty(build_descriptor(session)),
        state=_render_state(session, agents.find(conn, session.agent), opening),
        history="".join(lines),
        damaged_records=damaged,
    )


# --- descriptor ---


class _User(msgspec.Struct, tag_field="type", tag="user", forbid_unknown_fields=True):
    connector: str
    userId: str
    channelId: str


class _Cron(msgspec.Struct, tag_field="type", tag="cron", forbid_unknown_fields=True):
    id: str


class _Heartbeat(msgspec.Struct, tag_field="type", tag="heartbeat", forbid_unknown_fields=True):
    pass


class _Subagent(msgspec.Struct, tag_field="type", tag="subagent", forbid_unknown_fields=True):
    id: str
    parentAgentId: str
    name: str


SessionDescriptor = _User | _Cron | _Heartbeat | _Subagent
_descriptor_decoder = msgspec.json.Decoder(SessionDescriptor)


def build_descriptor(session: Session) -> SessionDescriptor:
    """Return the descriptor of a session, in one of Daycare's four forms.

    It depends only on the id and the origin, which never change.
    """
    origin = session.origin
    match origin.kind:
        case OriginKind.SCHEDULE:
            return _Cron(id=origin.key.removeprefix("schedule:"))
        case OriginKind.HEARTBEAT:
            return _Heartbeat()
        case OriginKind.SUBAGENT | OriginKind.BACKGROUND:
            return _Subagent(id=session.id, parentAgentId=origin.parent or "", name=origin.key)
        case _:
            return _build_user_descriptor(origin)


def _build_user_descriptor(origin: Origin) -> _User:
    if origin.kind is OriginKind.CHAT and origin.key.startswith("channel:"):
        instance, _, room = origin.key.removeprefix("channel:").partition(":")
        return _User(connector=instance, userId=room, channelId=room)
    who, _, conversation = origin.key.partition("/")
    name = who.partition(":")[2] or who
    return _User(connector=origin.kind.value, userId=name, channelId=conversation or name)


# --- state ---


class _Times(msgspec.Struct):
    createdAt: int
    updatedAt: int


_times_decoder = msgspec.json.Decoder(_Times)
_object_decoder = msgspec.json.Decoder(dict[str, Any])


def _render_state(session: Session, agent: Agent | None, imported: ImportedFiles | None) -> str:
    updated_ms = to_ms(session.updated_at)
    if imported is None:
        return _encode_pretty(build_state(session, agent))
    if session.record_seq == imported.record_seq and _times_decoder.decode(imported.state).updatedAt == updated_ms:
        return imported.state
    return _encode_pretty(
        _object_decoder.decode(imported.state) | {"updatedAt": updated_ms, "state": session.activity.value}
    )


def build_state(session: Session, agent: Agent | None) -> dict[str, Any]:
    core = session.attributes.get("core")
    folder = cast(dict[str, Any], core).get("workingDir") if isinstance(core, dict) else None
    return {
        "provider": agent.provider if agent else None,
        "model": agent.model if agent else None,
        "permissions": {"workingDir": folder, "writeDirs": [], "readDirs": [], "web": False},
        "tokens": None,
        "stats": {},
        "createdAt": to_ms(session.created_at),
        "updatedAt": to_ms(session.updated_at),
        "state": session.activity.value,
    }


def _encode_pretty(value: Any) -> str:
    return msgspec.json.format(_encode(value), indent=2).decode() + "\n"


# --- history ---


class _Start(msgspec.Struct, tag_field="type", tag="start"):
    at: int


class _Reset(msgspec.Struct, tag_field="type", tag="reset", omit_defaults=True):
    at: int
    message: str | None = None


class _UserMessage(msgspec.Struct, tag_field="type", tag="user_message"):
    at: int
    text: str
    files: list[Any] = []


class _ToolCall(msgspec.Struct):
    id: str
    name: str
    arguments: dict[str, Any] = {}
    type: str = "toolCall"


class _Size(msgspec.Struct):
    input: int = 0
    output: int = 0
    cacheRead: int = 0
    cacheWrite: int = 0
    total: int = 0


class _Tokens(msgspec.Struct):
    provider: str
    model: str
    size: _Size


class _AssistantMessage(msgspec.Struct, tag_field="type", tag="assistant_message"):
    at: int
    text: str
    files: list[Any] = []
    toolCalls: list[_ToolCall] = []
    tokens: _Tokens | None = None


class _Part(msgspec.Struct):
    type: str
    text: str = ""


class _ToolMessage(msgspec.Struct):
    role: str = "toolResult"
    toolCallId: str = ""
    toolName: str = ""
    content: list[_Part] = []
    isError: bool = False


class _Output(msgspec.Struct):
    toolMessage: _ToolMessage
    files: list[Any] = []


class _Result(msgspec.Struct, tag_field="type", tag="tool_result"):
    at: int
    toolCallId: str
    output: _Output


class _NoteLine(msgspec.Struct, tag_field="type", tag="note"):
    at: int
    text: str


HistoryLine = _Start | _Reset | _UserMessage | _AssistantMessage | _Result | _NoteLine
_line_decoder = msgspec.json.Decoder(HistoryLine)


def encode_line(record: Record) -> str:
    """Return a record as one line of `history.jsonl`, including its line break."""
    return _encode(_line_from_record(record)).decode() + "\n"


def _line_from_record(record: Record) -> HistoryLine:
    at = record.at_ms
    match record.body:
        case ContextStart(text=text):
            return _Start(at) if record.kind is RecordKind.START else _Reset(at, text or None)
        case UserTurn(text=text):
            return _UserMessage(at, text)
        case Reply() as reply:
            calls = [_ToolCall(call.id, call.tool, call.arguments) for call in reply.calls]
            return _AssistantMessage(at, reply.text, toolCalls=calls, tokens=_tokens_of_reply(reply))
        case ToolResult() as result:
            message = _ToolMessage(
                toolCallId=result.call,
                toolName=result.tool,
                content=[_Part("text", result.output)],
                isError=result.failed,
            )
            return _Result(at, result.call, _Output(message))
        case Note(text=text) | Summary(text=text):
            return _NoteLine(at, text)


def _tokens_of_reply(reply: Reply) -> _Tokens | None:
    used = reply.usage
    if not reply.model:
        return None
    size = _Size(input=used.input_tokens, output=used.output_tokens, total=used.input_tokens + used.output_tokens)
    return _Tokens(provider="", model=reply.model, size=size)


# --- import ---


class DaycareImport(Struct, frozen=True, kw_only=True):
    """The parsed content of three Daycare files, with everything that is needed to create a session from it."""

    records: Sequence[ImportedRecord]
    files: ImportedFiles
    context_from: int
    snippet: str
    created_ms: int
    updated_ms: int


def parse_files(files: dict[str, str], session: SessionId) -> DaycareImport:
    """Parse the three files of an import as the history of `session`.

    Raises an `Invalid` error with the file and line if something cannot be parsed.
    """
    if set(files) != set(FILE_NAMES):
        found = ", ".join(sorted(files))[:200] or "nothing"
        raise ImportUnreadable(found, because=f"these files are needed: {', '.join(FILE_NAMES)}")
    try:
        _descriptor_decoder.decode(files[DESCRIPTOR_FILE])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ImportUnreadable(DESCRIPTOR_FILE, because=str(error)) from error
    try:
        times = _times_decoder.decode(files[STATE_FILE])
        _object_decoder.decode(files[STATE_FILE])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ImportUnreadable(STATE_FILE, because=str(error)) from error
    for at_ms in (times.createdAt, times.updatedAt):
        _check_time(STATE_FILE, at_ms)
    kept = list(_parse_history(files[HISTORY_FILE], session, created_ms=times.createdAt))
    marks = [k.record.seq for k in kept if k.record.kind in (RecordKind.START, RecordKind.RESET)]
    texts = [k.record.body.text for k in kept if isinstance(k.record.body, UserTurn | Reply)]
    return DaycareImport(
        records=kept,
        files=ImportedFiles(files[DESCRIPTOR_FILE], files[STATE_FILE], kept[-1].record.seq),
        context_from=marks[-1],
        snippet=texts[-1] if texts else "",
        created_ms=times.createdAt,
        updated_ms=times.updatedAt,
    )


def _parse_history(history: str, session: SessionId, *, created_ms: int) -> Iterator[ImportedRecord]:
    lines = history.split("\n")
    ended = [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
    if len(ended) > IMPORT_LINES_MAX:
        raise ImportTooLong(HISTORY_FILE, lines=len(ended), lines_max=IMPORT_LINES_MAX)
    seq = 0
    if not ended or _read_line(ended[0], 1)[0] is not RecordKind.START:
        # Every session begins with a start marker. Daycare's files have none, so add it here.
        seq = 1
        mark = Record(session=session, seq=seq, kind=RecordKind.START, body=ContextStart(), at_ms=created_ms)
        yield ImportedRecord(mark, line="")
    for number, line in enumerate(ended, start=1):
        seq += 1
        kind, body, at_ms = _read_line(line, number)
        record = Record(session=session, seq=seq, kind=kind, body=body, at_ms=at_ms, trust=Trust.UNTRUSTED)
        yield ImportedRecord(record, line=line if encode_line(record) != line else None)


def _read_line(line: str, number: int) -> tuple[RecordKind, RecordBody, int]:
    where = f"line {number} of {HISTORY_FILE}"
    try:
        read_in = _line_decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ImportUnreadable(where, because=str(error)) from error
    _check_time(where, read_in.at)
    if isinstance(read_in, _Start):
        return RecordKind.START, ContextStart(), read_in.at
    body = _body_from_line(read_in)
    return body_kind(body), body, read_in.at


def _body_from_line(line: _Reset | _UserMessage | _AssistantMessage | _Result | _NoteLine) -> RecordBody:
    match line:
        case _Reset(message=message):
            return ContextStart(text=message or "")
        case _UserMessage(text=text):
            return UserTurn(text=text)
        case _AssistantMessage(text=text, toolCalls=called, tokens=tokens):
            used = tokens.size if tokens else _Size()
            return Reply(
                text=text,
                calls=tuple(Call(id=call.id, tool=call.name, arguments=call.arguments) for call in called),
                stop=StopReason.CALLS if called else StopReason.END,
                model=tokens.model if tokens else "",
                usage=Usage(input_tokens=used.input, output_tokens=used.output),
            )
        case _Result(toolCallId=call, output=output):
            message = output.toolMessage
            words = "".join(part.text for part in message.content if part.type == "text")
            return ToolResult(call=call, tool=message.toolName, output=words, failed=message.isError)
        case _NoteLine(text=text):
            return Note(text=text)


def _check_time(where: str, at_ms: int) -> None:
    if not 0 <= at_ms <= TIME_MS_MAX:
        raise ImportUnreadable(where, because=f"{at_ms} is not a time in milliseconds since 1970")
