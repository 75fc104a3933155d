"""The result of a delegation as a model reads it, in one format for all kinds of delegation."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.delegation import Delegation, DelegationState, Notify
from retinue.domain.delegation_request import Handed
from retinue.domain.envelope import Kind
from retinue.domain.record import Reply
from retinue.domain.storable_text import clipped_bytes
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust, least
from retinue.store.core.connection import Store
from retinue.store.runs import run_trace, runs
from retinue.store.sessions import records, sessions
from retinue.tools.base import Output

RESPONSE_BYTES_MAX = 40_000
THINKING_BYTES_MAX = 4_000
CALLS_SHOWN_MAX = 50
RECORDS_READ_MAX = 500

_encode = msgspec.json.Encoder().encode


class Worked(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The work of the delegated run. Its thinking text has the trust of everything the run knew."""

    session_name: str = ""
    tool_call_count: int = 0
    tool_calls: list[dict[str, Any]] = []
    thinking_text: str = ""


def worked(conn: sa.Connection, delegation: Delegation) -> Worked:
    session = sessions.get(conn, delegation.to) if delegation.to else None
    name = session.name if session is not None else ""
    run = runs.get(conn, delegation.worked_by) if delegation.worked_by else None
    if run is None or session is None:
        return Worked(session_name=name)
    last = min(session.record_seq, run.first_seq + RECORDS_READ_MAX)
    found, _ = records.read(conn, session.id, first=run.first_seq, last=last)
    replies = [record.body for record in found if record.run == run.id and isinstance(record.body, Reply)]
    thoughts = (reply.thinking for reply in replies)
    calls = [{"name": tool, "durationMs": took_ms} for tool, took_ms in run_trace.calls_made(conn, run.id)]
    return Worked(
        session_name=name,
        tool_call_count=len(calls),
        tool_calls=calls[:CALLS_SHOWN_MAX],
        thinking_text=clipped_bytes("\n\n".join(filter(None, thoughts)), THINKING_BYTES_MAX),
    )


async def told(store: Store, handed: Handed, *, mode: str, wait_s: float, now: datetime) -> Output:
    """Return the status and result of a delegation. The output has the trust of the answer."""
    delegation = handed.delegation
    status = _status(handed, mode)
    body: dict[str, Any] = {
        "mode": mode,
        "status": status,
        "agentId": delegation.target,
        "sessionId": delegation.to,
        "created": handed.created,
        "responseId": delegation.id,
    }
    if delegation.state.open:
        body["sessionName"] = (await store.read(lambda conn: worked(conn, delegation))).session_name
        body["message"] = _next(handed, mode)
        if handed.late:
            body["timeoutSeconds"] = wait_s
        return Output(text=_encode(body).decode(), trust=Trust.PRIVATE)
    done = await store.read(lambda conn: worked(conn, delegation))
    answer = handed.answer
    if answer is None or answer.kind is not Kind.ANSWER:
        # The thinking text has the trust of the answer. A system text in its place has another trust.
        done = msgspec.structs.replace(done, thinking_text="")
    body |= msgspec.to_builtins(done)
    began, ended = delegation.created_at, delegation.ended_at or now
    body["durationMs"] = to_ms(ended) - to_ms(began)
    if answer is None:
        body["message"] = "What came of it was told already, as mail." if handed.elsewhere else delegation.because
        return Output(text=_encode(body).decode(), trust=Trust.PRIVATE)
    response = clipped_bytes(answer.text, RESPONSE_BYTES_MAX)
    body["response" if status == "complete" else "message"] = response
    body["truncated"] = len(response) < len(answer.text)
    trust = least((Trust.AGENT, answer.trust)) if answer.trust is Trust.UNTRUSTED else Trust.AGENT
    return Output(text=_encode(body).decode(), trust=trust, failed=status == "failed", attachments=answer.attachments)


def _status(handed: Handed, mode: str) -> str:
    if handed.delegation.state is DelegationState.DONE:
        return "complete"
    if not handed.delegation.state.open:
        return "failed"
    if handed.late:
        return "timeout"
    return "queued" if handed.queued and mode == "async" else "started"


def _next(handed: Handed, mode: str) -> str:
    if handed.late:
        return "It is still being worked on, and is left to it. The answer will come as a message."
    if mode == "sync":
        return "Other mail came in meanwhile, so nobody waits for it here. The answer will come as a message."
    woken = handed.delegation.notify is Notify.WAKE
    return "The answer will come as a message." if woken else "You will not be woken by the answer."
