"""Decides whether a session's context is reset before its next run. All functions are pure.

`Session.last_active_ms` is when a session was last active. `counts_as_activity` decides which runs update it:
heartbeats and most scheduled runs do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from retinue.domain.address import Address, AddressKind
from retinue.domain.envelope import EnvelopeKind
from retinue.domain.reset_rules import NO_RESET_RULES, ResetRules, parse_time_of_day
from retinue.domain.session import SPAWNED_ORIGINS, Origin, OriginKind, Session
from retinue.domain.session_keys import connector_names
from retinue.domain.times import format_time, from_ms

# Sessions of a single task, and sessions of schedules, for which the schedule says whether the history is kept.
# They are reset only if the rules name their kind.
_KIND_RULES_ONLY = SPAWNED_ORIGINS | {OriginKind.SCHEDULE, OriginKind.HEARTBEAT}
_CONTINUATION_KINDS = frozenset({EnvelopeKind.ANSWER, EnvelopeKind.NOTICE, EnvelopeKind.DECISION})
_MINUTE_MS = 60_000


class UpcomingReset(NamedTuple):
    """The time of the next reset of a context, and the rule that causes it.

    Activity before this time can delay the reset.
    """

    at: datetime
    because: str


def resolve_reset_rules(
    session: Session,
    own: ResetRules,
    server: ResetRules,
    *,
    by_kind: Mapping[str, ResetRules],
    by_channel: Mapping[str, ResetRules],
) -> ResetRules:
    """Return the reset rules of a session.

    An unset value of the agent's rules (`own`) is taken from the settings. In the settings, rules for
    the connector come first, then those for the chat type, for the kind of session, and for all
    sessions. Sessions of schedules and subagents use the rules for their kind only.
    """
    kind = session.origin.kind
    if kind in _KIND_RULES_ONLY:
        return by_kind.get(kind, NO_RESET_RULES)
    rules = own
    if by_channel and kind is OriginKind.CHAT:
        for connector in connector_names(session.origin.key):
            rules = rules.with_defaults(by_channel.get(connector, NO_RESET_RULES))
    if by_kind:
        if session.chat_type is not None:
            rules = rules.with_defaults(by_kind.get(session.chat_type, NO_RESET_RULES))
        rules = rules.with_defaults(by_kind.get(kind, NO_RESET_RULES))
    return rules.with_defaults(server)


def starts_new_work(kind: EnvelopeKind) -> bool:
    """Whether an envelope of this kind starts new work.

    Results of delegations and late approvals continue the current context.
    """
    return kind not in _CONTINUATION_KINDS


def explain_due_reset(rules: ResetRules, session: Session, *, now_ms: int, zone: ZoneInfo) -> str:
    """Return why the context must be reset now, or an empty string if no rule requires it or the context is empty."""
    if rules == NO_RESET_RULES or session.record_seq <= session.context_start_seq:
        return ""
    now = from_ms(now_ms)
    at = parse_time_of_day(rules.daily_at) if rules.daily_at else None
    if at is not None:
        boundary = _last_time_at(now, at.hour, at.minute, zone)
        if from_ms(session.context_started_ms) < boundary:
            return f"contexts are reset daily at {at:%H:%M} ({format_time(boundary, zone)})"
    if rules.idle_minutes and now_ms - _last_active_ms(session) > rules.idle_minutes * _MINUTE_MS:
        since = format_time(from_ms(_last_active_ms(session)), zone)
        return f"there was no activity for over {rules.idle_minutes:g} minutes, since {since}"
    return ""


def explain_context_limit(rules: ResetRules, length_tokens: int | None) -> str:
    """Return why the context is too long for another run.

    Returns an empty string if it is not too long, or if its length is unknown.
    """
    most = rules.context_tokens_max
    if not most or length_tokens is None or length_tokens <= most:
        return ""
    return f"the context had {length_tokens:,} tokens, and the limit is {most:,} tokens"


def find_next_reset(rules: ResetRules, session: Session, *, now_ms: int, zone: ZoneInfo) -> UpcomingReset | None:
    """Return when this context will be reset next, and by which rule. None if no rule will reset it."""
    if session.record_seq <= session.context_start_seq:
        return None
    now = from_ms(now_ms)
    if because := explain_due_reset(rules, session, now_ms=now_ms, zone=zone):
        return UpcomingReset(now, because)
    found: list[UpcomingReset] = []
    if rules.daily_at and (at := parse_time_of_day(rules.daily_at)) is not None:
        found.append(UpcomingReset(_next_time_at(now, at.hour, at.minute, zone), "daily"))
    if rules.idle_minutes:
        idle_ms = _last_active_ms(session) + round(rules.idle_minutes * _MINUTE_MS)
        found.append(UpcomingReset(from_ms(idle_ms), "idle"))
    return min(found, default=None)


def counts_as_activity(sender: Address, origin: Origin) -> bool:
    """Whether a run that this sender started counts as activity in its session.

    A run for a schedule counts only in the schedule's dedicated session. A heartbeat never counts.
    """
    return sender.kind is not AddressKind.SCHEDULE or origin.kind is OriginKind.SCHEDULE


def _last_active_ms(session: Session) -> int:
    """Return when the session was last active. The start of its context counts as activity."""
    return max(session.context_started_ms, session.last_active_ms)


def _last_time_at(now: datetime, hour: int, minute: int, zone: ZoneInfo) -> datetime:
    """Return the latest moment, up to now, at which the clock in `zone` showed this time."""
    today = now.astimezone(zone)
    moment = _time_on_day(today, hour, minute)
    return moment if moment <= now else _time_on_day(today - timedelta(days=1), hour, minute)


def _next_time_at(now: datetime, hour: int, minute: int, zone: ZoneInfo) -> datetime:
    today = now.astimezone(zone)
    moment = _time_on_day(today, hour, minute)
    return moment if moment > now else _time_on_day(today + timedelta(days=1), hour, minute)


def _time_on_day(day: datetime, hour: int, minute: int) -> datetime:
    """Return the moment of a clock time on a day. There is exactly one per day.

    A time that a clock change skips is moved forward by the skipped amount. If a time occurs twice,
    the first occurrence is used.
    """
    return from_ms(round(day.replace(hour=hour, minute=minute, second=0, microsecond=0, fold=0).timestamp() * 1000))
