"""Explain what happened to an envelope, run, approval or session, each cause before its effect.

All facts are read from the store. No model is called.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.approval import ApprovalState
from retinue.domain.envelope import Envelope, EnvelopeKind, EnvelopeStatus, Outcome, SettledOutcome
from retinue.domain.ids import derive_id, short_id
from retinue.domain.principal import SERVER_PRINCIPAL, Principal
from retinue.domain.run import Run
from retinue.domain.times import to_ms
from retinue.store.channels import deliveries
from retinue.store.core import tables as t
from retinue.store.core.lookup import find_by_short_id
from retinue.store.core.row_visibility import can_see_session
from retinue.store.core.transaction import latest_ms
from retinue.store.envelopes import envelopes
from retinue.store.envelopes.dead_letters import list_retries
from retinue.store.maintenance.purge import was_purged
from retinue.store.runs import runs
from retinue.store.runs.explanation_facts import (
    FACTS_MAX,
    Fact,
    TextPart,
    build_fact,
    excerpt,
    format_address,
    format_duration,
    join_names,
    render,
    sort_facts,
)
from retinue.store.runs.run_timeline import (
    build_reset_fact,
    describe_run,
    list_approval_facts,
    list_run_facts,
    select_resets,
)
from retinue.store.sessions import sessions
from retinue.text.quantity import format_quantity

RECORDS_SCANNED_MAX = 200
RUNS_SHOWN_MAX = 20
RESETS_SHOWN_MAX = 20
RESET_RECORDS_SCANNED_MAX = 10_000  # newest records that are searched for resets
NOTICE_PURPOSES = (*(str(outcome) for outcome in Outcome), "overflow", "left-out")
"""Purposes of the notices that the server sends about an envelope. The id of a notice is derived
from the envelope and the purpose."""

_b = sa.bindparam
_approval = sa.select(t.approvals).where(t.approvals.c.id == _b("id"))
_last_records = (
    sa.select(t.records.c.run)
    .where(t.records.c.session == _b("session"), t.records.c.seq > _b("after"), t.records.c.run.is_not(None))
    .order_by(t.records.c.seq.desc())
)
_last_resets = (
    select_resets.where(t.records.c.seq > _b("after")).order_by(t.records.c.seq.desc()).limit(RESETS_SHOWN_MAX)
)
_count_pending = sa.select(sa.func.count()).where(
    t.envelopes.c.session == _b("session"), t.envelopes.c.status == t.PENDING
)


class Explanation(Struct, frozen=True, kw_only=True):
    kind: str
    id: str
    head: tuple[TextPart, ...]  # what the object is, and its status
    facts: tuple[Fact, ...]  # newest last
    left_out: int = 0  # number of facts that were left out in the middle

    def format_lines(self, zone: ZoneInfo) -> list[str]:
        """Return the explanation as lines for people: first the object and its status, then each fact with its time."""
        lines = [each.format_line(zone) for each in self.facts]
        if self.left_out:
            lines.insert(FACTS_MAX // 2, f"({self.left_out} more in between)")
        return [render(self.head, zone), *lines]


def explain(conn: sa.Connection, id_text: str, *, seen_by: Principal = SERVER_PRINCIPAL) -> Explanation:
    """Explain the envelope, run, approval or session with this short id.

    If the caller cannot see the session of an envelope, the explanation contains only the status of
    the envelope.
    """
    kind, id_ = find_by_short_id(conn, id_text, seen_by=seen_by)
    match kind:
        case "envelope":
            envelope = envelopes.get(conn, id_)
            assert envelope is not None  # found by its id, in the same snapshot
            if not seen_by.sees_everything and not can_see_session(conn, seen_by, envelope.session):
                return _build_explanation(kind, id_, _describe_status(conn, envelope), ())
            return _build_explanation(kind, id_, _describe_status(conn, envelope), _list_envelope_facts(conn, envelope))
        case "run":
            run = runs.get(conn, id_)
            assert run is not None
            return _build_explanation(kind, id_, (f"{describe_run(run)}.",), _list_run_facts(conn, run))
        case "approval":
            row = conn.execute(_approval, {"id": id_}).one()
            return _build_explanation(kind, id_, (_describe_approval(row),), _list_approval_facts(conn, row))
        case _:
            return _explain_session(conn, id_)


def _build_explanation(kind: str, id_: str, head: tuple[TextPart, ...], facts: Sequence[Fact]) -> Explanation:
    shown = sort_facts(facts)
    left_out = max(0, len(shown) - FACTS_MAX)
    if left_out:
        shown = (*shown[: FACTS_MAX // 2], *shown[len(shown) - FACTS_MAX // 2 :])
    return Explanation(kind=kind, id=id_, head=head, facts=shown, left_out=left_out)


# --- envelopes ---


def _describe_status(conn: sa.Connection, envelope: Envelope) -> tuple[TextPart, ...]:
    name = f"{_describe_envelope(envelope)} to {format_address(envelope.recipient)}"
    match envelope.status:
        case EnvelopeStatus.DONE:
            return (f"{name}, {_describe_end(conn, envelope)}.",)
        case EnvelopeStatus.PENDING:
            return (f"{name}, waiting, due ", envelope.due_at, f"{_describe_blocker(conn, envelope)}.")
        case EnvelopeStatus.CLAIMED:
            return (f"{name}, being {'worked on' if envelope.run else 'sent'}.",)
        case EnvelopeStatus.SUSPENDED:
            return (f"{name}, suspended (its run is waiting for a person).",)


def _describe_blocker(conn: sa.Connection, envelope: Envelope) -> str:
    """Describe the run that a due envelope is waiting for. Returns an empty string if there is none."""
    if to_ms(envelope.due_at) > latest_ms(conn):
        return ""
    run = runs.get_open(conn, envelope.session) if envelope.session else None
    if run is None:
        return ""
    return f", behind run {short_id(run.id)}, which is {run.status}"


def _describe_envelope(envelope: Envelope) -> str:
    return f"{envelope.kind} {short_id(envelope.id)} from {format_address(envelope.sender)}"


def _describe_end(conn: sa.Connection, envelope: Envelope) -> str:
    settled = envelopes.get_outcome(conn, envelope.id)
    if settled is None:
        return f"still {envelope.status}"
    return _describe_outcome(settled)


def _describe_outcome(settled: SettledOutcome) -> str:
    because = excerpt(settled.because)
    return str(settled.outcome) if because == settled.outcome else f"{settled.outcome} ({because})"


def _describe_source(envelope: Envelope) -> str:
    """Describe how an envelope was created, from its field `source`. Empty if its sender sent it directly."""
    match envelope.source:
        case "run":
            return ", by a run"
        case "server":
            return ", by the server"
        case "retry":
            return ", as a retry"
        case source:
            return "" if source == str(envelope.sender) else f", through {source}"


def _list_envelope_facts(conn: sa.Connection, envelope: Envelope) -> list[Fact]:
    """List the facts about an envelope, each cause before its effect."""
    run = runs.get(conn, envelope.run) if envelope.run else None
    facts = [*_acceptance_facts(envelope), *_cause_facts(conn, envelope)]
    if run is not None and envelope.claimed_at is not None:
        facts.append(_claim_fact(envelope, run))
        facts += list_run_facts(conn, run)
    facts += _delivery_facts(conn, envelope)
    facts += _outcome_facts(conn, envelope)
    facts += _notice_facts(conn, [envelope.id, *(run.envelopes if run else ())])
    for retried in list_retries(conn, envelope):
        if retried.id != envelope.id:
            facts.append(
                build_fact(
                    to_ms(retried.accepted_at),
                    f"It was retried as {_describe_envelope(retried)}, {_describe_end(conn, retried)}.",
                )
            )
    return facts


def _acceptance_facts(envelope: Envelope) -> list[Fact]:
    at_ms = to_ms(envelope.accepted_at)
    sender, recipient = format_address(envelope.sender), format_address(envelope.recipient)
    facts = [build_fact(at_ms, f"Accepted from {sender} for {recipient}{_describe_source(envelope)}.")]
    if envelope.deliver_at is not None and envelope.deliver_at > envelope.accepted_at:
        facts.append(build_fact(at_ms, "It was to be delivered at ", envelope.deliver_at, "."))
    if envelope.expires_at is not None:
        facts.append(build_fact(at_ms, "It expires at ", envelope.expires_at, "."))
    return facts


def _cause_facts(conn: sa.Connection, envelope: Envelope) -> list[Fact]:
    """List facts about the origin of an envelope: what it replies to or retries, and its run or approval."""
    at_ms = to_ms(envelope.accepted_at)
    facts: list[Fact] = []
    subject = envelopes.get(conn, envelope.reply_to) if envelope.reply_to else None
    if subject is not None:
        verb = (
            "answers"
            if envelope.kind is EnvelopeKind.ANSWER
            else "is about"
            if envelope.kind is EnvelopeKind.NOTICE
            else "replies to"
        )
        facts.append(build_fact(at_ms, f"It {verb} {_describe_envelope(subject)}, {_describe_end(conn, subject)}."))
    elif envelope.reply_to and was_purged(conn, envelope.reply_to):
        facts.append(build_fact(at_ms, f"It replies to {short_id(envelope.reply_to)}, which was purged."))
    retried = envelopes.get(conn, envelope.retry_of) if envelope.retry_of else None
    if retried is not None:
        facts.append(build_fact(at_ms, f"It retries {_describe_envelope(retried)}, {_describe_end(conn, retried)}."))
    if envelope.source == "run":
        run = runs.get(conn, envelope.idempotency_key.partition("/")[0])
        if run is not None:
            facts.append(build_fact(at_ms, f"It was written by {describe_run(run)}."))
    if envelope.context.approval:
        facts.append(build_fact(at_ms, f"It is about approval {short_id(envelope.context.approval)}."))
    return facts


def _claim_fact(envelope: Envelope, run: Run, *, name: str = "it") -> Fact:
    assert envelope.claimed_at is not None
    waited = format_duration(to_ms(envelope.claimed_at) - to_ms(envelope.due_at))
    sentence = f"Run {short_id(run.id)} of {run.agent} claimed {name} after it had waited {waited}."
    return build_fact(to_ms(envelope.claimed_at), sentence)


def _delivery_facts(conn: sa.Connection, envelope: Envelope) -> list[Fact]:
    facts: list[Fact] = []
    for attempt in deliveries.list_attempts(conn, envelope.id):
        name = f"Delivery of {short_id(envelope.id)}, attempt {attempt.attempt}"
        if attempt.closed_ms is None:
            facts.append(build_fact(attempt.opened_ms, f"{name}: in progress."))
            continue
        result = (
            f"accepted as {excerpt(attempt.receipt)}" if attempt.receipt else f"{attempt.error_kind}: {attempt.error}"
        )
        facts.append(build_fact(attempt.closed_ms, f"{name}: {attempt.state}, {excerpt(result)}."))
    return facts


def _outcome_facts(conn: sa.Connection, envelope: Envelope, *, of: str = "") -> list[Fact]:
    settled = envelopes.get_outcome(conn, envelope.id)
    if settled is None:
        return []
    at_ms = to_ms(settled.at)
    subject = f"Outcome of {of}" if of else "Outcome"
    facts = [build_fact(at_ms, f"{subject}: {_describe_outcome(settled)}.")]
    answer = envelopes.get(conn, settled.answer) if settled.answer else None
    if answer is not None:
        name = f"answer {short_id(answer.id)} to {format_address(answer.recipient)}"
        sentence = f"Its {name}: {_describe_end(conn, answer)}."
        facts += [build_fact(at_ms, sentence), *_delivery_facts(conn, answer)]
    return facts


def _notice_facts(conn: sa.Connection, subjects: Sequence[str]) -> list[Fact]:
    """List the notices that the server sent about these envelopes: to whom, and whether they arrived."""
    facts: list[Fact] = []
    for subject in dict.fromkeys(subjects):
        for purpose in NOTICE_PURPOSES:
            notice = envelopes.get(conn, derive_id(subject, purpose))
            if notice is None:
                continue
            name = f"{notice.kind} {short_id(notice.id)}"
            sentence = f"{format_address(notice.recipient)} was notified in {name}: {excerpt(notice.text)}"
            facts.append(build_fact(to_ms(notice.accepted_at), sentence))
            facts += _delivery_facts(conn, notice)
    return facts


# --- runs, approvals, sessions ---


def _list_run_facts(conn: sa.Connection, run: Run) -> list[Fact]:
    held = [envelope for id_ in run.envelopes if (envelope := envelopes.get(conn, id_)) is not None]
    facts: list[Fact] = []
    for envelope in held:
        sentence = f"Accepted {_describe_envelope(envelope)}{_describe_source(envelope)}."
        facts.append(build_fact(to_ms(envelope.accepted_at), sentence))
        if envelope.claimed_at is not None:
            facts.append(_claim_fact(envelope, run, name=short_id(envelope.id)))
    facts += list_run_facts(conn, run)
    if gone := [short_id(id_) for id_ in run.envelopes if was_purged(conn, id_)]:
        facts.append(build_fact(to_ms(run.started_at), f"Its envelopes were purged: {join_names(gone)}."))
    for envelope in held:
        facts += _outcome_facts(conn, envelope, of=short_id(envelope.id))
    return [*facts, *_notice_facts(conn, run.envelopes)]


def _describe_approval(row: sa.Row[Any]) -> str:
    by = f" by {row.decided_by}" if row.decided_by else ""
    return f"approval {short_id(row.id)} in session {short_id(row.session)}, {ApprovalState(row.state)}{by}."


def _list_approval_facts(conn: sa.Connection, row: sa.Row[Any]) -> list[Fact]:
    decision = envelopes.get_by_key(conn, f"person:{row.decided_by}", f"{row.id}/decision") if row.decided_by else None
    facts = _list_envelope_facts(conn, decision) if decision else []
    run = runs.get(conn, row.run)
    # A decision made in time is read by the run that asked. A late decision starts a separate run.
    return [*(_list_run_facts(conn, run) if run else list_approval_facts(conn, row)), *facts]


def _explain_session(conn: sa.Connection, id_: str) -> Explanation:
    session = sessions.get(conn, id_)
    assert session is not None
    origin = f"{session.origin.kind} {session.origin.key}"
    facts = [
        build_fact(to_ms(session.created_at), f"Session {short_id(id_)} of {session.agent} was opened for {origin}.")
    ]
    ids = [
        row.run
        for row in conn.execute(_last_records, {"session": id_, "after": session.record_seq - RECORDS_SCANNED_MAX})
    ]
    for run_id in reversed(list(dict.fromkeys(ids))[:RUNS_SHOWN_MAX]):
        run = runs.get(conn, run_id)
        if run is None:
            continue
        facts.append(
            build_fact(
                to_ms(run.started_at),
                f"Run {short_id(run.id)} started with {join_names([short_id(e) for e in run.envelopes])}.",
            )
        )
        if run.ended_at is not None:
            ended = f"{run.status}: {excerpt(run.error)}" if run.error else str(run.status)
            facts.append(build_fact(to_ms(run.ended_at), f"Run {short_id(run.id)} {ended}."))
    after = session.record_seq - RESET_RECORDS_SCANNED_MAX
    facts += [build_reset_fact(*row) for row in conn.execute(_last_resets, {"session": id_, "after": after})]
    waiting = conn.execute(_count_pending, {"session": id_}).scalar_one()
    run = runs.get_open(conn, id_)
    now = f"run {short_id(run.id)} is {run.status}" if run else "no run is open"
    head = (
        f"session {short_id(id_)} of {session.agent} for {origin}, {session.activity}: {now}, "
        f"{format_quantity(waiting, 'envelope')} waiting."
    )
    if session.reset_because:
        head += f" The next run resets the context: {excerpt(session.reset_because)}."
    return _build_explanation("session", id_, (head,), facts)
