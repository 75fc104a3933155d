"""The equations of the ledger. Most are SQL queries for violations. An equation holds if none are found.

The equations hold after every commit, even while the server is busy, so every finding is a fault.
The database compares and counts, and returns only violations. Python reads only open rows, which
are few, and the records, because only decoding shows whether a record is readable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.sql.selectable import GenerativeSelect

from retinue.domain.budget import date_of_day_number
from retinue.domain.ids import short_id
from retinue.domain.model import ModelRef
from retinue.domain.times import from_ms
from retinue.store.core import tables as t
from retinue.store.envelopes.envelopes import MS_PER_DAY
from retinue.store.runs import budget_reservations
from retinue.store.sessions import records
from retinue.text.quantity import format_quantity

AT_PARAMETER = "at"  # the name of the parameter for the current time

_e, _o, _s, _r, _d, _m = t.envelopes, t.outcomes, t.sessions, t.runs, t.deliveries, t.model_calls
_ids_decoder = msgspec.json.Decoder(tuple[str, ...])


class LedgerFinding(NamedTuple):
    """A violation of an equation. `id` is that of an envelope, run, session or other object, or the name of a sum."""

    id: str
    because: str


Violations = GenerativeSelect | Callable[[sa.Connection], Iterator[LedgerFinding]]


class LedgerRule(NamedTuple):
    name: str
    sentence: str
    violations: tuple[Violations, ...]


def _finding_columns(id_: sa.ColumnElement[str], because: str) -> tuple[sa.Label[str], sa.Label[str]]:
    return id_.label("id"), sa.literal(because).label("because")


def _finding_columns_by_case(
    id_: sa.ColumnElement[str], *cases: tuple[sa.ColumnElement[bool], str], otherwise: str
) -> tuple[sa.Label[str], sa.Label[str]]:
    says = sa.case(*((when, sa.literal(says)) for when, says in cases), else_=sa.literal(otherwise))
    return id_.label("id"), says.label("because")


# --- counted: a lost row is still counted, and a row that was inserted by hand is not counted ---

_day = (_e.c.accepted_ms // sa.literal_column(str(MS_PER_DAY), sa.BigInteger)).label("day")
_counts = sa.union_all(
    sa.select(
        t.accepted_counts.c.day,
        t.accepted_counts.c.source,
        (t.accepted_counts.c.accepted - t.accepted_counts.c.purged).label("counted"),
    ),
    sa.select(_day, _e.c.source, -sa.func.count()).group_by(_day, _e.c.source),
).subquery()
_difference = sa.func.sum(_counts.c.counted)
_differences_by_day = (
    sa.select(_counts.c.day, _counts.c.source, _difference.label("off"))
    .group_by(_counts.c.day, _counts.c.source)
    .having(_difference != 0)
)


def _find_miscounted(conn: sa.Connection) -> Iterator[LedgerFinding]:
    for row in conn.execute(_differences_by_day):
        day = from_ms(row.day * MS_PER_DAY).date()
        what = "were counted but do not exist" if row.off > 0 else "exist but were not counted"
        yield LedgerFinding(f"{row.source} on {day}", f"{abs(row.off)} {what}")


# --- settled ---

_done_and_settled_differ = (
    sa.select(
        *_finding_columns_by_case(
            _e.c.id,
            (_e.c.status == t.DONE, "done, but it has no outcome"),
            otherwise="it has an outcome, but is not done",
        )
    )
    .outerjoin_from(_e, _o, _o.c.envelope == _e.c.id)
    .where((_e.c.status == t.DONE) == _o.c.envelope.is_(None))
)
_outcome_without_envelope = sa.select(*_finding_columns(_o.c.envelope, "it has an outcome, but does not exist")).where(
    ~sa.exists().where(_e.c.id == _o.c.envelope)
)

# --- answered: a batch has one answer, which replies to its last envelope. So an answer is correct if it replies to
# an envelope that names this answer ---

_answer, _question, _back = _e.alias("answer"), _e.alias("question"), _o.alias("back")
_ANSWERED = t.sql_literal("'answered'")
_unanswered = (
    sa.select(
        *_finding_columns_by_case(
            _o.c.envelope,
            (_o.c.answer.is_(None), "answered, but with neither an answer nor a silent mark"),
            (_answer.c.id.is_(None), "answered, but its answer does not exist"),
            otherwise="answered, but its answer does not reply to it",
        )
    )
    .select_from(
        _o.outerjoin(_answer, _answer.c.id == _o.c.answer).outerjoin(_back, _back.c.envelope == _answer.c.reply_to)
    )
    .where(
        _o.c.outcome == _ANSWERED,
        sa.or_(_o.c.answer.is_not(None), _o.c.silent == sa.false()),
        sa.or_(_back.c.answer.is_(None), _back.c.answer != _o.c.answer),
    )
)
_unexpected_answer = sa.select(
    *_finding_columns(_o.c.envelope, "not answered, but it has an answer or a silent mark")
).where(_o.c.outcome != _ANSWERED, sa.or_(_o.c.answer.is_not(None), _o.c.silent == sa.true()))
_stray_answer = (
    sa.select(*_finding_columns(_answer.c.id, "it replies to an envelope whose answer is another one or none"))
    .select_from(
        _answer.join(_question, _question.c.id == _answer.c.reply_to).outerjoin(
            _back, _back.c.envelope == _question.c.id
        )
    )
    .where(
        # Concatenated with an empty string, so that SQLite reads the rows in order: with the index it takes twice as
        # long.
        _answer.c.source + "" == t.sql_literal("'run'"),
        _answer.c.kind == t.sql_literal("'answer'"),
        sa.or_(
            _question.c.status != t.DONE,
            # Without any outcome it violates `settled`, which is another equation.
            sa.and_(_back.c.envelope.is_not(None), sa.func.coalesce(_back.c.answer, "") != _answer.c.id),
        ),
    )
)

# --- delivered ---

_DELIVERED = t.sql_literal("'delivered'")
_SENDING, _SENT = t.sql_literal("'sending'"), t.sql_literal("'sent'")
_undelivered = sa.select(
    *_finding_columns(_o.c.envelope, "delivered, but neither in an inbox nor sent with a receipt")
).where(
    _o.c.outcome == _DELIVERED,
    ~sa.exists().where(t.inbox.c.envelope == _o.c.envelope),
    ~sa.exists().where(_d.c.envelope == _o.c.envelope, _d.c.state == _SENT, _d.c.receipt.is_not(None)),
)
_in_inbox_undelivered = (
    sa.select(*_finding_columns(t.inbox.c.envelope, "in an inbox, but not delivered"))
    .outerjoin_from(t.inbox, _o, _o.c.envelope == t.inbox.c.envelope)
    .where(sa.func.coalesce(_o.c.outcome, "") != _DELIVERED)
)
_sent_undelivered = (
    sa.select(*_finding_columns(_d.c.envelope, "sent, but not delivered"))
    .outerjoin_from(_d, _o, _o.c.envelope == _d.c.envelope)
    .where(_d.c.state == _SENT, sa.func.coalesce(_o.c.outcome, "") != _DELIVERED)
)

# --- held ---

_attempts = (
    sa.select(_d.c.envelope, sa.func.count().label("n")).where(_d.c.state == _SENDING).group_by(_d.c.envelope)
).subquery()
_held_envelopes = (
    sa.select(_e.c.id, _e.c.status, _e.c.run, _r.c.status.label("run_status"), _attempts.c.n.label("sending"))
    .select_from(_e.outerjoin(_r, _r.c.id == _e.c.run).outerjoin(_attempts, _attempts.c.envelope == _e.c.id))
    .where(_e.c.status.in_(t.HELD_STATUSES))
)
_open_runs_with_envelopes = sa.select(_r.c.id, _r.c.envelopes).where(_r.c.status.in_(t.OPEN_RUN_STATUSES))
_sent_unclaimed = (
    sa.select(*_finding_columns(_d.c.envelope, "it is being sent, but is not claimed"))
    .outerjoin_from(_d, _e, _e.c.id == _d.c.envelope)
    .where(_d.c.state == _SENDING, sa.func.coalesce(_e.c.status, "") != t.sql_literal("'claimed'"))
)
_RUN_STATUS = {"claimed": "running", "suspended": "suspended"}


def _find_not_held(conn: sa.Connection) -> Iterator[LedgerFinding]:
    """Check that each claimed or suspended envelope belongs to exactly one open run or delivery.

    This is checked in Python, because a run stores the ids of its envelopes as JSON.
    """
    held_by: dict[str, set[str]] = {}
    for row in conn.execute(_held_envelopes):
        runs = int(row.run_status == _RUN_STATUS[row.status])
        sending: int = row.sending or 0 if row.status == "claimed" else 0
        if runs + sending != 1:
            deliveries = format_quantity(sending, "open delivery", plural="open deliveries")
            held = f"held by {format_quantity(runs, 'open run')} and {deliveries}"
            yield LedgerFinding(row.id, f"{row.status}, but {held}")
        if runs:
            held_by.setdefault(row.run, set()).add(row.id)
    for row in conn.execute(_open_runs_with_envelopes):
        try:
            named = set(_ids_decoder.decode(row.envelopes))
        except (ValueError, msgspec.MsgspecError):
            yield LedgerFinding(row.id, "the list of its envelopes cannot be decoded")
            continue
        held = held_by.get(row.id, set[str]())
        for id_ in sorted(named ^ held):
            what = "lists it, but does not hold it" if id_ in named else "holds it, but does not list it"
            yield LedgerFinding(id_, f"run {short_id(row.id)} {what}")


# --- money ---

_has_open_step = sa.exists().where(
    t.steps.c.run == _m.c.run,
    t.steps.c.turn == _m.c.turn,
    t.steps.c.call_index == _m.c.call_index,
    t.steps.c.attempt == _m.c.attempt,
    t.steps.c.state == t.sql_literal("'open'"),
)
_unbalanced = sa.select(
    *_finding_columns(_m.c.run, "the reserved amount is not the sum of settled, released and held")
).where(_m.c.reserved_microusd != _m.c.settled_microusd + _m.c.released_microusd + _m.c.held_microusd)
_held_without_step = sa.select(*_finding_columns(_m.c.run, "money is held for a step that is not open")).where(
    _m.c.held_microusd != 0, ~_has_open_step
)

# The sums of a day change with its calls: the difference between the two must be zero for each key.

_is_reported = sa.case((_m.c.estimated == sa.false(), 1), else_=0)
_call_sums: dict[str, sa.ColumnElement[int]] = {
    "calls": sa.func.count(),
    **{name: sa.func.sum(_m.c[name]) for name in ("settled_microusd", "held_microusd")},
    **{name: sa.func.sum(_m.c[name] * _is_reported) for name in budget_reservations.TOKEN_KINDS},
}
_summed = sa.union_all(
    sa.select(
        *(t.spending.c[name] for name in budget_reservations.SUM_KEY), *(t.spending.c[name] for name in _call_sums)
    ),
    sa.select(
        *(_m.c[name] for name in budget_reservations.SUM_KEY),
        *((-expression).label(name) for name, expression in _call_sums.items()),
    ).group_by(*(_m.c[name] for name in budget_reservations.SUM_KEY)),
).subquery()
_missummed_keys = (
    sa.select(_summed.c.day, _summed.c.agent, _summed.c.provider, _summed.c.model)
    .group_by(*(_summed.c[name] for name in budget_reservations.SUM_KEY))
    .having(sa.or_(*(sa.func.sum(_summed.c[name]) != 0 for name in _call_sums)))
)


def _find_missummed(conn: sa.Connection) -> Iterator[LedgerFinding]:
    for row in conn.execute(_missummed_keys):
        model = ModelRef(row.provider, row.model)
        because = f"the daily sum of {row.agent} for {model} differs from the sum of its calls"
        yield LedgerFinding(f"{date_of_day_number(row.day)}", because)


# --- done ---

_open_runs = sa.select(_r.c.id).where(_r.c.status.in_(t.OPEN_RUN_STATUSES))
_inconsistently_done = sa.select(
    *_finding_columns_by_case(
        _e.c.id,
        (_e.c.status != t.DONE, "it has a settlement time, but is not done"),
        (_e.c.settled_ms.is_(None), "done, but without a settlement time"),
        otherwise="done, but in an open run",
    )
).where(
    sa.or_(
        sa.and_(_e.c.status == t.DONE, _e.c.settled_ms.is_(None)),
        sa.and_(_e.c.status != t.DONE, _e.c.settled_ms.is_not(None)),
        sa.and_(_e.c.status == t.DONE, _e.c.run.in_(_open_runs)),
    )
)

# --- active. The reverse is no fault: a session may be active without work until its lane checks again ---

_SLEEPING = t.sql_literal("'sleeping'")
_suspended = _r.alias("suspended")
_asleep_while_running = (
    sa.select(*_finding_columns(_s.c.id, "it is inactive, but one of its runs is running"))
    .join_from(_r, _s, _s.c.id == _r.c.session)
    .where(_r.c.status == t.sql_literal("'running'"), _s.c.activity == _SLEEPING)
)
_asleep_with_due_envelope = (
    sa.select(*_finding_columns(_s.c.id, "it is inactive, but an envelope is due in it"))
    .select_from(
        _e.join(_s, _s.c.id == _e.c.session).outerjoin(
            _suspended, sa.and_(_suspended.c.session == _s.c.id, _suspended.c.status == t.sql_literal("'suspended'"))
        )
    )
    .where(
        _e.c.status == t.PENDING,
        _e.c.due_ms <= sa.bindparam(AT_PARAMETER),
        _s.c.activity == _SLEEPING,
        # The scheduler finds envelopes with a delivery time, whether or not the session is active.
        sa.or_(_e.c.deliver_ms.is_(None), _e.c.deliver_ms <= _e.c.accepted_ms),
        # Silent envelopes wait behind a suspended run, and so do results that the run reads together with others.
        sa.or_(
            _suspended.c.id.is_(None),
            sa.and_(
                _e.c.silent == sa.false(),
                ~sa.exists().where(t.delegations.c.result == _e.c.id, t.delegations.c.wait_ms.is_not(None)),
            ),
        ),
    )
    .distinct()
)

# --- numbered ---

_history = (
    sa.select(
        t.records.c.session,
        sa.func.count().label("n"),
        sa.func.min(t.records.c.seq).label("first"),
        sa.func.max(t.records.c.seq).label("last"),
    )
    .group_by(t.records.c.session)
    .subquery()
)
_misnumbered = (
    sa.select(
        *_finding_columns_by_case(
            _history.c.session,
            (_s.c.id.is_(None), "it has records, but does not exist"),
            (_s.c.record_seq != _history.c.last, "its record counter differs from its last record"),
            otherwise="records are missing",
        )
    )
    .outerjoin_from(_history, _s, _s.c.id == _history.c.session)
    .where(
        sa.or_(
            _s.c.id.is_(None),
            _s.c.record_seq != _history.c.last,
            _history.c.first != 1,
            _history.c.n != _history.c.last,
        )
    )
)
_without_records = sa.select(*_finding_columns(_s.c.id, "it has no records at all")).where(
    ~sa.exists().where(t.records.c.session == _s.c.id)
)

# --- one run per session, steps, counters, readable records ---

_two_runs = (
    sa.select(*_finding_columns(_r.c.session, "it has more than one open run"))
    .where(_r.c.status.in_(t.OPEN_RUN_STATUSES))
    .group_by(_r.c.session)
    .having(sa.func.count() > 1)
)
_left_open = (
    sa.select(*_finding_columns(t.steps.c.run, "it has ended, but one of its steps is open"))
    .join_from(t.steps, _r, _r.c.id == t.steps.c.run)
    .where(t.steps.c.state == t.sql_literal("'open'"), _r.c.status.not_in(t.OPEN_RUN_STATUSES))
)
_last_envelope = sa.select(sa.func.coalesce(sa.func.max(_e.c.seq), 0)).scalar_subquery()
_last_event = sa.select(sa.func.coalesce(sa.func.max(t.events.c.seq), 0)).scalar_subquery()
_envelope_counter = sa.select(
    *_finding_columns(sa.literal("envelope_seq"), "it is not the number of the last envelope")
).where(t.counters.c.envelope_seq != _last_envelope)
_event_counter = sa.select(*_finding_columns(sa.literal("event_seq"), "it is not the number of the last event")).where(
    t.counters.c.event_seq != _last_event
)


_occurrences = t.occurrences
_has_open_occurrence = sa.exists().where(
    _occurrences.c.schedule == t.schedules.c.id,
    _occurrences.c.state.in_(t.OPEN_OCCURRENCE_STATES),
    _occurrences.c.made_by == t.sql_literal("'clock'"),
)
_schedule_without_occurrence = sa.select(
    *_finding_columns(t.schedules.c.id, "it is enabled, but has no next occurrence")
).where(t.schedules.c.enabled == sa.true(), ~_has_open_occurrence)
_occurrence_without_envelope = (
    sa.select(
        *_finding_columns(_occurrences.c.schedule, "the envelope of its current occurrence has ended or does not exist")
    )
    .outerjoin_from(_occurrences, _e, _e.c.id == _occurrences.c.envelope)
    .where(_occurrences.c.state.in_(t.OPEN_OCCURRENCE_STATES), sa.or_(_e.c.id.is_(None), _e.c.status == t.DONE))
)


def _find_unreadable(conn: sa.Connection) -> Iterator[LedgerFinding]:
    for damage in records.list_damaged(conn):
        yield LedgerFinding(damage.session, f"record {damage.seq} is damaged: {damage.because}")


# --- delegated: a delegation is open as long as its envelope, and its result replies to it. If the envelope was purged,
# or the agent is external, only the delegation itself is left ---

_h, _request, _result = t.delegations, _e.alias("request"), _e.alias("result")
_OPEN = t.sql_literal("'open'")
_open_but_envelope_done = (
    sa.select(*_finding_columns(_h.c.id, "open, but its envelope is done"))
    .join_from(_h, _request, _request.c.id == _h.c.id)
    .where(
        _h.c.state == _OPEN,
        _request.c.status == t.DONE,
        _h.c.target_session.is_not(None),
        _h.c.kind != t.sql_literal("'background'"),  # its envelope is settled when it is accepted
    )
)
_ended_but_envelope_open = (
    sa.select(*_finding_columns(_h.c.id, "ended, but its envelope is not done"))
    .join_from(_h, _request, _request.c.id == _h.c.id)
    .where(_h.c.state != _OPEN, _request.c.status != t.DONE, _h.c.target_session.is_not(None))
)
_envelope_without_delegation = sa.select(
    *_finding_columns(_e.c.id, "it delegates work, but its delegation does not exist")
).where(_e.c.kind == t.sql_literal("'delegation'"), ~sa.exists().where(_h.c.id == _e.c.id))
_misdirected_result = (
    sa.select(*_finding_columns(_h.c.id, "its result does not reply to it, or was sent to another session"))
    .join_from(_h, _result, _result.c.id == _h.c.result)
    .where(
        sa.or_(
            _result.c.reply_to != _h.c.id,
            _result.c.recipient != sa.literal("agent:") + _h.c.agent + sa.literal("/") + _h.c.session,
        )
    )
)
_awaited_by_ended_run = (
    sa.select(*_finding_columns(_h.c.id, "a call waits for it, but its run has ended"))
    .outerjoin_from(_h, _r, _r.c.id == _h.c.run)
    .where(_h.c.wait_ms.is_not(None), _r.c.status.not_in(t.OPEN_RUN_STATUSES))
)

RULES: tuple[LedgerRule, ...] = (
    LedgerRule("counted", "all accepted envelopes of each day and source exist or were purged", (_find_miscounted,)),
    LedgerRule(
        "settled",
        "a done envelope has one outcome, an open one has none",
        (_done_and_settled_differ, _outcome_without_envelope),
    ),
    LedgerRule(
        "answered",
        "an envelope is answered if and only if it has an answer that replies to it, or a silent mark",
        (_unanswered, _unexpected_answer, _stray_answer),
    ),
    LedgerRule(
        "delivered",
        "an envelope is delivered if and only if it is in an inbox or was sent with a receipt",
        (_undelivered, _in_inbox_undelivered, _sent_undelivered),
    ),
    LedgerRule(
        "claimed",
        "a claimed or suspended envelope is held by exactly one open run or delivery, which hold no other envelope",
        (_find_not_held, _sent_unclaimed),
    ),
    LedgerRule(
        "delegated",
        "a delegation is open as long as its envelope is, and its result replies to it",
        (
            _open_but_envelope_done,
            _ended_but_envelope_open,
            _envelope_without_delegation,
            _misdirected_result,
            _awaited_by_ended_run,
        ),
    ),
    LedgerRule(
        "charged",
        "reserved money is settled, released, or held while its step is open, and matches the daily sums",
        (_unbalanced, _held_without_step, _find_missummed),
    ),
    LedgerRule("done", "a done envelope has a settlement time and is in no open run", (_inconsistently_done,)),
    LedgerRule(
        "active",
        "no session is inactive while its run is running or an envelope is due",
        (_asleep_while_running, _asleep_with_due_envelope),
    ),
    LedgerRule(
        "numbered", "each session's records are numbered from 1 without a gap", (_misnumbered, _without_records)
    ),
    LedgerRule("one_run", "no session has more than one open run", (_two_runs,)),
    LedgerRule("steps", "only open runs have open steps", (_left_open,)),
    LedgerRule(
        "counters",
        "the server's counters match its last envelope and its last event",
        (_envelope_counter, _event_counter),
    ),
    LedgerRule(
        "schedules",
        "an enabled schedule has one current occurrence, whose envelope has not ended",
        (_schedule_without_occurrence, _occurrence_without_envelope),
    ),
    LedgerRule("readable", "every record can be read back", (_find_unreadable,)),
)
