"""Resets a session's context, by rule or on request.

A reset by a rule never stops a run. The rules are checked when the next run starts, and the reset is written in
that run's first commit. A reset that waits for the end of a run is stored in the session's row, so a
restart does not lose it.
"""

from __future__ import annotations

from zoneinfo import ZoneInfo

from retinue.config.sessions import BUILT_IN_SESSION_SETTINGS, SessionSettings
from retinue.domain.agent import Agent
from retinue.domain.envelope import Envelope, EnvelopeKind
from retinue.domain.event import EventKind
from retinue.domain.record import ContextStart, RecordKind
from retinue.domain.reset_rules import NO_RESET_RULES, ResetRules, add_reason
from retinue.domain.session import Session, SessionActivity
from retinue.engine.run_context import RecordAppender
from retinue.policy.limits.reset_policy import (
    explain_context_limit,
    explain_due_reset,
    resolve_reset_rules,
    starts_new_work,
)
from retinue.store.core.transaction import Transaction
from retinue.store.runs import runs
from retinue.store.sessions import records, sessions

_NO_RESET_RULES = BUILT_IN_SESSION_SETTINGS.reset


def reset_rules_of(session: Session, agent: Agent, settings: SessionSettings) -> ResetRules:
    """Return the reset rules of a session. This is called for every run, so it must be fast if there are no rules."""
    server_rules = settings.reset
    if (server_rules is _NO_RESET_RULES or server_rules == _NO_RESET_RULES) and agent.reset == NO_RESET_RULES:
        return NO_RESET_RULES
    return resolve_reset_rules(
        session, agent.reset, server_rules, by_kind=server_rules.by_kind, by_channel=server_rules.by_channel
    )


def reset_if_due(
    tx: Transaction, session: Session, agent: Agent, first: Envelope, *, settings: SessionSettings, zone: ZoneInfo
) -> Session:
    """Reset the session's context if a reset is due, and return the session.

    Called before a run that works on the envelope `first`.
    """
    because = session.reset_because or ""
    if not because:
        rules = reset_rules_of(session, agent, settings)
        if rules is NO_RESET_RULES or not starts_new_work(first.kind):
            return session
        because = explain_due_reset(rules, session, now_ms=tx.at_ms, zone=zone)
    if not because or first.kind is EnvelopeKind.DECISION:  # its calls belong to the existing context
        return session
    mark_reset(tx, session.id, because=because)
    return sessions.get(tx.conn, session.id) or session


def request_reset_if_too_long(
    tx: Transaction, session: Session, agent: Agent, length_tokens: int | None, settings: SessionSettings
) -> None:
    """Request a reset for the next run if the context is now longer than the rules allow."""
    if length_tokens is not None and (
        because := explain_context_limit(reset_rules_of(session, agent, settings), length_tokens)
    ):
        _reset_with_next_run(tx, session, because)


def request_reset(tx: Transaction, session: Session, *, because: str) -> bool:
    """Reset the context now. If a run is active or suspended, reset it when the next run starts.

    Returns whether the context was reset now.
    """
    idle = session.activity is SessionActivity.SLEEPING and runs.get_open(tx.conn, session.id) is None
    if idle:
        mark_reset(tx, session.id, because=because)
    else:
        _reset_with_next_run(tx, session, because)
    return idle


def _reset_with_next_run(tx: Transaction, session: Session, because: str) -> None:
    now = sessions.get(tx.conn, session.id) or session  # another request may have been stored meanwhile
    reasons = add_reason(now.reset_because or "", because)
    if reasons != now.reset_because:
        sessions.request_reset(tx.conn, session.id, reasons)
        tx.emit(EventKind.SESSION_CHANGED, session=session.id, pending_reset=reasons)


def mark_reset(tx: Transaction, session_id: str, message: str = "", *, because: str) -> None:
    """Reset the context: append a record that starts a new context, with `message` as its first text.

    Earlier records stay in the history.
    """
    session = sessions.get(tx.conn, session_id)
    if session is None:
        return
    append = RecordAppender(session, tx)
    mark = append.add(ContextStart(text=message, because=because), kind=RecordKind.RESET)
    records.add(tx.conn, append.records)
    sessions.reset_context(tx.conn, session_id, mark.seq, at_ms=tx.at_ms)
    tx.emit(
        EventKind.SESSION_RESET,
        session=session_id,
        record_seq=mark.seq,
        revision=session.revision + 1,
        because=because,
    )
