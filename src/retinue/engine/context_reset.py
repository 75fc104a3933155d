"""Reset a session's context, by rule or on request.

A reset never stops a run. It is found due when the next run starts, and its mark is written in that
commit. A pending reset is stored in the session's row, so a restart does not lose it.
"""

from __future__ import annotations

from zoneinfo import ZoneInfo

from retinue.config.sessions import PLAIN, SessionSettings
from retinue.domain.agent import Agent
from retinue.domain.envelope import Envelope, Kind
from retinue.domain.event import NewsKind
from retinue.domain.reset_rules import NO_RULES, ResetRules, with_reason
from retinue.domain.session import Session, Wakefulness
from retinue.engine.run_finish import mark_reset
from retinue.policy.limits.reset_policy import begins_something, rules_for, why_afresh, why_too_long
from retinue.store.core.transaction import Page
from retinue.store.runs import runs
from retinue.store.sessions import sessions

_SILENT = PLAIN.reset


def rules_in(session: Session, agent: Agent, settings: SessionSettings) -> ResetRules:
    """Return the reset rules of a session. Called for every run, so the case without rules is fast."""
    house = settings.reset
    if (house is _SILENT or house == _SILENT) and agent.reset == NO_RULES:
        return NO_RULES
    return rules_for(session, agent.reset, house, by_kind=house.by_kind, by_channel=house.by_channel)


def as_due(
    page: Page, session: Session, agent: Agent, first: Envelope, *, settings: SessionSettings, zone: ZoneInfo
) -> Session:
    """Reset the session's context if that is due, before a run over this envelope. Returns the session."""
    because = session.refresh or ""
    if not because:
        rules = rules_in(session, agent, settings)
        if rules is NO_RULES or not begins_something(first.kind):
            return session
        because = why_afresh(rules, session, now_ms=page.at_ms, zone=zone)
    if not because or first.kind is Kind.DECISION:  # its calls belong to the existing context
        return session
    mark_reset(page, session.id, because=because)
    return sessions.get(page.conn, session.id) or session


def note_length(
    page: Page, session: Session, agent: Agent, length_tokens: int | None, settings: SessionSettings
) -> None:
    """Request a reset for the next run if the context is now longer than the rules allow."""
    if length_tokens is not None and (because := why_too_long(rules_in(session, agent, settings), length_tokens)):
        _wait_for_next(page, session, because)


def refresh(page: Page, session: Session, *, because: str) -> bool:
    """Reset the context now, or after the active or suspended run. Returns whether it was done now."""
    idle = session.wakefulness is Wakefulness.SLEEPING and runs.open_in(page.conn, session.id) is None
    if idle:
        mark_reset(page, session.id, because=because)
    else:
        _wait_for_next(page, session, because)
    return idle


def _wait_for_next(page: Page, session: Session, because: str) -> None:
    now = sessions.get(page.conn, session.id) or session  # another request may have been stored meanwhile
    reasons = with_reason(now.refresh or "", because)
    if reasons != now.refresh:
        sessions.ask_refresh(page.conn, session.id, reasons)
        page.tell(NewsKind.SESSION_CHANGED, session=session.id, refresh=reasons)
