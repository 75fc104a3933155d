"""Explain an envelope, run, approval or session: its causal chain, read from the store.

Everything was stored when it happened. Nothing is guessed, and no model is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.approval import ApprovalState
from retinue.domain.envelope import Envelope, Kind, Outcome, Settled, Status
from retinue.domain.ids import derived, short
from retinue.domain.principal import HOUSE, Principal
from retinue.domain.run import Run
from retinue.domain.times import to_ms
from retinue.store.channels import deliveries
from retinue.store.core import tables as t
from retinue.store.core.lookup import find
from retinue.store.core.row_visibility import sees_session
from retinue.store.core.transaction import latest_ms
from retinue.store.envelopes import envelopes
from retinue.store.envelopes.dead_letters import retries
from retinue.store.maintenance.purge import was_purged
from retinue.store.runs import runs
from retinue.store.runs.run_timeline import afresh, approval_facts, head, resets, story
from retinue.store.runs.timeline import FACTS_MAX, Fact, Said, addressed, fact, in_order, listed, quoted, read, span
from retinue.store.sessions import sessions

RECORDS_LOOKED_AT_MAX = 200
RUNS_SHOWN_MAX = 20
RESETS_SHOWN_MAX = 20
RESETS_LOOKED_FOR_MAX = 10_000  # the last records
PURPOSES = (*(str(outcome) for outcome in Outcome), "overflow", "left-out")
"""Why the house writes about an envelope; each such letter has an id that follows from its subject's."""

_b = sa.bindparam
_approval = sa.select(t.approvals).where(t.approvals.c.id == _b("id"))
_last_records = (
    sa.select(t.records.c.run)
    .where(t.records.c.session == _b("session"), t.records.c.seq > _b("after"), t.records.c.run.is_not(None))
    .order_by(t.records.c.seq.desc())
)
_last_resets = resets.where(t.records.c.seq > _b("after")).order_by(t.records.c.seq.desc()).limit(RESETS_SHOWN_MAX)
_waiting = sa.select(sa.func.count()).where(t.envelopes.c.session == _b("session"), t.envelopes.c.status == t.PENDING)


class Why(Struct, frozen=True, kw_only=True):
    kind: str
    id: str
    head: tuple[Said, ...]  # what it is, and its status
    facts: tuple[Fact, ...]  # newest last
    left_out: int = 0  # from the middle

    def lines(self, zone: ZoneInfo) -> list[str]:
        """Format for people: what it is, then one sentence for each fact, with its time."""
        told = [each.line(zone) for each in self.facts]
        if self.left_out:
            told.insert(FACTS_MAX // 2, f"({self.left_out} more in between)")
        return [read(self.head, zone), *told]


def why(conn: sa.Connection, id_text: str, *, seen_by: Principal = HOUSE) -> Why:
    """Explain the object that a short id names, of any kind.

    If the caller cannot see the session of an envelope, only its status is returned.
    """
    kind, id_ = find(conn, id_text, seen_by=seen_by)
    match kind:
        case "envelope":
            envelope = envelopes.get(conn, id_)
            assert envelope is not None  # found by its id, in the same snapshot
            if not seen_by.sees_all and not sees_session(conn, seen_by, envelope.session):
                return _why(kind, id_, _head_of(conn, envelope), ())
            return _why(kind, id_, _head_of(conn, envelope), _of_envelope(conn, envelope))
        case "run":
            run = runs.get(conn, id_)
            assert run is not None
            return _why(kind, id_, (f"{head(run)}.",), _of_run(conn, run))
        case "approval":
            row = conn.execute(_approval, {"id": id_}).one()
            return _why(kind, id_, (_head_of_approval(row),), _of_approval(conn, row))
        case _:
            return _of_session(conn, id_)


def _why(kind: str, id_: str, head: tuple[Said, ...], facts: Sequence[Fact]) -> Why:
    told = in_order(facts)
    left_out = max(0, len(told) - FACTS_MAX)
    if left_out:
        told = (*told[: FACTS_MAX // 2], *told[len(told) - FACTS_MAX // 2 :])
    return Why(kind=kind, id=id_, head=head, facts=told, left_out=left_out)


# --- envelopes ---


def _head_of(conn: sa.Connection, envelope: Envelope) -> tuple[Said, ...]:
    name = f"{_named(envelope)} to {addressed(envelope.recipient)}"
    match envelope.status:
        case Status.DONE:
            return (f"{name}, {_ended(conn, envelope)}.",)
        case Status.PENDING:
            return (f"{name}, waits, due ", envelope.due_at, f"{_behind(conn, envelope)}.")
        case Status.CLAIMED:
            return (f"{name}, is being {'worked on' if envelope.run else 'sent'}.",)
        case Status.PARKED:
            return (f"{name}, is parked: its run waits for a person.",)


def _behind(conn: sa.Connection, envelope: Envelope) -> str:
    """Return what a due envelope waits behind."""
    if to_ms(envelope.due_at) > latest_ms(conn):
        return ""
    run = runs.open_in(conn, envelope.session) if envelope.session else None
    if run is None:
        return ""
    return f", behind run {short(run.id)}, which is {run.status}"


def _named(envelope: Envelope) -> str:
    return f"{envelope.kind} {short(envelope.id)} from {addressed(envelope.sender)}"


def _ended(conn: sa.Connection, envelope: Envelope) -> str:
    settled = envelopes.settled(conn, envelope.id)
    if settled is None:
        return f"still {envelope.status}"
    return _outcome(settled)


def _outcome(settled: Settled) -> str:
    because = quoted(settled.because)
    return f"ended {settled.outcome}" + (f": {because}" if because != settled.outcome else "")


def _door(source: str) -> str:
    """Describe how the envelope arrived, by the source within which its key is unique."""
    match source:
        case "run":
            return "by a run"
        case "house":
            return "by the house itself"
        case "retry":
            return "to be tried once more"
        case _:
            return f"by the door of {source}"


def _of_envelope(conn: sa.Connection, envelope: Envelope) -> list[Fact]:
    """List the facts from cause to result."""
    run = runs.get(conn, envelope.run) if envelope.run else None
    facts = [*_accepted(envelope), *_came_of(conn, envelope)]
    if run is not None and envelope.claimed_at is not None:
        facts.append(_claimed(envelope, run))
        facts += story(conn, run)
    facts += _deliveries(conn, envelope)
    facts += _settled(conn, envelope)
    facts += _letters_about(conn, [envelope.id, *(run.envelopes if run else ())])
    for retried in retries(conn, envelope):
        if retried.id != envelope.id:
            facts.append(
                fact(to_ms(retried.accepted_at), f"It was retried as {_named(retried)}, {_ended(conn, retried)}.")
            )
    return facts


def _accepted(envelope: Envelope) -> list[Fact]:
    at_ms = to_ms(envelope.accepted_at)
    said = f"Accepted from {addressed(envelope.sender)} for {addressed(envelope.recipient)}, {_door(envelope.source)}."
    facts = [fact(at_ms, said)]
    if envelope.deliver_at is not None and envelope.deliver_at > envelope.accepted_at:
        facts.append(fact(at_ms, "It was to wait until ", envelope.deliver_at, "."))
    if envelope.expires_at is not None:
        facts.append(fact(at_ms, "It was worth nothing after ", envelope.expires_at, "."))
    return facts


def _came_of(conn: sa.Connection, envelope: Envelope) -> list[Fact]:
    """List what it replies to or retries, and what in the server wrote it."""
    at_ms = to_ms(envelope.accepted_at)
    facts: list[Fact] = []
    subject = envelopes.get(conn, envelope.reply_to) if envelope.reply_to else None
    if subject is not None:
        verb = (
            "answers" if envelope.kind is Kind.ANSWER else "is about" if envelope.kind is Kind.NOTICE else "replies to"
        )
        facts.append(fact(at_ms, f"It {verb} {_named(subject)}, {_ended(conn, subject)}."))
    elif envelope.reply_to and was_purged(conn, envelope.reply_to):
        facts.append(fact(at_ms, f"It replies to {short(envelope.reply_to)}, which was purged since."))
    retried = envelopes.get(conn, envelope.retry_of) if envelope.retry_of else None
    if retried is not None:
        facts.append(fact(at_ms, f"It retries {_named(retried)}, {_ended(conn, retried)}."))
    if envelope.source == "run":
        run = runs.get(conn, envelope.key.partition("/")[0])
        if run is not None:
            facts.append(fact(at_ms, f"It was written by {head(run)}."))
    if envelope.context.approval:
        facts.append(fact(at_ms, f"It is about approval {short(envelope.context.approval)}."))
    return facts


def _claimed(envelope: Envelope, run: Run, *, name: str = "it") -> Fact:
    assert envelope.claimed_at is not None
    waited = span(to_ms(envelope.claimed_at) - to_ms(envelope.due_at))
    return fact(
        to_ms(envelope.claimed_at), f"Run {short(run.id)} of {run.agent} took {name}, which had waited {waited}."
    )


def _deliveries(conn: sa.Connection, envelope: Envelope) -> list[Fact]:
    facts: list[Fact] = []
    for attempt in deliveries.of(conn, envelope.id):
        name = f"Delivery of {short(envelope.id)}, attempt {attempt.attempt}"
        if attempt.closed_ms is None:
            facts.append(fact(attempt.opened_ms, f"{name}: under way."))
            continue
        came = f"taken as {quoted(attempt.receipt)}" if attempt.receipt else f"{attempt.error_kind}: {attempt.error}"
        facts.append(fact(attempt.closed_ms, f"{name}: {attempt.state}, {quoted(came)}."))
    return facts


def _settled(conn: sa.Connection, envelope: Envelope, *, name: str = "It") -> list[Fact]:
    settled = envelopes.settled(conn, envelope.id)
    if settled is None:
        return []
    at_ms = to_ms(settled.at)
    facts = [fact(at_ms, f"{name} {_outcome(settled)}.")]
    answer = envelopes.get(conn, settled.answer) if settled.answer else None
    if answer is not None:
        said = f"The answer is {short(answer.id)} to {addressed(answer.recipient)}, {_ended(conn, answer)}."
        facts += [fact(at_ms, said), *_deliveries(conn, answer)]
    return facts


def _letters_about(conn: sa.Connection, subjects: Sequence[str]) -> list[Fact]:
    """List the notices the server wrote about these envelopes, their recipients, and whether they arrived."""
    facts: list[Fact] = []
    for subject in dict.fromkeys(subjects):
        for purpose in PURPOSES:
            letter = envelopes.get(conn, derived(subject, purpose))
            if letter is None:
                continue
            told = f"{addressed(letter.recipient)} was told in {letter.kind} {short(letter.id)}: {quoted(letter.text)}"
            facts.append(fact(to_ms(letter.accepted_at), told))
            facts += _deliveries(conn, letter)
    return facts


# --- runs, approvals, sessions ---


def _of_run(conn: sa.Connection, run: Run) -> list[Fact]:
    held = [envelope for id_ in run.envelopes if (envelope := envelopes.get(conn, id_)) is not None]
    facts: list[Fact] = []
    for envelope in held:
        said = f"Accepted {_named(envelope)}, {_door(envelope.source)}."
        facts.append(fact(to_ms(envelope.accepted_at), said))
        if envelope.claimed_at is not None:
            facts.append(_claimed(envelope, run, name=short(envelope.id)))
    facts += story(conn, run)
    if gone := [short(id_) for id_ in run.envelopes if was_purged(conn, id_)]:
        facts.append(fact(to_ms(run.started_at), f"What it was given was purged since: {listed(gone)}."))
    for envelope in held:
        facts += _settled(conn, envelope, name=short(envelope.id))
    return [*facts, *_letters_about(conn, run.envelopes)]


def _head_of_approval(row: sa.Row[Any]) -> str:
    by = f" by {row.decided_by}" if row.decided_by else ""
    return f"approval {short(row.id)} in session {short(row.session)}, {ApprovalState(row.state)}{by}."


def _of_approval(conn: sa.Connection, row: sa.Row[Any]) -> list[Fact]:
    decision = envelopes.by_key(conn, f"person:{row.decided_by}", f"{row.id}/decision") if row.decided_by else None
    facts = _of_envelope(conn, decision) if decision else []
    run = runs.get(conn, row.run)
    # A decision in time is read by the run that asked. A late one has its own run.
    return [*(_of_run(conn, run) if run else approval_facts(conn, row)), *facts]


def _of_session(conn: sa.Connection, id_: str) -> Why:
    session = sessions.get(conn, id_)
    assert session is not None
    origin = f"{session.origin.kind} {session.origin.key}"
    facts = [fact(to_ms(session.created_at), f"Session {short(id_)} of {session.agent} was opened for {origin}.")]
    ids = [
        row.run
        for row in conn.execute(_last_records, {"session": id_, "after": session.record_seq - RECORDS_LOOKED_AT_MAX})
    ]
    for run_id in reversed(list(dict.fromkeys(ids))[:RUNS_SHOWN_MAX]):
        run = runs.get(conn, run_id)
        if run is None:
            continue
        facts.append(
            fact(
                to_ms(run.started_at), f"Run {short(run.id)} started, over {listed([short(e) for e in run.envelopes])}."
            )
        )
        if run.ended_at is not None:
            ended = f"{run.status}: {quoted(run.error)}" if run.error else str(run.status)
            facts.append(fact(to_ms(run.ended_at), f"Run {short(run.id)} {ended}."))
    after = session.record_seq - RESETS_LOOKED_FOR_MAX
    facts += [afresh(*row) for row in conn.execute(_last_resets, {"session": id_, "after": after})]
    waiting = conn.execute(_waiting, {"session": id_}).scalar_one()
    run = runs.open_in(conn, id_)
    now = f"run {short(run.id)} is {run.status}" if run else "no run is open"
    head = (
        f"session {short(id_)} of {session.agent} for {origin}, {session.wakefulness}: {now}, {waiting} envelopes wait."
    )
    if session.refresh:
        head += f" The next run begins afresh: {quoted(session.refresh)}."
    return _why("session", id_, (head,), facts)
