"""Delete old envelopes, events and runs. The equations of the ledger still hold afterwards.

- Rows that belong together are deleted in one commit: the envelopes of one run, which share an
  answer, or a dead letter and its retries. An answer is not deleted before the message it answers.
- The newest envelope and the newest event are kept, because the counters continue from them.
- Purged envelopes are still counted, under the day on which they were accepted. Their idempotency
  keys are kept for a month, without content, so that a message that is received again is recognized.
- Sessions, their records and costs are not purged, even if a session was reset or deleted.

Each function purges a limited number of rows in one short transaction. `operations/server/maintenance`
calls it until nothing is left to delete.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import sqlalchemy as sa
from msgspec import Struct

from retinue.domain import address
from retinue.domain.address import Address
from retinue.domain.attachment import Attachment
from retinue.domain.envelope import EnvelopeDraft, EnvelopeKind, EnvelopeStatus, Outcome
from retinue.domain.ids import EnvelopeId, SessionId
from retinue.store.core import tables as t
from retinue.store.core.transaction import Transaction
from retinue.store.envelopes import envelopes
from retinue.store.envelopes.dead_letters import DEAD_OUTCOMES, RETRY_SOURCE, list_retries, original_envelope_id
from retinue.store.envelopes.envelopes import MS_PER_DAY, envelope_from_row
from retinue.store.runs import runs
from retinue.store.sessions.full_results import list_file_hashes

PURGED_KEYS_RETENTION_MS = 30 * MS_PER_DAY
SCANNED_PER_BATCH_MAX = 50
ROWS_PER_BATCH_MAX = 250
GROUP_MAX = 500  # a larger group of envelopes that must be purged together is not purged

_b = sa.bindparam
_e, _o, _n, _r = t.envelopes, t.outcomes, t.events, t.runs
_encode = msgspec.json.Encoder().encode
_attachments_decoder = msgspec.json.Decoder(list[Attachment])


class PurgeHorizon(Struct, frozen=True, kw_only=True):
    """The times before which done envelopes, events and ended runs may be purged.

    If a time is None, nothing of that kind is purged. Events are an exception: those before
    `envelopes_ms` are purged even if `events_ms` is None.
    """

    envelopes_ms: int | None = None
    events_ms: int | None = None
    runs_ms: int | None = None
    include_unread: bool = False  # whether envelopes that their recipient has not marked as read may be purged too

    @property
    def events_horizon_ms(self) -> int | None:
        """The time before which events may be purged, or None if no events may be purged.

        It is not earlier than the time for envelopes, so that no event outlives its envelope.
        """
        return max((each for each in (self.events_ms, self.envelopes_ms) if each is not None), default=None)


class PurgedKey(Struct, frozen=True, kw_only=True):
    """What is kept of a purged envelope: its id, outcome, times and a hash of its content, but not the content."""

    envelope: EnvelopeId
    session: SessionId | None
    recipient: Address
    content_hash: str
    outcome: Outcome
    accepted_ms: int
    purged_ms: int


# --- keys of purged envelopes ---

_key = sa.select(t.purged_envelopes).where(
    t.purged_envelopes.c.source == _b("source"), t.purged_envelopes.c.dedupe_key == _b("key")
)
_purged_id = sa.select(t.purged_envelopes.c.purged_ms).where(t.purged_envelopes.c.envelope == _b("id")).limit(1)


def get_purged_key(conn: sa.Connection, source: str, key: str) -> PurgedKey | None:
    """Return what is kept of the purged envelope with this idempotency key, or None if there is none."""
    row = conn.execute(_key, {"source": source, "key": key}).one_or_none()
    if row is None:
        return None
    return PurgedKey(
        envelope=EnvelopeId(row.envelope),
        session=SessionId(row.session) if row.session else None,
        recipient=address.parse_address(row.recipient),
        content_hash=row.content_hash,
        outcome=Outcome(row.outcome),
        accepted_ms=row.accepted_ms,
        purged_ms=row.purged_ms,
    )


def was_purged(conn: sa.Connection, id_: str) -> bool:
    """Whether an envelope with this id was purged and its purged key is still stored."""
    return conn.execute(_purged_id, {"id": id_}).scalar() is not None


def content_hash(draft: EnvelopeDraft) -> str:
    """Return a hash of a draft's sender, kind, text and attachments, to compare it with a purged envelope."""
    return _hash(str(draft.sender), draft.kind, draft.text, _encode(draft.attachments).decode())


def _hash(sender: str, kind: EnvelopeKind, text: str, attachments: str) -> str:
    return hashlib.sha256(_encode([sender, kind, text, attachments])).hexdigest()


# --- envelopes ---

_newest = sa.select(t.counters.c.envelope_seq)
_last_event_envelope = sa.select(_n.c.envelope).where(_n.c.seq == sa.select(t.counters.c.event_seq).scalar_subquery())
_old_envelopes = (
    sa.select(_e.c.seq, _e.c.id)
    .where(_e.c.seq > _b("after"), _e.c.status == t.DONE, _e.c.settled_ms < _b("before"))
    .order_by(_e.c.seq)
    .limit(_b("limit"))
)
_envelope_by_id = sa.select(_e).where(_e.c.id == _b("id"))
_outcome_by_envelope = sa.select(_o.c.outcome, _o.c.answer).where(_o.c.envelope == _b("id"))
_unread = sa.select(sa.literal(1)).where(t.inbox.c.envelope == _b("id"), t.inbox.c.read_ms.is_(None))
_delete_envelope = (
    t.inbox.delete().where(t.inbox.c.envelope == _b("the_id")),
    t.deliveries.delete().where(t.deliveries.c.envelope == _b("the_id")),
    t.webhooks.delete().where(t.webhooks.c.envelope == _b("the_id")),
    t.delivery_parts.delete().where(t.delivery_parts.c.envelope == _b("the_id")),
    _o.delete().where(_o.c.envelope == _b("the_id")),
    _e.delete().where(_e.c.id == _b("the_id")),
)
_count_purged = (
    t.accepted_counts.update()
    .where(t.accepted_counts.c.day == _b("the_day"), t.accepted_counts.c.source == _b("the_source"))
    .values(purged=t.accepted_counts.c.purged + _b("n"))
)
_delete_key = t.purged_envelopes.delete().where(
    t.purged_envelopes.c.source == _b("the_source"), t.purged_envelopes.c.dedupe_key == _b("the_key")
)
_insert_key = t.purged_envelopes.insert()


def list_old_envelopes(conn: sa.Connection, *, after: int, before_ms: int) -> list[tuple[int, EnvelopeId]]:
    """List done envelopes that were settled before `before_ms`, with sequence numbers above `after`.

    `purge_envelopes` decides which of them may be purged.
    """
    bounds = {"after": after, "before": before_ms, "limit": SCANNED_PER_BATCH_MAX}
    return [(row.seq, EnvelopeId(row.id)) for row in conn.execute(_old_envelopes, bounds)]


def list_purgeable(conn: sa.Connection, ids: Iterable[str], horizon: PurgeHorizon) -> dict[str, Any]:
    """Return the rows of those envelopes that may be purged, and of all envelopes that must be purged with them."""
    going: dict[str, Any] = {}
    staying: set[str] = set()
    protected = {conn.execute(_last_event_envelope).scalar()}
    newest: int = conn.execute(_newest).scalar_one()
    for id_ in ids:
        if id_ in going or id_ in staying:
            continue
        group = _collect_group(conn, id_, horizon, newest=newest, protected=protected)
        if group is None:
            staying.add(id_)
        else:
            going |= group
    return going


def _collect_group(
    conn: sa.Connection, id_: str, horizon: PurgeHorizon, *, newest: int, protected: set[str | None]
) -> dict[str, Any] | None:
    """Return the envelopes that must be purged together with this one, or None if one of them must be kept."""
    group: dict[str, Any] = {}
    todo = [id_]
    while todo:
        id_ = todo.pop()
        if id_ in group or (row := conn.execute(_envelope_by_id, {"id": id_}).one_or_none()) is None:
            continue
        if row.seq >= newest or id_ in protected or not _is_old(conn, row, horizon) or len(group) == GROUP_MAX:
            return None
        group[id_] = row
        todo += _list_dependent(conn, row)
    return group


def _is_old(conn: sa.Connection, row: Any, horizon: PurgeHorizon) -> bool:
    if horizon.envelopes_ms is None or row.status != EnvelopeStatus.DONE or row.settled_ms >= horizon.envelopes_ms:
        return False
    return horizon.include_unread or conn.execute(_unread, {"id": row.id}).scalar() is None


def _list_dependent(conn: sa.Connection, row: Any) -> list[str]:
    """List the envelopes that must be purged before this envelope or together with it."""
    others: list[str] = []
    # The envelopes of one run refer to one answer, which refers only to the last of them.
    run = runs.get(conn, row.run) if row.run else None
    if run is not None:
        others += run.envelopes
    if row.reply_to:
        question = conn.execute(_outcome_by_envelope, {"id": row.reply_to}).one_or_none()
        if question is not None and question.answer == row.id:
            others.append(row.reply_to)
    # Retries are found by counting up from the first.
    ended = conn.execute(_outcome_by_envelope, {"id": row.id}).one_or_none()
    if row.source == RETRY_SOURCE or (ended is not None and ended.outcome in DEAD_OUTCOMES):
        envelope = envelope_from_row(row)
        others += [original_envelope_id(envelope), *(each.id for each in list_retries(conn, envelope))]
    return others


def purge_envelopes(conn: sa.Connection, *, ids: Sequence[str], horizon: PurgeHorizon, now_ms: int) -> int:
    """Delete those of the given envelopes that may be purged, and all envelopes that must be purged with them.

    Returns how many envelopes were deleted.
    """
    tx = Transaction(conn, now_ms)
    going = list_purgeable(conn, ids, horizon)
    if going:
        _insert_purged_keys(conn, going, at_ms=tx.at_ms)
        counts = Counter((row.accepted_ms // MS_PER_DAY, row.source) for row in going.values())
        conn.execute(
            _count_purged, [{"the_day": day, "the_source": source, "n": n} for (day, source), n in counts.items()]
        )
        for statement in _delete_envelope:
            conn.execute(statement, [{"the_id": id_} for id_ in going])
    tx.close()
    return len(going)


def _insert_purged_keys(conn: sa.Connection, going: dict[str, Any], *, at_ms: int) -> None:
    conn.execute(_delete_key, [{"the_source": row.source, "the_key": row.dedupe_key} for row in going.values()])
    conn.execute(
        _insert_key,
        [
            {
                "source": row.source,
                "dedupe_key": row.dedupe_key,
                "envelope": row.id,
                "session": row.session,
                "recipient": row.recipient,
                "content_hash": _hash(
                    row.sender, EnvelopeKind(row.kind), row.text, row.attachments if row.attachments else "[]"
                ),
                "outcome": conn.execute(_outcome_by_envelope, {"id": row.id}).one().outcome,
                "accepted_ms": row.accepted_ms,
                "purged_ms": at_ms,
            }
            for row in going.values()
        ],
    )


# --- events, which are ordered by time ---

_oldest_events = sa.select(_n.c.seq, _n.c.at_ms).order_by(_n.c.seq).limit(_b("limit"))
_newest_event_seq = sa.select(t.counters.c.event_seq)
_delete_events = _n.delete().where(_n.c.seq <= _b("upto"))
_count_events = sa.select(sa.func.count()).where(
    _n.c.at_ms < _b("before"), _n.c.seq < _newest_event_seq.scalar_subquery()
)


def count_events(conn: sa.Connection, *, before_ms: int) -> int:
    return conn.execute(_count_events, {"before": before_ms}).scalar_one()


def purge_events(conn: sa.Connection, *, before_ms: int, now_ms: int) -> int:
    """Delete up to `ROWS_PER_BATCH_MAX` old events, but never the newest event. Returns how many were deleted."""
    tx = Transaction(conn, now_ms)
    oldest = conn.execute(_oldest_events, {"limit": ROWS_PER_BATCH_MAX}).all()
    going = [row.seq for row in oldest if row.at_ms < before_ms and row.seq < tx.event_seq]
    if going:
        conn.execute(_delete_events, {"upto": going[-1]})
    tx.close()
    return len(going)


# --- runs: first their steps, which are not resumed again, then the run itself once all its envelopes are gone ---

_ended_before = sa.and_(_r.c.status.not_in(t.OPEN_RUN_STATUSES), _r.c.ended_ms < _b("before"))
_has_steps = sa.exists().where(t.steps.c.run == _r.c.id)
_old_runs = sa.select(_r.c.id).where(_r.c.id > _b("after"), _ended_before).order_by(_r.c.id).limit(_b("limit"))
_count_runs = sa.select(sa.func.count()).select_from(_r).where(_ended_before, _has_steps)
_is_ended = sa.select(_r.c.id).where(_r.c.id == _b("id"), _ended_before)
_approvals_of_run = sa.select(t.approvals).where(t.approvals.c.run == _b("run"))
_delete_steps = t.steps.delete().where(t.steps.c.run == _b("the_run"))
_delete_approvals = t.approvals.delete().where(t.approvals.c.run == _b("the_run"))
_delete_run = _r.delete().where(_r.c.id == _b("the_run"))


def count_runs(conn: sa.Connection, *, before_ms: int) -> int:
    return conn.execute(_count_runs, {"before": before_ms}).scalar_one()


def list_old_runs(conn: sa.Connection, *, after: str, before_ms: int) -> list[str]:
    bounds = {"after": after, "before": before_ms, "limit": SCANNED_PER_BATCH_MAX}
    return [row.id for row in conn.execute(_old_runs, bounds)]


def purge_runs(conn: sa.Connection, *, ids: Sequence[str], before_ms: int, now_ms: int) -> int:
    """Delete the steps of ended runs. If all envelopes of a run were purged, also delete the run.

    Returns the number of runs whose steps were deleted.
    """
    tx = Transaction(conn, now_ms)
    trimmed = 0
    for id_ in ids:
        if conn.execute(_is_ended, {"id": id_, "before": before_ms}).scalar() is None:
            continue
        trimmed += conn.execute(_delete_steps, {"the_run": id_}).rowcount > 0
        if _is_run_purgeable(conn, id_, before_ms):
            conn.execute(_delete_approvals, {"the_run": id_})
            conn.execute(_delete_run, {"the_run": id_})
    tx.close()
    return trimmed


def _is_run_purgeable(conn: sa.Connection, id_: str, before_ms: int) -> bool:
    """Whether all envelopes of a run were purged, and its approvals were all decided long enough ago."""
    run = runs.get(conn, id_)
    if run is None or any(
        conn.execute(_envelope_by_id, {"id": each}).one_or_none() is not None for each in run.envelopes
    ):
        return False
    for asked in conn.execute(_approvals_of_run, {"run": id_}).all():
        if asked.decided_ms is None or asked.decided_ms >= before_ms:
            return False
        decision = envelopes.get_by_key(conn, f"person:{asked.decided_by}", f"{asked.id}/decision")
        if decision is not None and decision.status is not EnvelopeStatus.DONE:
            return False
    return True


# --- expired keys, responses and the like. All are small, and are counted when they are deleted ---

_old_keys = t.purged_envelopes.c.purged_ms < _b("before")
_old_answers = t.idempotency_keys.c.at_ms < _b("before")
# Not tokens that were only revoked: their hash must stay known, or their file would be accepted as a new token.
_old_tokens = sa.and_(t.tokens.c.expires_ms.is_not(None), t.tokens.c.expires_ms < _b("before"))
# Unread ones stay: each person has a limited number of them.
_old_notifications = sa.and_(t.notifications.c.read_ms.is_not(None), t.notifications.c.at_ms < _b("before"))
_old_questionnaires = t.questionnaires.c.expires_ms < _b("before")
_EXPIRING: tuple[tuple[str, Any, Any], ...] = (
    ("idempotency_keys", t.purged_envelopes, _old_keys),
    ("stored_answers", t.idempotency_keys, _old_answers),
    ("tokens", t.tokens, _old_tokens),
    ("notifications", t.notifications, _old_notifications),
    ("questionnaires", t.questionnaires, _old_questionnaires),
)
_count_expired = {name: sa.select(sa.func.count()).select_from(table).where(where) for name, table, where in _EXPIRING}
_some_expired = {
    name: sa.select(*table.primary_key.columns).where(where).limit(_b("limit")) for name, table, where in _EXPIRING
}
_delete_expired = {
    name: table.delete().where(*(column == _b(f"the_{column.name}") for column in table.primary_key.columns))
    for name, table, _where in _EXPIRING
}


def count_expired(conn: sa.Connection, *, before_ms: int) -> dict[str, int]:
    return {name: conn.execute(_count_expired[name], {"before": before_ms}).scalar_one() for name, _, _ in _EXPIRING}


def purge_expired(conn: sa.Connection, *, before_ms: int, now_ms: int) -> dict[str, int]:
    """Delete a limited number of expired purged keys, stored responses, tokens, notifications and questionnaires.

    Returns how many rows of each kind were deleted.
    """
    tx = Transaction(conn, now_ms)
    went: dict[str, int] = {}
    for name, table, _where in _EXPIRING:
        rows = conn.execute(_some_expired[name], {"before": before_ms, "limit": ROWS_PER_BATCH_MAX}).all()
        names = [f"the_{column.name}" for column in table.primary_key.columns]
        if rows:
            conn.execute(_delete_expired[name], [dict(zip(names, row, strict=True)) for row in rows])
        went[name] = len(rows)
    tx.close()
    return went


# --- attachments ---

_with_attachments = (
    sa.select(_e.c.seq, _e.c.attachments)
    .where(_e.c.seq > _b("after"), _e.c.attachments.is_not(None))
    .order_by(_e.c.seq)
    .limit(_b("limit"))
)


def list_attachment_hashes(conn: sa.Connection) -> set[str]:
    """Return the hashes of all files to which envelopes or tool results refer."""
    named = list_file_hashes(conn)
    after = 0
    while rows := conn.execute(_with_attachments, {"after": after, "limit": ROWS_PER_BATCH_MAX}).all():
        for row in rows:
            named |= {attachment.hash for attachment in _attachments_decoder.decode(row.attachments)}
        after = rows[-1].seq
    return named
