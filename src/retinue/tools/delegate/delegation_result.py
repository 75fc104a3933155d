"""Formats the result of a delegation for the model, in one format for all kinds of delegation."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from retinue.domain.delegation import Delegation, DelegationState, NotifyMode
from retinue.domain.delegation_request import DelegationStatus
from retinue.domain.envelope import EnvelopeKind
from retinue.domain.record import Reply
from retinue.domain.storable_text import truncate_bytes
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust, least_trust
from retinue.store.core.connection import Store
from retinue.store.runs import run_trace, runs
from retinue.store.sessions import records, sessions
from retinue.tools.base import ToolOutput

RESPONSE_BYTES_MAX = 40_000
THINKING_BYTES_MAX = 4_000
CALLS_SHOWN_MAX = 50
RECORDS_READ_MAX = 500

_encode = msgspec.json.Encoder().encode


class DelegatedWork(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What the run of a delegation produced.

    The thinking text has the lowest trust of anything in the run's context.
    """

    session_name: str = ""
    tool_call_count: int = 0
    tool_calls: list[dict[str, Any]] = []
    thinking_text: str = ""


def read_delegated_work(conn: sa.Connection, delegation: Delegation) -> DelegatedWork:
    session = sessions.get(conn, delegation.target_session) if delegation.target_session else None
    name = session.name if session is not None else ""
    run = runs.get(conn, delegation.worker_run) if delegation.worker_run else None
    if run is None or session is None:
        return DelegatedWork(session_name=name)
    last = min(session.record_seq, run.first_seq + RECORDS_READ_MAX)
    found, _ = records.read_range(conn, session.id, first=run.first_seq, last=last)
    replies = [record.body for record in found if record.run == run.id and isinstance(record.body, Reply)]
    thoughts = (reply.thinking for reply in replies)
    calls = [{"name": tool, "durationMs": took_ms} for tool, took_ms in run_trace.list_tool_calls(conn, run.id)]
    return DelegatedWork(
        session_name=name,
        tool_call_count=len(calls),
        tool_calls=calls[:CALLS_SHOWN_MAX],
        thinking_text=truncate_bytes("\n\n".join(filter(None, thoughts)), THINKING_BYTES_MAX),
    )


async def build_delegation_output(
    store: Store, delegation_status: DelegationStatus, *, mode: str, wait_s: float, now: datetime
) -> ToolOutput:
    """Return the status and result of a delegation. If the answer is untrusted, so is the output."""
    delegation = delegation_status.delegation
    status = _describe_status(delegation_status, mode)
    body: dict[str, Any] = {
        "mode": mode,
        "status": status,
        "agentId": delegation.target,
        "sessionId": delegation.target_session,
        "created": delegation_status.is_session_new,
        "responseId": delegation.id,
    }
    if delegation.state.is_open:
        body["sessionName"] = (await store.read(lambda conn: read_delegated_work(conn, delegation))).session_name
        body["message"] = _describe_next_step(delegation_status, mode)
        if delegation_status.is_timed_out:
            body["timeoutSeconds"] = wait_s
        return ToolOutput(text=_encode(body).decode(), trust=Trust.PRIVATE)
    done = await store.read(lambda conn: read_delegated_work(conn, delegation))
    answer = delegation_status.answer
    if answer is None or answer.kind is not EnvelopeKind.ANSWER:
        # The thinking text has the trust level of the answer. System text in its place may have a different one.
        done = msgspec.structs.replace(done, thinking_text="")
    body |= msgspec.to_builtins(done)
    began, ended = delegation.created_at, delegation.ended_at or now
    body["durationMs"] = to_ms(ended) - to_ms(began)
    if answer is None:
        body["message"] = (
            "The result was already sent as a message."
            if delegation_status.is_already_delivered
            else delegation.because
        )
        return ToolOutput(text=_encode(body).decode(), trust=Trust.PRIVATE)
    response = truncate_bytes(answer.text, RESPONSE_BYTES_MAX)
    body["response" if status == "complete" else "message"] = response
    body["truncated"] = len(response) < len(answer.text)
    trust = least_trust((Trust.AGENT, answer.trust)) if answer.trust is Trust.UNTRUSTED else Trust.AGENT
    return ToolOutput(
        text=_encode(body).decode(), trust=trust, failed=status == "failed", attachments=answer.attachments
    )


def _describe_status(status: DelegationStatus, mode: str) -> str:
    if status.delegation.state is DelegationState.DONE:
        return "complete"
    if not status.delegation.state.is_open:
        return "failed"
    if status.is_timed_out:
        return "timeout"
    return "queued" if status.is_queued and mode == "async" else "started"


def _describe_next_step(status: DelegationStatus, mode: str) -> str:
    if status.is_timed_out:
        return "It is still running. You will get the answer as a message."
    if mode == "sync":
        return "Other messages arrived meanwhile, so this call does not wait. You will get the answer as a message."
    woken = status.delegation.notify is NotifyMode.WAKE
    return "You will get the answer as a message." if woken else "The answer will not start a run."
