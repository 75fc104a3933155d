"""The tools `sessions_list`, `sessions_history` and `sessions_send`: read and write other sessions.

Access depends on the settings of the agents, on whether the current session is sandboxed, and on
what the run principal can see. A session that the run principal cannot see is reported as not found.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct, field

from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent
from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.delegation import DelegationKind, DelegationState
from retinue.domain.delegation_request import DelegateWork, DelegationRequest, DelegationStatus
from retinue.domain.errors import Invalid, NotAllowed, RetinueError
from retinue.domain.ports import Clock
from retinue.domain.record import Record, Reply, UserTurn, least_trust_in
from retinue.domain.session import SPAWNED_ORIGINS, OriginKind, Session
from retinue.domain.shared_errors import SessionNotFound
from retinue.domain.storable_text import truncate_bytes
from retinue.domain.times import to_ms
from retinue.domain.tool import ToolEffect, ToolResult, ToolSpec
from retinue.domain.trust import Trust, least_trust
from retinue.policy.access.session_access import may_access_session
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes
from retinue.store.runs import runs
from retinue.store.runs.run_principal import can_see, get_run_principal, is_descendant
from retinue.store.sessions import records, sessions
from retinue.store.sessions.session_names import find_by_label, find_session, session_key
from retinue.tools.base import CallPending, ToolContext, ToolFailed, ToolOutput, as_tool_failed, schema_of
from retinue.tools.delegate.errors import (
    SessionForbidden,
    SessionIsCurrent,
    SessionKindUnknown,
    SessionNotNamed,
    SessionRunMissing,
)

LISTED_DEFAULT, LISTED_MAX = 20, 50
SESSIONS_SCANNED_MAX = 500  # sessions checked for access
MESSAGES_PER_SESSION_MAX = 20
MESSAGE_BYTES_MAX = 4_096  # of one message in the list
HISTORY_DEFAULT, HISTORY_MAX = 50, 500  # messages
RECORDS_SCANNED_MAX = 4 * HISTORY_MAX
RECORDS_SCANNED_IN_LIST_MAX = 200  # per session
HISTORY_BYTES_MAX = 80 * 1024
REPLY_BYTES_MAX = 40_000
WAIT_DEFAULT_S, WAIT_S_MAX = 30.0, 3_600.0

# Session kinds, including the names that other agent systems use.
SESSION_KINDS: dict[str, frozenset[OriginKind]] = {
    **{kind.value: frozenset({kind}) for kind in OriginKind},
    "main": frozenset({OriginKind.TERMINAL, OriginKind.WEB}),
    "group": frozenset({OriginKind.CHAT}),
    "cron": frozenset({OriginKind.SCHEDULE}),
    "hook": frozenset({OriginKind.EXTERNAL}),
}

_encode = msgspec.json.Encoder().encode

IsConfined = Callable[[ToolContext], bool]


def _build_json_output(body: Any, *, failed: bool = False, trust: Trust = Trust.PRIVATE) -> ToolOutput:
    return ToolOutput(text=_encode(body).decode(), failed=failed, trust=trust)


class _SessionAccess:
    """Decides which sessions the run that makes a call may access. Used within one read of the store."""

    def __init__(self, conn: sa.Connection, context: ToolContext, *, confined: bool) -> None:
        run, here = runs.get(conn, context.run), sessions.get(conn, context.session)
        if run is None or here is None:
            raise SessionRunMissing
        self._conn = conn
        self._agent = context.agent
        self._is_confined = confined
        self._session = here
        self.principal = get_run_principal(conn, run)
        self._agents: dict[str, Agent | None] = {}

    def decide_access(self, session: Session) -> Decision:
        if session.agent not in self._agents:
            self._agents[session.agent] = agents.find(self._conn, session.agent)
        target = self._agents[session.agent]
        if target is None:
            return Decision(DecisionKind.DENY, "it does not exist")
        return may_access_session(
            self._agent,
            target,
            is_confined=self._is_confined,
            is_descendant=is_descendant(self._conn, session, self._session),
            principal_can_see=can_see(self._conn, self.principal, session),
        )

    def list_candidates(self) -> list[Session]:
        """Return the sessions that are checked for access, newest first.

        They are the latest of all sessions, the latest that the run principal can see, and those
        started from this session.
        """
        found = sessions.list_recent(self._conn, limit=SESSIONS_SCANNED_MAX)
        if self.principal is not None and self.principal.address.kind is AddressKind.PERSON:
            found += sessions.list_recent(self._conn, limit=SESSIONS_SCANNED_MAX, seen_by=self.principal)
        found += sessions.list_children(self._conn, self._session.id, limit=SESSIONS_SCANNED_MAX)
        known = {session.id: session for session in found if session.deleted_at is None}
        return sorted(known.values(), key=lambda session: (session.updated_at, session.id), reverse=True)

    def find_session(self, text: str) -> Session:
        session = find_session(self._conn, text, agent=self._agent.name, principal=self.principal)
        if session is None:
            raise _not_found(text)
        return session


def _not_found(text: str) -> ToolFailed:
    missing = SessionNotFound(text, because="it does not exist, or you cannot access it")
    return as_tool_failed(missing, try_this="use sessions_list to see the sessions that you can access")


# --- list ---


class SessionsListArguments(msgspec.Struct, forbid_unknown_fields=True):
    kinds: Annotated[
        list[str], msgspec.Meta(description=f"Only sessions of these kinds: {', '.join(SESSION_KINDS)}")
    ] = []
    limit: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)] = LISTED_DEFAULT
    activeMinutes: Annotated[
        float, msgspec.Meta(ge=0, description="Only sessions changed in the last N minutes; 0: all sessions")
    ] = 0
    messageLimit: Annotated[
        int,
        msgspec.Meta(
            ge=0, le=MESSAGES_PER_SESSION_MAX, description="Number of last messages to return for each session"
        ),
    ] = 0


class SessionsListTool(Struct, frozen=True):
    """The tool `sessions_list`: lists the sessions that a run may read."""

    store: Store
    clock: Clock
    is_confined: IsConfined
    arguments: type[msgspec.Struct] = SessionsListArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="sessions_list",
            description="List the sessions (conversations) that you can access, the most recent first. Returns their "
            "keys; read one with sessions_history.",
            parameters=schema_of(SessionsListArguments),
            effects=frozenset({ToolEffect.READS_PRIVATE}),
            capabilities=frozenset({"sessions.read"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: SessionsListArguments, context: ToolContext) -> ToolOutput:
        wanted: set[OriginKind] = set()
        for kind in arguments.kinds:
            if kind.casefold() not in SESSION_KINDS:
                raise SessionKindUnknown(kind, kinds=SESSION_KINDS)
            wanted |= SESSION_KINDS[kind.casefold()]
        since_ms = 0
        if arguments.activeMinutes:
            since_ms = to_ms(self.clock.now() - timedelta(minutes=arguments.activeMinutes))
        confined = self.is_confined(context)

        def read(conn: sa.Connection) -> tuple[list[dict[str, Any]], Trust]:
            access = _SessionAccess(conn, context, confined=confined)
            listed: list[dict[str, Any]] = []
            trust = Trust.PRIVATE
            for session in access.list_candidates():
                if to_ms(session.updated_at) < since_ms or len(listed) >= arguments.limit:
                    break
                if wanted and session.origin.kind not in wanted:
                    continue
                if not access.decide_access(session).is_allowed:
                    continue
                row, believed = _build_session_row(conn, session, context, messages=arguments.messageLimit)
                listed.append(row)
                trust = believed if believed is Trust.UNTRUSTED else trust
            return listed, trust

        listed, trust = await self.store.scan(read)
        return _build_json_output({"count": len(listed), "sessions": listed}, trust=trust)


def _build_session_row(
    conn: sa.Connection, session: Session, context: ToolContext, *, messages: int
) -> tuple[dict[str, Any], Trust]:
    row: dict[str, Any] = {
        "key": session_key(session),
        "sessionId": session.id,
        "kind": session.origin.kind,
        "agentId": session.agent,
        "label": session.name,
        "updatedAt": session.updated_at,
        "here": session.id == context.session,
    }
    if session.origin.channel:
        row["channel"] = session.origin.channel
    if session.origin.parent is not None:
        row["spawnedBy"] = session.origin.parent
    named = _decide_name_trust(conn, session)
    if not messages:
        return row, named
    found, trust = _read_messages(
        conn, session, limit=messages, with_tools=False, records_max=RECORDS_SCANNED_IN_LIST_MAX
    )
    row["messages"] = [_format_message(conn, record, bytes_max=MESSAGE_BYTES_MAX) for record in found]
    return row, least_trust((named, trust))


def _decide_name_trust(conn: sa.Connection, session: Session) -> Trust:
    """Return the trust level of a session's name.

    A subagent's session is named after its task. If the delegating envelope is untrusted, so is the
    name.
    """
    if session.origin.kind not in SPAWNED_ORIGINS:
        return Trust.PRIVATE
    envelope = envelopes.get(conn, session.origin.key)
    return Trust.UNTRUSTED if envelope is None or envelope.trust is Trust.UNTRUSTED else Trust.PRIVATE


# --- history ---


class SessionsHistoryArguments(msgspec.Struct, forbid_unknown_fields=True):
    sessionKey: Annotated[str, msgspec.Meta(description="Key of the session, as returned by sessions_list")] = ""
    sessionId: Annotated[str, msgspec.Meta(description="Id of the session, instead of sessionKey")] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=HISTORY_MAX, description="Number of last messages to return")] = (
        HISTORY_DEFAULT
    )
    includeTools: Annotated[bool, msgspec.Meta(description="Whether to include tool calls and their results")] = False


class SessionsHistoryTool(Struct, frozen=True):
    """The tool `sessions_history`: reads the messages of a session."""

    store: Store
    is_confined: IsConfined
    arguments: type[msgspec.Struct] = SessionsHistoryArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="sessions_history",
            description="Read the last messages of a session (conversation) that you can access.",
            parameters=schema_of(SessionsHistoryArguments),
            effects=frozenset({ToolEffect.READS_PRIVATE}),
            capabilities=frozenset({"sessions.read"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: SessionsHistoryArguments, context: ToolContext) -> ToolOutput:
        text = arguments.sessionKey or arguments.sessionId
        if not text:
            raise SessionNotNamed("sessionKey", "sessionId")
        confined = self.is_confined(context)

        def read(conn: sa.Connection) -> tuple[dict[str, Any], Trust]:
            access = _SessionAccess(conn, context, confined=confined)
            session = access.find_session(text)
            decision = access.decide_access(session)
            if decision.is_denied:
                raise _build_access_error(decision, text)
            found, trust = _read_messages(
                conn,
                session,
                limit=arguments.limit,
                with_tools=arguments.includeTools,
                records_max=RECORDS_SCANNED_MAX,
            )
            shown, cut = _fit_messages(
                [_format_message(conn, record, bytes_max=HISTORY_BYTES_MAX) for record in found], HISTORY_BYTES_MAX
            )
            body = {"sessionKey": session_key(session), "sessionId": session.id, "messages": shown, "truncated": cut}
            return body, trust

        body, trust = await self.store.scan(read)
        return _build_json_output(body, trust=trust)


def _build_access_error(decision: Decision, text: str) -> ToolFailed:
    """Build the error for a session that may not be accessed.

    If the run principal cannot see the session, it is reported as not found.
    """
    if not decision.setting_key:
        return _not_found(text)
    return SessionForbidden(because=decision.because, setting=decision.setting_key)


def _read_messages(
    conn: sa.Connection, session: Session, *, limit: int, with_tools: bool, records_max: int
) -> tuple[list[Record], Trust]:
    """Return the last messages of the current context, and the trust of that context.

    Tool calls and results are included only if `with_tools` is set.
    """
    first = max(session.context_start_seq, session.record_seq - records_max + 1)
    found, damaged = records.read_range(conn, session.id, first=first, last=session.record_seq)
    # A context too long to scan is untrusted, like a damaged one.
    doubted = damaged or first > session.context_start_seq or least_trust_in(found) is Trust.UNTRUSTED
    wanted = (UserTurn, Reply, ToolResult) if with_tools else (UserTurn, Reply)
    messages = [
        record
        for record in found
        if isinstance(record.body, wanted)
        and (with_tools or not isinstance(record.body, Reply) or record.body.text.strip())
    ]
    return messages[-limit:], Trust.UNTRUSTED if doubted else Trust.PRIVATE


def _format_message(conn: sa.Connection, record: Record, *, bytes_max: int) -> dict[str, Any]:
    line: dict[str, Any] = {"seq": record.seq, "at": record.at}
    match record.body:
        case UserTurn(text=text, envelopes=read):
            # The original text of the envelopes if they still exist, not the form that the model was shown.
            found = [envelope for id_ in read if (envelope := envelopes.get(conn, id_)) is not None]
            line |= {"role": "user", "from": sorted({str(envelope.sender) for envelope in found})}
            text = "\n\n".join(envelope.text for envelope in found) or text
        case Reply(text=text, calls=calls):
            line["role"] = "assistant"
            if calls:
                line["calls"] = [{"tool": call.tool, "arguments": call.arguments} for call in calls]
        case ToolResult(tool=tool, output=text, failed=failed):
            line |= {"role": "tool", "tool": tool, "failed": failed}
        case _:
            text = ""
    line["text"] = truncate_bytes(text, bytes_max)
    return line


def _fit_messages(messages: list[dict[str, Any]], bytes_max: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the newest messages that fit, and whether any were left out.

    If even the newest message is too large, it is truncated.
    """
    kept: list[dict[str, Any]] = []
    left = bytes_max
    for line in reversed(messages):
        size = len(_encode(line))
        if size > left:
            if not kept:
                line.pop("calls", None)
                # JSON escapes a character as at most six bytes.
                kept.append({**line, "text": truncate_bytes(line["text"], left // 8)})
            return kept[::-1], True
        kept.append(line)
        left -= size + 1
    return kept[::-1], False


# --- send ---


class SessionsSendArguments(msgspec.Struct, forbid_unknown_fields=True):
    message: Annotated[str, msgspec.Meta(min_length=1, description="The message to send")]
    sessionKey: Annotated[
        str, msgspec.Meta(description="Key of the session, as returned by sessions_list, or its id")
    ] = ""
    label: Annotated[str, msgspec.Meta(description="Name of the session, instead of sessionKey")] = ""
    agentId: Annotated[str, msgspec.Meta(description="With label: the agent that has the session. Default: you")] = ""
    timeoutSeconds: Annotated[
        float, msgspec.Meta(ge=0, le=WAIT_S_MAX, description="Seconds to wait for the answer; 0 does not wait")
    ] = WAIT_DEFAULT_S


class SessionsSendTool(Struct, frozen=True):
    """The tool `sessions_send`: sends a message to another session.

    If the call waits for the answer, the run is suspended, as with `agents_message`.
    """

    delegate: DelegateWork
    store: Store
    is_confined: IsConfined
    arguments: type[msgspec.Struct] = SessionsSendArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="sessions_send",
            description=(
                "Send a message to another session (conversation) that you can access, and wait for the answer of its "
                "agent. Returns the answer; you and that agent can then exchange a few more messages."
            ),
            parameters=schema_of(SessionsSendArguments),
            effects=frozenset({ToolEffect.SPENDS}),
            capabilities=frozenset({"sessions.write"}),
            is_repeatable=True,
        )
    )

    async def perform(self, arguments: SessionsSendArguments, context: ToolContext) -> ToolOutput:
        confined = self.is_confined(context)
        try:
            session = await self.store.scan(
                partial(self._find_target, arguments=arguments, context=context, confined=confined)
            )
            request = DelegationRequest(
                kind=DelegationKind.SEND,
                run=context.run,
                call=context.call,
                target=session.agent,
                text=arguments.message,
                trust=context.trust,
                session=session.id,
                wait_s=arguments.timeoutSeconds or None,
                own_sessions_only=confined,
            )
            delegation_status = await self.delegate(request)
        except NotAllowed as error:
            return _build_json_output(
                {"status": "forbidden", "error": error.sentence, "because": error.because}, failed=True
            )
        except ToolFailed as error:
            status = "forbidden" if isinstance(error, SessionForbidden) else "error"
            return _build_json_output(
                {"status": status, "error": error.sentence, "because": error.because}, failed=True
            )
        except Invalid as error:
            return _build_json_output(
                {"status": "error", "error": error.sentence, "because": error.because}, failed=True
            )
        except RetinueError as error:
            raise as_tool_failed(error) from error
        if delegation_status.is_pending and delegation_status.delegation.wait_until is not None:
            raise CallPending(delegation_status.delegation.wait_until)
        return _build_send_output(delegation_status, session)

    def _find_target(
        self, conn: sa.Connection, *, arguments: SessionsSendArguments, context: ToolContext, confined: bool
    ) -> Session:
        if bool(arguments.sessionKey) == bool(arguments.label):
            raise SessionNotNamed("sessionKey", "label")
        access = _SessionAccess(conn, context, confined=confined)
        if arguments.sessionKey:
            session = access.find_session(arguments.sessionKey)
        else:
            agent = arguments.agentId.removeprefix("agent:") or context.agent.name
            known = find_by_label(conn, arguments.label, agent=agent)
            if known is None:
                raise _not_found(arguments.label)
            session = known
        if session.id == context.session:
            raise SessionIsCurrent
        decision = access.decide_access(session)
        if decision.is_denied:
            raise _build_access_error(decision, arguments.sessionKey or arguments.label)
        return session


def _build_send_output(delegation_status: DelegationStatus, session: Session) -> ToolOutput:
    delegation, answer = delegation_status.delegation, delegation_status.answer
    body: dict[str, Any] = {
        "sessionKey": session_key(session),
        "sessionId": session.id,
        "runId": delegation.worker_run_id,
    }
    trust = Trust.AGENT if answer is None or answer.trust is not Trust.UNTRUSTED else Trust.UNTRUSTED
    if delegation.state is DelegationState.DONE and answer is not None:
        return _build_json_output(
            {"status": "ok", "reply": truncate_bytes(answer.text, REPLY_BYTES_MAX), **body}, trust=trust
        )
    if not delegation.state.is_open:
        why = answer.text if answer is not None else delegation.because
        status = (
            {"status": "error", "error": why}
            if delegation.state is not DelegationState.DONE
            else _build_delivered_status()
        )
        return _build_json_output({**status, **body}, failed="error" in status, trust=trust)
    if delegation_status.is_timed_out:
        return _build_json_output({"status": "timeout", "note": "You will get the answer as a message.", **body})
    return _build_json_output({"status": "accepted", "queued": delegation_status.is_queued, **body})


def _build_delivered_status() -> dict[str, str]:
    return {"status": "accepted", "note": "The result was already sent as a message."}
