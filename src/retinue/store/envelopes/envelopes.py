"""Insert, find, claim and settle envelopes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.domain import address
from retinue.domain.address import Address
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import (
    NO_CONTEXT,
    Envelope,
    EnvelopeContext,
    EnvelopeDraft,
    EnvelopeKind,
    EnvelopeStatus,
    Outcome,
    SettledOutcome,
)
from retinue.domain.ids import EnvelopeId, RunId, SessionId
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.domain.times import MS_MAX, from_ms, to_ms
from retinue.domain.trust import Trust
from retinue.store.core import tables as t
from retinue.store.core.lookup import IdKind, find_by_short_id

MS_PER_DAY = 86_400_000

_encode = msgspec.json.Encoder().encode
_attachments_decoder = msgspec.json.Decoder(tuple[Attachment, ...])
_context_decoder = msgspec.json.Decoder(EnvelopeContext)

RUN_MESSAGES_MAX = 50  # messages of one run to one channel

_b = sa.bindparam
_insert = t.envelopes.insert()
_by_id = sa.select(t.envelopes).where(t.envelopes.c.id == _b("id"))
_by_key = sa.select(t.envelopes).where(t.envelopes.c.source == _b("source"), t.envelopes.c.dedupe_key == _b("key"))
_due = (
    sa.select(t.envelopes)
    .where(
        t.envelopes.c.session == _b("session"),
        t.envelopes.c.status == t.PENDING,
        # These are all ranks. Naming them lets the index scan stop before envelopes that are due later.
        t.envelopes.c.rank.in_((t.sql_literal("0"), t.sql_literal("1"))),
        t.envelopes.c.due_ms <= _b("now"),
    )
    .order_by(t.envelopes.c.rank, t.envelopes.c.due_ms, t.envelopes.c.seq)
    .limit(_b("limit"))
)
_has_due = (
    sa.select(sa.literal(1))
    .where(t.envelopes.c.session == _b("session"), t.envelopes.c.status == t.PENDING, t.envelopes.c.due_ms <= _b("now"))
    .limit(1)
)
_count_due = sa.select(sa.func.count()).where(
    t.envelopes.c.session == _b("session"),
    t.envelopes.c.status == t.PENDING,
    t.envelopes.c.rank == 1,
    t.envelopes.c.due_ms <= _b("now"),
    t.envelopes.c.silent == sa.false(),
)
# Envelopes that ask for work: they count toward a queue's cap and may be dropped for newer ones.
_is_droppable = t.envelopes.c.kind.in_(
    (t.sql_literal("'message'"), t.sql_literal("'delegation'"), t.sql_literal("'system'"))
)
_count_droppable = _count_due.where(_is_droppable)
_oldest_droppable = _due.where(t.envelopes.c.rank == 1, t.envelopes.c.silent == sa.false(), _is_droppable)
_next_outbound = (
    sa.select(t.envelopes)
    .where(
        t.envelopes.c.recipient == _b("recipient"),
        t.envelopes.c.session.is_(None),
        t.envelopes.c.status == t.PENDING,
        t.envelopes.c.due_ms <= _b("now"),
    )
    .order_by(t.envelopes.c.due_ms, t.envelopes.c.seq)
    .limit(1)
)
_due_lanes = (
    sa.select(t.envelopes.c.session, t.sessions.c.agent, t.sessions.c.origin_kind)
    .join_from(t.envelopes, t.sessions, t.envelopes.c.session == t.sessions.c.id)
    .where(t.envelopes.c.status == t.PENDING, t.envelopes.c.due_ms <= _b("now"), t.envelopes.c.due_ms > _b("since"))
    .distinct()
    .limit(_b("limit"))
)
# The rank is always 1 outside lanes. Naming it lets the lane index find due envelopes directly.
_is_due_without_lane = sa.and_(
    t.envelopes.c.status == t.PENDING,
    t.envelopes.c.session.is_(None),
    t.envelopes.c.rank == 1,
    t.envelopes.c.due_ms <= _b("now"),
)
_is_for_person = t.envelopes.c.recipient.like("person:%")
_due_for_people = (
    sa.select(t.envelopes)
    .where(_is_due_without_lane, _is_for_person)
    .order_by(t.envelopes.c.due_ms, t.envelopes.c.seq)
    .limit(_b("limit"))
)
_due_channels = (
    sa.select(t.envelopes.c.recipient)
    .where(_is_due_without_lane, sa.not_(_is_for_person))
    .distinct()
    .limit(_b("limit"))
)
_next_due = sa.select(sa.func.min(t.envelopes.c.due_ms)).where(
    t.envelopes.c.status == t.PENDING, t.envelopes.c.due_ms > _b("now")
)
_next_expiry = sa.select(sa.func.min(t.envelopes.c.expires_ms)).where(
    t.envelopes.c.status == t.PENDING, t.envelopes.c.expires_ms.is_not(None)
)
_expired = (
    sa.select(t.envelopes)
    .where(
        t.envelopes.c.status == t.PENDING,
        t.envelopes.c.expires_ms.is_not(None),
        t.envelopes.c.expires_ms <= _b("now"),
    )
    .order_by(t.envelopes.c.expires_ms)
    .limit(_b("limit"))
)
_claim = (
    t.envelopes.update()
    .where(t.envelopes.c.id == _b("the_id"), t.envelopes.c.status == t.PENDING)
    .values(status="claimed", run=_b("the_run"), claimed_ms=_b("now"), attempts=t.envelopes.c.attempts + 1)
)
_mark_steered = t.envelopes.update().where(t.envelopes.c.id == _b("the_id")).values(steered_into=_b("the_run"))
_update_held = t.envelopes.update().where(t.envelopes.c.run == _b("the_run"), t.envelopes.c.status.in_(t.HELD_STATUSES))
_suspend = _update_held.values(status="suspended")
_resume = _update_held.values(status="claimed")
_increment_attempts = _update_held.values(attempts=t.envelopes.c.attempts + 1)
_held = (
    sa.select(t.envelopes)
    .where(t.envelopes.c.run == _b("the_run"), t.envelopes.c.status.in_(t.HELD_STATUSES))
    .order_by(t.envelopes.c.rank, t.envelopes.c.due_ms, t.envelopes.c.seq)
)
_settle = (
    t.envelopes.update()
    .where(t.envelopes.c.id == _b("the_id"), t.envelopes.c.status != t.DONE)
    .values(status="done", settled_ms=_b("now"))
)
_return_to_pending = (
    t.envelopes.update()
    .where(t.envelopes.c.id == _b("the_id"), t.envelopes.c.status.in_(t.HELD_STATUSES))
    .values(status="pending", due_ms=_b("due"))
)
_sent_by_run = (
    sa.select(t.envelopes.c.id)
    .where(
        t.envelopes.c.source == "run",
        t.envelopes.c.dedupe_key >= _b("low"),
        t.envelopes.c.dedupe_key < _b("high"),
        t.envelopes.c.recipient == _b("recipient"),
    )
    .limit(1)
)
_is_sent_by_run = sa.and_(
    t.envelopes.c.source == "run",
    t.envelopes.c.dedupe_key >= _b("low"),
    t.envelopes.c.dedupe_key < _b("high"),
    t.envelopes.c.recipient == _b("recipient"),
)
_texts_sent_by_run = sa.select(t.envelopes.c.text).where(_is_sent_by_run).order_by(t.envelopes.c.seq).limit(_b("limit"))
_waiting_interim = (
    sa.select(t.envelopes)
    .where(_is_sent_by_run, t.envelopes.c.status == t.PENDING, t.envelopes.c.attempts == 0)
    .order_by(t.envelopes.c.seq.desc())
    .limit(1)
)
_release_held = (
    t.envelopes.update()
    .where(t.envelopes.c.id == _b("the_id"), t.envelopes.c.status == t.PENDING)
    .values(due_ms=_b("due"), session=_b("the_session"), recipient=_b("the_recipient"), text=_b("the_text"))
)
_set_session = t.envelopes.update().where(t.envelopes.c.id == _b("the_id")).values(session=_b("the_session"))
_insert_outcome = t.outcomes.insert()
_outcome_by_envelope = sa.select(t.outcomes).where(t.outcomes.c.envelope == _b("id"))
_increment_tally = (
    t.accepted_counts.update()
    .where(t.accepted_counts.c.day == _b("the_day"), t.accepted_counts.c.source == _b("the_source"))
    .values(accepted=t.accepted_counts.c.accepted + 1)
)
_insert_tally = t.accepted_counts.insert()


def envelope_from_row(row: sa.Row[Any]) -> Envelope:
    return Envelope(
        seq=row.seq,
        id=EnvelopeId(row.id),
        sender=address.parse_address(row.sender),
        recipient=address.parse_address(row.recipient),
        session=SessionId(row.session) if row.session else None,
        kind=EnvelopeKind(row.kind),
        text=row.text,
        attachments=_attachments_decoder.decode(row.attachments) if row.attachments else (),
        context=_context_decoder.decode(row.context) if row.context else NO_CONTEXT,
        reply_to=EnvelopeId(row.reply_to) if row.reply_to else None,
        trust=Trust(row.trust),
        source=row.source,
        idempotency_key=row.dedupe_key,
        silent=row.silent,
        deliver_at=from_ms(row.deliver_ms) if row.deliver_ms is not None else None,
        expires_at=from_ms(row.expires_ms) if row.expires_ms is not None else None,
        due_at=from_ms(row.due_ms),
        status=EnvelopeStatus(row.status),
        attempts=row.attempts,
        accepted_at=from_ms(row.accepted_ms),
        claimed_at=from_ms(row.claimed_ms) if row.claimed_ms is not None else None,
        settled_at=from_ms(row.settled_ms) if row.settled_ms is not None else None,
        run=RunId(row.run) if row.run else None,
        steered_into=RunId(row.steered_into) if row.steered_into else None,
        retry_of=EnvelopeId(row.retry_of) if row.retry_of else None,
    )


def add(
    conn: sa.Connection,
    draft: EnvelopeDraft,
    *,
    seq: int,
    at_ms: int,
    session: str | None,
    recipient: str,
    outcome: Outcome | None = None,
    because: str = "",
    run: RunId | None = None,
    held: bool = False,
) -> None:
    """Insert a draft as an envelope, and add it to the daily count. The caller has opened a `Transaction`.

    The status is done if `outcome` is given, claimed if `run` is given, and otherwise pending. An
    envelope that is `held` is not due until `release_held` is called, even if its delivery time has
    come.
    """
    status = (
        EnvelopeStatus.DONE
        if outcome is not None
        else EnvelopeStatus.PENDING
        if run is None
        else EnvelopeStatus.CLAIMED
    )
    deliver_ms = to_ms(draft.deliver_at) if draft.deliver_at else None
    conn.execute(
        _insert,
        {
            "seq": seq,
            "id": draft.id,
            "sender": str(draft.sender),
            "recipient": recipient,
            "session": session,
            "kind": draft.kind.value,
            "text": draft.text,
            "attachments": _encode(draft.attachments).decode() if draft.attachments else None,
            "context": _encode(draft.context).decode() if draft.context != NO_CONTEXT else None,
            "reply_to": draft.reply_to,
            "trust": draft.trust.value,
            "source": draft.source,
            "dedupe_key": draft.idempotency_key,
            "rank": 0 if draft.kind is EnvelopeKind.DECISION else 1,
            "silent": draft.silent,
            "deliver_ms": deliver_ms,
            "expires_ms": to_ms(draft.expires_at) if draft.expires_at else None,
            "due_ms": MS_MAX if held else max(at_ms, deliver_ms) if deliver_ms is not None else at_ms,
            "status": status.value,
            "attempts": 0 if run is None else 1,
            "accepted_ms": at_ms,
            "claimed_ms": None if run is None else at_ms,
            "settled_ms": None if outcome is None else at_ms,
            "run": run,
            "steered_into": None,
            "retry_of": draft.retry_of,
        },
    )
    day = at_ms // MS_PER_DAY
    if conn.execute(_increment_tally, {"the_day": day, "the_source": draft.source}).rowcount == 0:
        conn.execute(_insert_tally, {"day": day, "source": draft.source, "accepted": 1, "purged": 0})
    if outcome is not None:
        _write_outcomes(conn, [draft.id], outcome, because=because, at_ms=at_ms)


def build_accepted_envelope(
    draft: EnvelopeDraft, *, seq: int, at_ms: int, session: SessionId, recipient: Address
) -> Envelope:
    """Return the pending envelope that results from accepting this draft. The draft must be due at once."""
    at = from_ms(at_ms)
    return Envelope(
        seq=seq,
        id=draft.id,
        sender=draft.sender,
        recipient=recipient,
        session=session,
        kind=draft.kind,
        text=draft.text,
        attachments=draft.attachments,
        context=draft.context,
        reply_to=draft.reply_to,
        trust=draft.trust,
        source=draft.source,
        idempotency_key=draft.idempotency_key,
        silent=draft.silent,
        deliver_at=None,
        expires_at=draft.expires_at,
        due_at=at,
        status=EnvelopeStatus.PENDING,
        attempts=0,
        accepted_at=at,
        claimed_at=None,
        settled_at=None,
        run=None,
        steered_into=None,
        retry_of=draft.retry_of,
    )


def get(conn: sa.Connection, id_: str) -> Envelope | None:
    row = conn.execute(_by_id, {"id": id_}).one_or_none()
    return envelope_from_row(row) if row else None


def get_by_key(conn: sa.Connection, source: str, key: str) -> Envelope | None:
    row = conn.execute(_by_key, {"source": source, "key": key}).one_or_none()
    return envelope_from_row(row) if row else None


def resolve_id(conn: sa.Connection, text: str, *, seen_by: Principal = SERVER_PRINCIPAL) -> EnvelopeId:
    """Return the id of the only envelope whose id starts with this short id.

    Raises `AmbiguousId` with the candidates if there is more than one.
    """
    return EnvelopeId(find_by_short_id(conn, text, (IdKind.ENVELOPE,), seen_by=seen_by)[1])


def list_due(conn: sa.Connection, session: str, now_ms: int, *, limit: int) -> list[Envelope]:
    """List the due envelopes of a lane: decisions on approvals first, then by due time and sequence number."""
    rows = conn.execute(_due, {"session": session, "now": now_ms, "limit": limit})
    return [envelope_from_row(row) for row in rows]


def list_oldest_droppable(conn: sa.Connection, session: str, now_ms: int, *, limit: int) -> list[Envelope]:
    """List the oldest waiting envelopes of a lane that may be dropped to make room for newer ones.

    Answers and notices are never dropped.
    """
    rows = conn.execute(_oldest_droppable, {"session": session, "now": now_ms, "limit": limit})
    return [envelope_from_row(row) for row in rows]


def count_droppable(conn: sa.Connection, session: str, now_ms: int) -> int:
    """Count the waiting envelopes of a lane that may be dropped. Only these count toward the lane's limit."""
    return conn.execute(_count_droppable, {"session": session, "now": now_ms}).scalar_one()


def has_due(conn: sa.Connection, session: str, now_ms: int) -> bool:
    """Whether a lane has a due envelope, including silent envelopes, which start no run."""
    return conn.execute(_has_due, {"session": session, "now": now_ms}).scalar() is not None


def count_due(conn: sa.Connection, session: str, now_ms: int) -> int:
    return conn.execute(_count_due, {"session": session, "now": now_ms}).scalar_one()


def get_next_outbound(conn: sa.Connection, recipient: str, now_ms: int) -> Envelope | None:
    row = conn.execute(_next_outbound, {"recipient": recipient, "now": now_ms}).one_or_none()
    return envelope_from_row(row) if row else None


class DueLane(Struct, frozen=True):
    session: SessionId
    agent: str
    origin_kind: str


def list_due_lanes(conn: sa.Connection, *, since_ms: int, now_ms: int, limit: int) -> list[DueLane]:
    """List the lanes in which an envelope became due after `since_ms`, up to and including `now_ms`."""
    rows = conn.execute(_due_lanes, {"since": since_ms, "now": now_ms, "limit": limit})
    return [DueLane(SessionId(r.session), r.agent, r.origin_kind) for r in rows]


def list_due_channels(conn: sa.Connection, now_ms: int, *, limit: int) -> list[str]:
    """List the channels with envelopes that are due for delivery."""
    return [row.recipient for row in conn.execute(_due_channels, {"now": now_ms, "limit": limit})]


def list_due_for_people(conn: sa.Connection, now_ms: int, *, limit: int) -> list[Envelope]:
    """List the due envelopes addressed to people."""
    return [envelope_from_row(row) for row in conn.execute(_due_for_people, {"now": now_ms, "limit": limit})]


def next_due_or_expiry_ms(conn: sa.Connection, now_ms: int) -> int | None:
    """Return the next time at which an envelope becomes due or expires, or None if there is none."""
    moments = [
        conn.execute(_next_due, {"now": now_ms}).scalar(),
        next_expiry_ms(conn),
    ]
    return min((m for m in moments if m is not None), default=None)


def next_expiry_ms(conn: sa.Connection) -> int | None:
    return conn.execute(_next_expiry).scalar()


def list_expired(conn: sa.Connection, now_ms: int, *, limit: int) -> list[Envelope]:
    return [envelope_from_row(row) for row in conn.execute(_expired, {"now": now_ms, "limit": limit})]


def claim(conn: sa.Connection, ids: Iterable[str], *, run: str | None, now_ms: int) -> None:
    conn.execute(_claim, [{"the_id": id_, "the_run": run, "now": now_ms} for id_ in ids])


def mark_steered(conn: sa.Connection, ids: Iterable[str], *, run: str) -> None:
    """Record that an open run has already read these envelopes. They stay pending until a run claims them."""
    conn.execute(_mark_steered, [{"the_id": id_, "the_run": run} for id_ in ids])


def suspend(conn: sa.Connection, run: str) -> None:
    conn.execute(_suspend, {"the_run": run})


def resume(conn: sa.Connection, run: str) -> None:
    conn.execute(_resume, {"the_run": run})


def increment_attempts(conn: sa.Connection, run: str) -> None:
    conn.execute(_increment_attempts, {"the_run": run})


def list_held(conn: sa.Connection, run: str) -> list[Envelope]:
    """List the claimed or suspended envelopes of a run."""
    return [envelope_from_row(row) for row in conn.execute(_held, {"the_run": run})]


def return_to_pending(conn: sa.Connection, id_: str, *, due_ms: int) -> None:
    """Make a claimed envelope pending again, for its next delivery attempt at `due_ms`."""
    conn.execute(_return_to_pending, {"the_id": id_, "due": due_ms})


def has_run_sent(conn: sa.Connection, *, run: str, recipient: str) -> bool:
    """Whether a tool call of this run has sent an envelope to this recipient. The run's answer does not count."""
    values = {"low": f"{run}/", "high": f"{run}0", "recipient": recipient}
    return conn.execute(_sent_by_run, values).first() is not None


def list_texts_sent_by_run(conn: sa.Connection, *, run: str, recipient: str) -> list[str]:
    """List what a run has sent to this recipient before its answer: messages from tools, and interim replies."""
    found: list[str] = []
    for low, high in ((f"{run}/", f"{run}0"), (f"said/{run}/", f"said/{run}0")):
        values = {"low": low, "high": high, "recipient": recipient, "limit": RUN_MESSAGES_MAX}
        found += conn.execute(_texts_sent_by_run, values).scalars()
    return found


def get_waiting_interim(conn: sa.Connection, *, run: str, recipient: str) -> Envelope | None:
    """Return the last interim reply of a run to this recipient, or None if its delivery has already been tried."""
    values = {"low": f"said/{run}/", "high": f"said/{run}0", "recipient": recipient}
    row = conn.execute(_waiting_interim, values).one_or_none()
    return envelope_from_row(row) if row else None


def release_held(
    conn: sa.Connection, id_: str, *, due_ms: int, session: str | None, recipient: Address, text: str
) -> None:
    """Make a held envelope due (see `add`), and set its session, recipient and text."""
    values = {"due": due_ms, "the_session": session, "the_recipient": str(recipient), "the_text": text}
    conn.execute(_release_held, {"the_id": id_, **values})


def settle(
    conn: sa.Connection,
    ids: Sequence[str],
    outcome: Outcome,
    *,
    because: str,
    at_ms: int,
    answer: str | None = None,
    silent: bool = False,
) -> None:
    """Settle envelopes. Call `outcomes.settle` instead of this, because it also advances schedules."""
    conn.execute(_settle, [{"the_id": id_, "now": at_ms} for id_ in ids])
    _write_outcomes(conn, ids, outcome, because=because, at_ms=at_ms, answer=answer, silent=silent)


def _write_outcomes(
    conn: sa.Connection,
    ids: Sequence[str],
    outcome: Outcome,
    *,
    because: str,
    at_ms: int,
    answer: str | None = None,
    silent: bool = False,
) -> None:
    conn.execute(
        _insert_outcome,
        [
            {
                "envelope": id_,
                "outcome": outcome.value,
                "because": because,
                "answer": answer,
                "silent": silent,
                "at_ms": at_ms,
            }
            for id_ in ids
        ],
    )


def set_session(conn: sa.Connection, id_: str, session: str | None) -> None:
    conn.execute(_set_session, {"the_id": id_, "the_session": session})


def get_outcome(conn: sa.Connection, id_: str) -> SettledOutcome | None:
    row = conn.execute(_outcome_by_envelope, {"id": id_}).one_or_none()
    if row is None:
        return None
    return SettledOutcome(
        envelope=EnvelopeId(row.envelope),
        outcome=Outcome(row.outcome),
        because=row.because,
        at=from_ms(row.at_ms),
        answer=EnvelopeId(row.answer) if row.answer else None,
    )
