"""Heartbeats in the engine: whether an occurrence runs now, who gets its reply, and what the reply says."""

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
from retinue.domain.envelope import TEXT_BYTES_MAX, Draft, Envelope, Kind
from retinue.domain.event import NewsKind
from retinue.domain.heartbeat import SAME_WORDS_S, TOKEN, Heartbeat
from retinue.domain.ids import SessionId
from retinue.domain.record import UserTurn
from retinue.domain.run import Run
from retinue.domain.schedule import By, GateSaid, Place, Schedule, Slot
from retinue.domain.session import OriginKind, Session
from retinue.domain.session_keys import ChatType
from retinue.domain.storable_text import clipped_bytes
from retinue.domain.times import from_ms
from retinue.intake.routing import NOWHERE, OWNER, who_listens
from retinue.store.core.transaction import Page
from retinue.store.envelopes import envelopes
from retinue.store.runs import runs
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import Kept
from retinue.store.sessions import records, sessions

CONVERSATIONS_LOOKED_AT_MAX = 50
RECORDS_LOOKED_AT_MAX = 50
ALL_WELL = "nothing needs attention"


async def no_checklists(
    schedule: Schedule, agent: Agent, session: SessionId, *, wanted: tuple[str, ...], forced: bool
) -> GateSaid:
    """Refuse every heartbeat: this server reads no checklists."""
    return GateSaid(open=False, because="there is nothing here that could read its checklist")


def why_still(page: Page, kept: Kept, slot: Slot) -> str:
    """Return why an occurrence is skipped before its checklist is read, or an empty string."""
    beat = kept.schedule.heartbeat
    if beat is None or slot.by is not By.CLOCK:
        return ""
    zone = ZoneInfo(beat.active_zone) if beat.active_zone else kept.place
    if not heartbeat.is_active(beat, from_ms(page.at_ms), zone):
        hours = f"{beat.active_start or '00:00'} to {beat.active_end or '24:00'}"
        return f"quiet: it is active from {hours} ({zone.key})"
    to = _deliver(page.conn, kept.schedule)
    if beat.shown_at(to).nothing:
        return f"unseen: nothing of it would be shown to {to or 'anybody'}"
    return ""


def is_busy(conn: sa.Connection, session: str, now_ms: int) -> bool:
    """Whether the session has an open run or due envelopes."""
    return runs.open_in(conn, session) is not None or bool(envelopes.due(conn, session, now_ms, limit=1))


def _deliver(conn: sa.Connection, schedule: Schedule) -> Address | None:
    """Return where the reply goes: the configured address, or where the owner last talked to the agent."""
    if schedule.deliver:
        return None if schedule.deliver == NOWHERE else address.parse(schedule.deliver)
    return listener(conn, schedule.to.name)


def listener(conn: sa.Connection, agent: str) -> Address:
    """Return where the owner last talked to the agent in private. Private text goes nowhere else."""
    for session in sessions.latest_foreground(conn, limit=CONVERSATIONS_LOOKED_AT_MAX):
        if session.agent == agent and _is_owners(conn, session):
            return who_listens(session.origin)
    return OWNER


def _is_owners(conn: sa.Connection, session: Session) -> bool:
    if session.origin.kind is not OriginKind.CHAT:
        return session.origin.belongs_to(str(OWNER))
    if session.chat_type is not ChatType.DIRECT:
        return False
    first = max(1, session.record_seq - RECORDS_LOOKED_AT_MAX)
    read, _ = records.read(conn, session.id, first=first, last=session.record_seq)
    turn = next((each.body for each in reversed(read) if isinstance(each.body, UserTurn) and each.body.envelopes), None)
    last = envelopes.get(conn, turn.envelopes[-1]) if turn is not None else None
    return last is not None and last.context.from_boss


# --- replies ---


class Told(Struct, frozen=True):
    """The reply to send, if any, and the reason that is stored."""

    answer: Draft | None
    because: str = ""


def of_run(conn: sa.Connection, run: Run, held: Sequence[Envelope]) -> Schedule | None:
    """Return the heartbeat schedule of a run, or None if the run has other envelopes. Late decisions may join."""
    if not all(each.sender == run.sender or each.kind is Kind.DECISION for each in held):
        return None
    kept = schedules.get(conn, run.sender.name)
    return kept.schedule if kept is not None and kept.schedule.heartbeat is not None else None


def told(page: Page, run: Run, schedule: Schedule, answer: Draft | None, *, text: str, remarks: Sequence[str]) -> Told:
    """Return the reply that a heartbeat run sends, and the reason.

    An acknowledgement is not sent, unless the recipient wants it. A reply is not repeated within a
    day, and a recipient that the run already wrote to gets no second message.
    """
    beat = schedule.heartbeat or Heartbeat()
    if answer is not None and not schedule.deliver and schedule.place is not Place.MAIN:
        answer = replace(answer, recipient=listener(page.conn, schedule.to.name))
    shown = beat.shown_at(answer.recipient if answer is not None else None)
    words = heartbeat.spoken(text, ack_chars_max=beat.ack_chars_max)
    if answer is not None and envelopes.was_sent(page.conn, run=run.id, recipient=str(answer.recipient)):
        made = Told(None, f"it has written to {answer.recipient} by itself")
    else:
        made = _made(page, schedule, answer, words, remarks, ok=bool(shown.ok), alerts=bool(shown.alerts))
    if shown.indicator:
        _indicate(page, schedule, "alert" if words else "ok", made)
    return made


def _made(
    page: Page,
    schedule: Schedule,
    answer: Draft | None,
    words: str,
    remarks: Sequence[str],
    *,
    ok: bool,
    alerts: bool,
) -> Told:
    if not words:
        return Told(replace(answer, text=TOKEN) if answer is not None and ok else None, ALL_WELL)
    if answer is None:
        return Told(None, "something needs attention, and is to be told to nobody")
    if not alerts:
        return Told(None, f"something needs attention, and alerts are not shown to {answer.recipient}")
    hash_ = hashlib.sha256(f"{answer.recipient}\n{words}".encode(errors="surrogatepass")).hexdigest()
    before = schedules.said_before(page.conn, schedule.id)
    if before is not None and before[0] == hash_ and page.at_ms - before[1] < SAME_WORDS_S * 1000:
        at = from_ms(before[1]).isoformat(timespec="seconds")
        return Told(None, f"it said the same as at {at}, which was delivered then")
    schedules.note_said(page, schedule.id, hash_)
    text = "\n\n".join((words, *(f"[{remark}]" for remark in remarks)))
    return Told(replace(answer, text=clipped_bytes(text, TEXT_BYTES_MAX)), "answered")


def _indicate(page: Page, schedule: Schedule, indicator: str, made: Told) -> None:
    """Emit an event for the web app's heartbeat indicator."""
    page.tell(
        NewsKind.HEARTBEAT_CHANGED,
        person=OWNER.name,
        schedule=schedule.id,
        agent=schedule.to.name,
        change="beat",
        indicator=indicator,
        delivered=made.answer is not None,
        because=made.because,
    )
