"""`sessions_list`, `sessions_history` and `sessions_send`: read and write other sessions.

Access depends on the agent's visibility, on whether its session is sandboxed, and on what the run
principal can see. A session that the run principal cannot see is reported as not found.
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
from retinue.domain.decision import Decision, Verdict
from retinue.domain.delegation import DelegationKind, DelegationState
from retinue.domain.delegation_request import Handed, Handing, HandOver
from retinue.domain.errors import Invalid, NotAllowed, RetinueError
from retinue.domain.ports import Clock
from retinue.domain.record import Record, Reply, UserTurn, least_believed
from retinue.domain.session import SENT_OUT, OriginKind, Session
from retinue.domain.storable_text import clipped_bytes
from retinue.domain.times import to_ms
from retinue.domain.tool import Effect, ToolResult, ToolSpec
from retinue.domain.trust import Trust, least
from retinue.policy.access.session_access import may_reach
from retinue.store.agents import agents
from retinue.store.core.connection import Store
from retinue.store.envelopes import envelopes
from retinue.store.runs import runs
from retinue.store.runs.run_principal import came_of, sees, whose
from retinue.store.sessions import records, sessions
from retinue.store.sessions.session_names import key_of, labelled, named
from retinue.tools.base import Output, Pending, Scene, ToolFailed, as_tool_failed, schema_of

LISTED_DEFAULT, LISTED_MAX = 20, 50
LOOKED_AT_MAX = 500  # sessions checked for access
MESSAGES_WITH_EACH_MAX = 20
MESSAGE_BYTES_MAX = 4_096  # of one message in the list
HISTORY_DEFAULT, HISTORY_MAX = 50, 500  # messages
LINES_LOOKED_AT_MAX = 4 * HISTORY_MAX
LINES_LOOKED_AT_IN_LIST_MAX = 200  # per session
HISTORY_BYTES_MAX = 80 * 1024
REPLY_BYTES_MAX = 40_000
WAIT_S, WAIT_S_MAX = 30.0, 3_600.0

# Session kinds, including the names that other agent systems use.
KINDS: dict[str, frozenset[OriginKind]] = {
    **{kind.value: frozenset({kind}) for kind in OriginKind},
    "main": frozenset({OriginKind.TERMINAL, OriginKind.WEB}),
    "group": frozenset({OriginKind.CHAT}),
    "cron": frozenset({OriginKind.SCHEDULE}),
    "hook": frozenset({OriginKind.EXTERNAL}),
}

_encode = msgspec.json.Encoder().encode

Confined = Callable[[Scene], bool]


def _said(body: Any, *, failed: bool = False, trust: Trust = Trust.PRIVATE) -> Output:
    return Output(text=_encode(body).decode(), failed=failed, trust=trust)


class _Look:
    """Which sessions the run of one call may access, from one read of the store."""

    def __init__(self, conn: sa.Connection, scene: Scene, *, confined: bool) -> None:
        run, here = runs.get(conn, scene.run), sessions.get(conn, scene.session)
        if run is None or here is None:
            raise ToolFailed(
                "this is part of no conversation",
                because="what may be looked into follows from whom a run works for, and there is no run",
                try_this="let the agent do it in a conversation",
                code="session.no-run",
            )
        self._conn = conn
        self._agent = scene.agent
        self._confined = confined
        self._here = here
        self.who = whose(conn, run)
        self._staff: dict[str, Agent | None] = {}

    def at(self, other: Session) -> Decision:
        if other.agent not in self._staff:
            self._staff[other.agent] = agents.find(self._conn, other.agent)
        target = self._staff[other.agent]
        if target is None:
            return Decision(Verdict.DENY, "it is not there")
        return may_reach(
            self._agent,
            target,
            confined=self._confined,
            came_of_it=came_of(self._conn, other, self._here),
            behalf_sees=sees(self._conn, self.who, other),
        )

    def around(self) -> list[Session]:
        """Return candidate sessions, newest first.

        They are the latest of all sessions, the latest the run principal sees, and those started
        from this session.
        """
        found = sessions.recent(self._conn, limit=LOOKED_AT_MAX)
        if self.who is not None and self.who.address.kind is AddressKind.PERSON:
            found += sessions.recent(self._conn, limit=LOOKED_AT_MAX, seen_by=self.who)
        found += sessions.children(self._conn, self._here.id, limit=LOOKED_AT_MAX)
        known = {session.id: session for session in found if session.deleted_at is None}
        return sorted(known.values(), key=lambda session: (session.updated_at, session.id), reverse=True)

    def find(self, text: str) -> Session:
        session = named(self._conn, text, agent=self._agent.name, whose=self.who)
        if session is None:
            raise _not_found(text)
        return session


def _not_found(text: str) -> ToolFailed:
    return ToolFailed(
        f"there is no session '{text[:80]}'",
        because="none of that name is here for you",
        try_this="sessions_list says which are",
        code="session.not-found",
    )


# --- list ---


class ListArguments(msgspec.Struct, forbid_unknown_fields=True):
    kinds: Annotated[list[str], msgspec.Meta(description=f"Only these sorts: {', '.join(KINDS)}")] = []
    limit: Annotated[int, msgspec.Meta(ge=1, le=LISTED_MAX)] = LISTED_DEFAULT
    activeMinutes: Annotated[
        float, msgspec.Meta(ge=0, description="Only those with something new in so many minutes; 0 is all")
    ] = 0
    messageLimit: Annotated[
        int, msgspec.Meta(ge=0, le=MESSAGES_WITH_EACH_MAX, description="How many of the last messages to show of each")
    ] = 0


class SessionsList(Struct, frozen=True):
    """Lists the sessions that a run may read."""

    store: Store
    clock: Clock
    confined: Confined
    arguments: type[msgspec.Struct] = ListArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="sessions_list",
            description="The conversations that you may look into, the last one first.",
            parameters=schema_of(ListArguments),
            effects=frozenset({Effect.READS_PRIVATE}),
            capabilities=frozenset({"sessions.read"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: ListArguments, scene: Scene) -> Output:
        wanted: set[OriginKind] = set()
        for kind in arguments.kinds:
            if kind.casefold() not in KINDS:
                raise ToolFailed(
                    f"there is no sort of session called '{kind[:40]}'",
                    because=f"there are: {', '.join(KINDS)}",
                    try_this="leave `kinds` out for all of them",
                    code="session.kind-unknown",
                )
            wanted |= KINDS[kind.casefold()]
        since_ms = 0
        if arguments.activeMinutes:
            since_ms = to_ms(self.clock.now() - timedelta(minutes=arguments.activeMinutes))
        confined = self.confined(scene)

        def read(conn: sa.Connection) -> tuple[list[dict[str, Any]], Trust]:
            look = _Look(conn, scene, confined=confined)
            listed: list[dict[str, Any]] = []
            trust = Trust.PRIVATE
            for session in look.around():
                if to_ms(session.updated_at) < since_ms or len(listed) >= arguments.limit:
                    break
                if wanted and session.origin.kind not in wanted:
                    continue
                if not look.at(session).allowed:
                    continue
                row, believed = _row(conn, session, scene, messages=arguments.messageLimit)
                listed.append(row)
                trust = believed if believed is Trust.UNTRUSTED else trust
            return listed, trust

        listed, trust = await self.store.scan(read)
        return _said({"count": len(listed), "sessions": listed}, trust=trust)


def _row(conn: sa.Connection, session: Session, scene: Scene, *, messages: int) -> tuple[dict[str, Any], Trust]:
    row: dict[str, Any] = {
        "key": key_of(session),
        "sessionId": session.id,
        "kind": session.origin.kind,
        "agentId": session.agent,
        "label": session.name,
        "updatedAt": session.updated_at,
        "here": session.id == scene.session,
    }
    if session.origin.channel:
        row["channel"] = session.origin.channel
    if session.origin.parent is not None:
        row["spawnedBy"] = session.origin.parent
    named = _trust_of_name(conn, session)
    if not messages:
        return row, named
    found, trust = _lines(conn, session, limit=messages, tools=False, looked_at_max=LINES_LOOKED_AT_IN_LIST_MAX)
    row["messages"] = [_line(conn, record, bytes_max=MESSAGE_BYTES_MAX) for record in found]
    return row, least((named, trust))


def _trust_of_name(conn: sa.Connection, session: Session) -> Trust:
    """A delegated session is named after its task, so its name has the trust of the delegating
    envelope.
    """
    if session.origin.kind not in SENT_OUT:
        return Trust.PRIVATE
    letter = envelopes.get(conn, session.origin.key)
    return Trust.UNTRUSTED if letter is None or letter.trust is Trust.UNTRUSTED else Trust.PRIVATE


# --- history ---


class HistoryArguments(msgspec.Struct, forbid_unknown_fields=True):
    sessionKey: Annotated[str, msgspec.Meta(description="As sessions_list has it in `key`")] = ""
    sessionId: Annotated[str, msgspec.Meta(description="Or its id")] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=HISTORY_MAX, description="How many of the last lines")] = (
        HISTORY_DEFAULT
    )
    includeTools: Annotated[bool, msgspec.Meta(description="With the calls that were made, and what came of them")] = (
        False
    )


class SessionsHistory(Struct, frozen=True):
    """Reads the messages of a session."""

    store: Store
    confined: Confined
    arguments: type[msgspec.Struct] = HistoryArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="sessions_history",
            description="What was said in a conversation that you may look into.",
            parameters=schema_of(HistoryArguments),
            effects=frozenset({Effect.READS_PRIVATE}),
            capabilities=frozenset({"sessions.read"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: HistoryArguments, scene: Scene) -> Output:
        text = arguments.sessionKey or arguments.sessionId
        if not text:
            raise ToolFailed(
                "this names no session",
                because="either sessionKey or sessionId is needed",
                try_this="sessions_list says which there are",
                code="session.not-named",
            )
        confined = self.confined(scene)

        def read(conn: sa.Connection) -> tuple[dict[str, Any], Trust]:
            look = _Look(conn, scene, confined=confined)
            session = look.find(text)
            decision = look.at(session)
            if decision.denied:
                raise _refused(decision, text)
            found, trust = _lines(
                conn,
                session,
                limit=arguments.limit,
                tools=arguments.includeTools,
                looked_at_max=LINES_LOOKED_AT_MAX,
            )
            shown, cut = _within(
                [_line(conn, record, bytes_max=HISTORY_BYTES_MAX) for record in found], HISTORY_BYTES_MAX
            )
            body = {"sessionKey": key_of(session), "sessionId": session.id, "messages": shown, "truncated": cut}
            return body, trust

        body, trust = await self.store.scan(read)
        return _said(body, trust=trust)


def _refused(decision: Decision, text: str) -> ToolFailed:
    """Report a session that the run principal cannot see as not found."""
    if not decision.key:
        return _not_found(text)
    return ToolFailed(
        "that session is not yours to look into",
        because=decision.because,
        try_this=f"ask the owner to change `{decision.key}`",
        code="session.forbidden",
    )


def _lines(
    conn: sa.Connection, session: Session, *, limit: int, tools: bool, looked_at_max: int
) -> tuple[list[Record], Trust]:
    """Return the last messages of the current context, and the trust of that context.

    Tool calls and results are included only if `with_tools` is set.
    """
    first = max(session.context_from, session.record_seq - looked_at_max + 1)
    found, damaged = records.read(conn, session.id, first=first, last=session.record_seq)
    # A context too long to scan is untrusted, like a damaged one.
    doubted = damaged or first > session.context_from or least_believed(found) is Trust.UNTRUSTED
    wanted = (UserTurn, Reply, ToolResult) if tools else (UserTurn, Reply)
    said = [
        record
        for record in found
        if isinstance(record.body, wanted) and (tools or not isinstance(record.body, Reply) or record.body.text.strip())
    ]
    return said[-limit:], Trust.UNTRUSTED if doubted else Trust.PRIVATE


def _line(conn: sa.Connection, record: Record, *, bytes_max: int) -> dict[str, Any]:
    line: dict[str, Any] = {"seq": record.seq, "at": record.at}
    match record.body:
        case UserTurn(text=text, envelopes=read):
            # The original text of the envelopes if they still exist, not the form that the model was shown.
            mail = [found for id_ in read if (found := envelopes.get(conn, id_)) is not None]
            line |= {"role": "user", "from": sorted({str(letter.sender) for letter in mail})}
            text = "\n\n".join(letter.text for letter in mail) or text
        case Reply(text=text, calls=calls):
            line["role"] = "assistant"
            if calls:
                line["calls"] = [{"tool": call.tool, "arguments": call.arguments} for call in calls]
        case ToolResult(tool=tool, output=text, failed=failed):
            line |= {"role": "tool", "tool": tool, "failed": failed}
        case _:
            text = ""
    line["text"] = clipped_bytes(text, bytes_max)
    return line


def _within(lines: list[dict[str, Any]], bytes_max: int) -> tuple[list[dict[str, Any]], bool]:
    """Return the newest messages that fit, and whether any were left out. A single oversized one is
    cut.
    """
    kept: list[dict[str, Any]] = []
    left = bytes_max
    for line in reversed(lines):
        size = len(_encode(line))
        if size > left:
            if not kept:
                line.pop("calls", None)
                # JSON escapes a character as at most six bytes.
                kept.append({**line, "text": clipped_bytes(line["text"], left // 8)})
            return kept[::-1], True
        kept.append(line)
        left -= size + 1
    return kept[::-1], False


# --- send ---


class SendArguments(msgspec.Struct, forbid_unknown_fields=True):
    message: Annotated[str, msgspec.Meta(min_length=1)]
    sessionKey: Annotated[str, msgspec.Meta(description="As sessions_list has it in `key`, or an id")] = ""
    label: Annotated[str, msgspec.Meta(description="Or the name of the session")] = ""
    agentId: Annotated[str, msgspec.Meta(description="Whose session bears that name; yours if left out")] = ""
    timeoutSeconds: Annotated[
        float, msgspec.Meta(ge=0, le=WAIT_S_MAX, description="How long to wait for the answer; 0 does not wait")
    ] = WAIT_S


class SessionsSend(Struct, frozen=True):
    """Sends a message to another session and waits like `agents_message`: the run is suspended."""

    hand_over: HandOver
    store: Store
    confined: Confined
    arguments: type[msgspec.Struct] = SendArguments
    spec: ToolSpec = field(
        default_factory=lambda: ToolSpec(
            name="sessions_send",
            description=(
                "Write into another conversation that you may look into, and wait for what its agent answers. The two "
                "of you may then answer each other for a few turns."
            ),
            parameters=schema_of(SendArguments),
            effects=frozenset({Effect.SPENDS}),
            capabilities=frozenset({"sessions.write"}),
            repeatable=True,
        )
    )

    async def perform(self, arguments: SendArguments, scene: Scene) -> Output:
        confined = self.confined(scene)
        try:
            session = await self.store.scan(partial(self._target, arguments=arguments, scene=scene, confined=confined))
            handing = Handing(
                kind=DelegationKind.SEND,
                run=scene.run,
                call=scene.call,
                target=session.agent,
                text=arguments.message,
                trust=scene.trust,
                session=session.id,
                wait_s=arguments.timeoutSeconds or None,
                confined=confined,
            )
            handed = await self.hand_over(handing)
        except NotAllowed as error:
            return _said({"status": "forbidden", "error": error.sentence, "because": error.because}, failed=True)
        except ToolFailed as error:
            status = "forbidden" if error.code == "session.forbidden" else "error"
            return _said({"status": status, "error": error.sentence, "because": error.because}, failed=True)
        except Invalid as error:
            return _said({"status": "error", "error": error.sentence, "because": error.because}, failed=True)
        except RetinueError as error:
            raise as_tool_failed(error) from error
        if handed.pending and handed.delegation.wait_until is not None:
            raise Pending(handed.delegation.wait_until)
        return _told(handed, session)

    def _target(self, conn: sa.Connection, *, arguments: SendArguments, scene: Scene, confined: bool) -> Session:
        if bool(arguments.sessionKey) == bool(arguments.label):
            raise Invalid(
                "this names no session, or two",
                because="either sessionKey or label is needed",
                try_this="sessions_list says which there are",
                code="session.not-named",
            )
        look = _Look(conn, scene, confined=confined)
        if arguments.sessionKey:
            session = look.find(arguments.sessionKey)
        else:
            agent = arguments.agentId.removeprefix("agent:") or scene.agent.name
            known = labelled(conn, arguments.label, agent=agent)
            if known is None:
                raise _not_found(arguments.label)
            session = known
        if session.id == scene.session:
            raise Invalid(
                "this is the conversation that you are in",
                because="nobody answers themselves",
                try_this="say it, or name another",
                code="session.same",
            )
        decision = look.at(session)
        if decision.denied:
            raise _refused(decision, arguments.sessionKey or arguments.label)
        return session


def _told(handed: Handed, session: Session) -> Output:
    delegation, answer = handed.delegation, handed.answer
    body: dict[str, Any] = {"sessionKey": key_of(session), "sessionId": session.id, "runId": delegation.run_id}
    trust = Trust.AGENT if answer is None or answer.trust is not Trust.UNTRUSTED else Trust.UNTRUSTED
    if delegation.state is DelegationState.DONE and answer is not None:
        return _said({"status": "ok", "reply": clipped_bytes(answer.text, REPLY_BYTES_MAX), **body}, trust=trust)
    if not delegation.state.open:
        why = answer.text if answer is not None else delegation.because
        status = {"status": "error", "error": why} if delegation.state is not DelegationState.DONE else _as_mail()
        return _said({**status, **body}, failed="error" in status, trust=trust)
    if handed.late:
        return _said({"status": "timeout", "note": "The answer will come as a message.", **body})
    return _said({"status": "accepted", "queued": handed.queued, **body})


def _as_mail() -> dict[str, str]:
    return {"status": "accepted", "note": "What came of it was told already, as a message."}
