"""Decides whether a heartbeat occurrence runs now, who gets its reply, and what the reply says."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.domain import address, heartbeat
from retinue.domain.address import Address
from retinue.domain.agent import Agent
from retinue.domain.envelope import ENVELOPE_TEXT_BYTES_MAX, Envelope, EnvelopeDraft, EnvelopeKind
from retinue.domain.event import EventKind
from retinue.domain.heartbeat import OK_TOKEN, REPEAT_SUPPRESSED_S, Heartbeat
from retinue.domain.ids import SessionId
from retinue.domain.record import UserTurn
from retinue.domain.run import Run
from retinue.domain.schedule import GateResult, Occurrence, OccurrenceCause, Schedule, ScheduleSession
from retinue.domain.session import OriginKind, Session
from retinue.domain.session_keys import ChatType
from retinue.domain.storable_text import truncate_bytes
from retinue.domain.times import from_ms
from retinue.intake.routing import NO_ANSWER, OWNER, get_session_address
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.runs import runs
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import StoredSchedule
from retinue.store.sessions import records, sessions

SESSIONS_READ_MAX = 50
RECORDS_READ_MAX = 50
NOTHING_TO_REPORT = "nothing needs attention"


async def no_checklist_reader(
    schedule: Schedule, agent: Agent, session: SessionId, *, wanted: tuple[str, ...], forced: bool
) -> GateResult:
    """Refuse every heartbeat. The default for a scheduler without a checklist reader."""
    return GateResult(is_open=False, because="this server cannot read its checklist")


def skip_reason(tx: Transaction, stored: StoredSchedule, occurrence: Occurrence) -> str:
    """Return why a heartbeat occurrence is skipped before its checklist is read, or an empty string."""
    beat = stored.schedule.heartbeat
    if beat is None or occurrence.cause is not OccurrenceCause.CLOCK:
        return ""
    zone = ZoneInfo(beat.active_zone) if beat.active_zone else stored.zone_info
    if not heartbeat.is_active(beat, from_ms(tx.at_ms), zone):
        hours = f"{beat.active_start or '00:00'} to {beat.active_end or '24:00'}"
        return f"quiet: it is active from {hours} ({zone.key})"
    to = _delivery_address(tx.conn, stored.schedule)
    if beat.visibility_at(to).is_hidden:
        return f"unseen: no result would be shown to {to or 'anyone'}"
    return ""


def is_session_busy(conn: sa.Connection, session: str, now_ms: int) -> bool:
    """Whether the session has an open run or due envelopes."""
    return runs.get_open(conn, session) is not None or bool(envelopes.list_due(conn, session, now_ms, limit=1))


def _delivery_address(conn: sa.Connection, schedule: Schedule) -> Address | None:
    """Return the address for a heartbeat's reply, or None if the reply is not sent.

    This is the configured address, or by default the address where the owner last talked to the
    agent.
    """
    if schedule.deliver:
        return None if schedule.deliver == NO_ANSWER else address.parse_address(schedule.deliver)
    return find_owner_address(conn, schedule.to.name)


def find_owner_address(conn: sa.Connection, agent: str) -> Address:
    """Return where the owner last talked to the agent in private. Heartbeat replies must not go to a shared channel."""
    for session in sessions.list_latest_foreground(conn, limit=SESSIONS_READ_MAX):
        if session.agent == agent and _is_private_with_owner(conn, session):
            return get_session_address(session.origin)
    return OWNER


def _is_private_with_owner(conn: sa.Connection, session: Session) -> bool:
    if session.origin.kind is not OriginKind.CHAT:
        return session.origin.belongs_to(str(OWNER))
    if session.chat_type is not ChatType.DIRECT:
        return False
    first = max(1, session.record_seq - RECORDS_READ_MAX)
    read, _ = records.read_range(conn, session.id, first=first, last=session.record_seq)
    turn = next((each.body for each in reversed(read) if isinstance(each.body, UserTurn) and each.body.envelopes), None)
    last = envelopes.get(conn, turn.envelopes[-1]) if turn is not None else None
    return last is not None and last.context.from_boss


# --- replies ---


class HeartbeatReply(Struct, frozen=True):
    """The reply that a heartbeat run sends, or None, and the stored reason why it is sent or not."""

    answer: EnvelopeDraft | None
    because: str = ""


def find_heartbeat_schedule(conn: sa.Connection, run: Run, envelopes_held: Sequence[Envelope]) -> Schedule | None:
    """Return the heartbeat schedule that started a run.

    Returns None if the run also has envelopes from other senders, except decisions about approvals.
    """
    if not all(each.sender == run.sender or each.kind is EnvelopeKind.DECISION for each in envelopes_held):
        return None
    kept = schedules.get(conn, run.sender.name)
    return kept.schedule if kept is not None and kept.schedule.heartbeat is not None else None


def build_heartbeat_reply(
    tx: Transaction, run: Run, schedule: Schedule, answer: EnvelopeDraft | None, *, text: str, remarks: Sequence[str]
) -> HeartbeatReply:
    """Return the reply that a heartbeat run sends, if any, and the reason why it is sent or not.

    If nothing needs attention, a reply is sent only if the recipient's visibility settings enable it. A reply is not
    repeated within a day. A recipient that the run has already written to gets no second message.
    """
    beat = schedule.heartbeat or Heartbeat()
    if answer is not None and not schedule.deliver and schedule.place is not ScheduleSession.MAIN:
        answer = replace(answer, recipient=find_owner_address(tx.conn, schedule.to.name))
    shown = beat.visibility_at(answer.recipient if answer is not None else None)
    words = heartbeat.alert_text(text, ack_chars_max=beat.ack_chars_max)
    if answer is not None and envelopes.has_run_sent(tx.conn, run=run.id, recipient=str(answer.recipient)):
        made = HeartbeatReply(None, f"the run has already sent a message to {answer.recipient}")
    else:
        made = _build_reply(
            tx, schedule, answer, words, remarks, show_ok=bool(shown.ok), show_alerts=bool(shown.alerts)
        )
    if shown.indicator:
        _emit_indicator(tx, schedule, "alert" if words else "ok", made)
    return made


def _build_reply(
    tx: Transaction,
    schedule: Schedule,
    answer: EnvelopeDraft | None,
    alert: str,
    remarks: Sequence[str],
    *,
    show_ok: bool,
    show_alerts: bool,
) -> HeartbeatReply:
    if not alert:
        return HeartbeatReply(
            replace(answer, text=OK_TOKEN) if answer is not None and show_ok else None, NOTHING_TO_REPORT
        )
    if answer is None:
        return HeartbeatReply(None, "something needs attention, but there is no recipient")
    if not show_alerts:
        return HeartbeatReply(None, f"something needs attention, but alerts are not shown to {answer.recipient}")
    hash_ = hashlib.sha256(f"{answer.recipient}\n{alert}".encode(errors="surrogatepass")).hexdigest()
    before = schedules.get_heartbeat_text(tx.conn, schedule.id)
    if before is not None and before[0] == hash_ and tx.at_ms - before[1] < REPEAT_SUPPRESSED_S * 1000:
        at = from_ms(before[1]).isoformat(timespec="seconds")
        return HeartbeatReply(None, f"its text is the same as that of the reply delivered at {at}")
    schedules.set_heartbeat_text(tx, schedule.id, hash_)
    text = "\n\n".join((alert, *(f"[{remark}]" for remark in remarks)))
    return HeartbeatReply(replace(answer, text=truncate_bytes(text, ENVELOPE_TEXT_BYTES_MAX)), "answered")


def _emit_indicator(tx: Transaction, schedule: Schedule, indicator: str, reply: HeartbeatReply) -> None:
    """Emit an event for the web app's heartbeat indicator."""
    tx.emit(
        EventKind.HEARTBEAT_CHANGED,
        person=OWNER.name,
        schedule=schedule.id,
        agent=schedule.to.name,
        change="beat",
        indicator=indicator,
        delivered=reply.answer is not None,
        because=reply.because,
    )
