"""The equations of the ledger, each as a statement that finds violations, and nothing if it holds.

They hold after every commit, not only in an idle server: a finding is a fault, never a transient
state. The database compares and counts, and returns only violations. Only open rows, which stay
few, are read one by one. Records are too, because only decoding a record shows whether it is
readable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.sql.selectable import GenerativeSelect

from retinue.domain.ids import short
from retinue.domain.model import ModelRef
from retinue.domain.money import date_of
from retinue.domain.times import from_ms
from retinue.store.core import tables as t
from retinue.store.envelopes.envelopes import MS_PER_DAY
from retinue.store.runs import money
from retinue.store.sessions import records

AT = "at"  # the name of the parameter for the current time

_e, _o, _s, _r, _d, _m = t.envelopes, t.outcomes, t.sessions, t.runs, t.deliveries, t.money
_ids = msgspec.json.Decoder(tuple[str, ...])


class Finding(NamedTuple):
    """A violation: an envelope, a run or a session by its id, or a sum by its name."""

    id: str
    because: str


Wrong = GenerativeSelect | Callable[[sa.Connection], Iterator[Finding]]


class Rule(NamedTuple):
    name: str
    sentence: str
    wrong: tuple[Wrong, ...]


def _wrong(id_: sa.ColumnElement[str], because: str) -> tuple[sa.Label[str], sa.Label[str]]:
    return id_.label("id"), sa.literal(because).label("because")


def _wrong_by(
    id_: sa.ColumnElement[str], *cases: tuple[sa.ColumnElement[bool], str], otherwise: str
) -> tuple[sa.Label[str], sa.Label[str]]:
    says = sa.case(*((when, sa.literal(says)) for when, says in cases), else_=sa.literal(otherwise))
    return id_.label("id"), says.label("because")


# --- counted: a lost row leaves its count behind, and an inserted one has no count ---

_day = (_e.c.accepted_ms // sa.literal_column(str(MS_PER_DAY), sa.BigInteger)).label("day")
_counts = sa.union_all(
    sa.select(t.tally.c.day, t.tally.c.source, (t.tally.c.accepted - t.tally.c.purged).label("counted")),
    sa.select(_day, _e.c.source, -sa.func.count()).group_by(_day, _e.c.source),
).subquery()
_off = sa.func.sum(_counts.c.counted)
_off_by_day = (
    sa.select(_counts.c.day, _counts.c.source, _off.label("off"))
    .group_by(_counts.c.day, _counts.c.source)
    .having(_off != 0)
)


def _miscounted(conn: sa.Connection) -> Iterator[Finding]:
    for row in conn.execute(_off_by_day):
        day = from_ms(row.day * MS_PER_DAY).date()
        what = "were counted and are not here" if row.off > 0 else "are here and were not counted"
        yield Finding(f"{row.source} on {day}", f"{abs(row.off)} {what}")


# --- settled ---

_done_and_settled_differ = (
    sa.select(
        *_wrong_by(
            _e.c.id,
            (_e.c.status == t.DONE, "done, but it has no outcome"),
            otherwise="it has an outcome, but is not done",
        )
    )
    .outerjoin_from(_e, _o, _o.c.envelope == _e.c.id)
    .where((_e.c.status == t.DONE) == _o.c.envelope.is_(None))
)
_outcome_of_nothing = sa.select(*_wrong(_o.c.envelope, "it has an outcome, but does not exist")).where(
    ~sa.exists().where(_e.c.id == _o.c.envelope)
)

# --- answered: a batch has one answer, which replies to its last envelope. So an answer is correct if it replies to
# an envelope that names this answer ---

_answer, _question, _back = _e.alias("answer"), _e.alias("question"), _o.alias("back")
_ANSWERED = t.word("'answered'")
_unanswered = (
    sa.select(
        *_wrong_by(
            _o.c.envelope,
            (_o.c.answer.is_(None), "answered, but with neither an answer nor a silent mark"),
            (_answer.c.id.is_(None), "answered, but its answer does not exist"),
            otherwise="answered, but its answer does not point back",
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
_answered_otherwise = sa.select(*_wrong(_o.c.envelope, "not answered, but it has an answer or a silent mark")).where(
    _o.c.outcome != _ANSWERED, sa.or_(_o.c.answer.is_not(None), _o.c.silent == sa.true())
)
_stray_answer = (
    sa.select(*_wrong(_answer.c.id, "an answer that the envelope it replies to does not name"))
    .select_from(
        _answer.join(_question, _question.c.id == _answer.c.reply_to).outerjoin(
            _back, _back.c.envelope == _question.c.id
        )
    )
    .where(
        # Concatenated with an empty string, so that SQLite reads the rows in order: with the index it takes twice as
        # long.
        _answer.c.source + "" == t.word("'run'"),
        _answer.c.kind == t.word("'answer'"),
        sa.or_(
            _question.c.status != t.DONE,
            # Without any outcome it violates `settled`, which is another equation.
            sa.and_(_back.c.envelope.is_not(None), sa.func.coalesce(_back.c.answer, "") != _answer.c.id),
        ),
    )
)

# --- delivered ---

_DELIVERED = t.word("'delivered'")
_SENDING, _SENT = t.word("'sending'"), t.word("'sent'")
_undelivered = sa.select(*_wrong(_o.c.envelope, "delivered, but neither in an inbox nor sent with a receipt")).where(
    _o.c.outcome == _DELIVERED,
    ~sa.exists().where(t.inbox.c.envelope == _o.c.envelope),
    ~sa.exists().where(_d.c.envelope == _o.c.envelope, _d.c.state == _SENT, _d.c.receipt.is_not(None)),
)
_in_an_inbox = (
    sa.select(*_wrong(t.inbox.c.envelope, "in an inbox, but not delivered"))
    .outerjoin_from(t.inbox, _o, _o.c.envelope == t.inbox.c.envelope)
    .where(sa.func.coalesce(_o.c.outcome, "") != _DELIVERED)
)
_sent_anyway = (
    sa.select(*_wrong(_d.c.envelope, "sent, but not delivered"))
    .outerjoin_from(_d, _o, _o.c.envelope == _d.c.envelope)
    .where(_d.c.state == _SENT, sa.func.coalesce(_o.c.outcome, "") != _DELIVERED)
)

# --- held ---

_attempts = (
    sa.select(_d.c.envelope, sa.func.count().label("n")).where(_d.c.state == _SENDING).group_by(_d.c.envelope)
).subquery()
_held = (
    sa.select(_e.c.id, _e.c.status, _e.c.run, _r.c.status.label("run_status"), _attempts.c.n.label("sending"))
    .select_from(_e.outerjoin(_r, _r.c.id == _e.c.run).outerjoin(_attempts, _attempts.c.envelope == _e.c.id))
    .where(_e.c.status.in_(t.HELD))
)
_holding = sa.select(_r.c.id, _r.c.envelopes).where(_r.c.status.in_(t.OPEN_RUN))
_sent_unclaimed = (
    sa.select(*_wrong(_d.c.envelope, "it is being sent, but is not claimed"))
    .outerjoin_from(_d, _e, _e.c.id == _d.c.envelope)
    .where(_d.c.state == _SENDING, sa.func.coalesce(_e.c.status, "") != t.word("'claimed'"))
)
_HOLDER = {"claimed": "running", "parked": "parked"}


def _not_held(conn: sa.Connection) -> Iterator[Finding]:
    """Row by row over open envelopes, because a run stores the ids it holds in its own row."""
    held_by: dict[str, set[str]] = {}
    for row in conn.execute(_held):
        runs = int(row.run_status == _HOLDER[row.status])
        sending: int = row.sending or 0 if row.status == "claimed" else 0
        if runs + sending != 1:
            yield Finding(row.id, f"{row.status}, but {runs} open runs and {sending} open deliveries hold it")
        if runs:
            held_by.setdefault(row.run, set()).add(row.id)
    for row in conn.execute(_holding):
        try:
            named = set(_ids.decode(row.envelopes))
        except (ValueError, msgspec.MsgspecError):
            yield Finding(row.id, "the envelopes it names cannot be read back")
            continue
        held = held_by.get(row.id, set[str]())
        for id_ in sorted(named ^ held):
            what = "names it, but does not hold it" if id_ in named else "holds it, but does not name it"
            yield Finding(id_, f"run {short(row.id)} {what}")


# --- money ---

_open_step = sa.exists().where(
    t.steps.c.run == _m.c.run,
    t.steps.c.turn == _m.c.turn,
    t.steps.c.idx == _m.c.idx,
    t.steps.c.attempt == _m.c.attempt,
    t.steps.c.state == t.word("'open'"),
)
_unbalanced = sa.select(*_wrong(_m.c.run, "what was reserved is not the sum of settled, released and held")).where(
    _m.c.reserved_microusd != _m.c.settled_microusd + _m.c.released_microusd + _m.c.held_microusd
)
_held_for_nothing = sa.select(*_wrong(_m.c.run, "money is held for a step that is not open")).where(
    _m.c.held_microusd != 0, ~_open_step
)

# The sums of a day change with its calls: the difference of the two must be zero for each key.

_told = sa.case((_m.c.estimated == sa.false(), 1), else_=0)
_of_calls: dict[str, sa.ColumnElement[int]] = {
    "calls": sa.func.count(),
    **{name: sa.func.sum(_m.c[name]) for name in ("settled_microusd", "held_microusd")},
    **{name: sa.func.sum(_m.c[name] * _told) for name in money.TOKEN_SORTS},
}
_summed = sa.union_all(
    sa.select(*(t.spending.c[name] for name in money.KEY), *(t.spending.c[name] for name in _of_calls)),
    sa.select(
        *(_m.c[name] for name in money.KEY), *((-expression).label(name) for name, expression in _of_calls.items())
    ).group_by(*(_m.c[name] for name in money.KEY)),
).subquery()
_missummed_keys = (
    sa.select(_summed.c.day, _summed.c.agent, _summed.c.provider, _summed.c.model)
    .group_by(*(_summed.c[name] for name in money.KEY))
    .having(sa.or_(*(sa.func.sum(_summed.c[name]) != 0 for name in _of_calls)))
)


def _missummed(conn: sa.Connection) -> Iterator[Finding]:
    for row in conn.execute(_missummed_keys):
        model = ModelRef(row.provider, row.model)
        said = f"what {row.agent} spent on {model} is not what its calls came to"
        yield Finding(f"{date_of(row.day)}", said)


# --- done ---

_open_runs = sa.select(_r.c.id).where(_r.c.status.in_(t.OPEN_RUN))
_half_done = sa.select(
    *_wrong_by(
        _e.c.id,
        (_e.c.status != t.DONE, "settled at some time, but not done"),
        (_e.c.settled_ms.is_(None), "done, but settled at no time"),
        otherwise="done, but in an open run",
    )
).where(
    sa.or_(
        sa.and_(_e.c.status == t.DONE, _e.c.settled_ms.is_(None)),
        sa.and_(_e.c.status != t.DONE, _e.c.settled_ms.is_not(None)),
        sa.and_(_e.c.status == t.DONE, _e.c.run.in_(_open_runs)),
    )
)

# --- awake. The reverse is no fault: a session may be awake without work until its lane checks again ---

_SLEEPING = t.word("'sleeping'")
_parked = _r.alias("parked")
_asleep_at_work = (
    sa.select(*_wrong(_s.c.id, "it sleeps, but a run of it is running"))
    .join_from(_r, _s, _s.c.id == _r.c.session)
    .where(_r.c.status == t.word("'running'"), _s.c.wakefulness == _SLEEPING)
)
_asleep_with_mail = (
    sa.select(*_wrong(_s.c.id, "it sleeps, but mail is due in it"))
    .select_from(
        _e.join(_s, _s.c.id == _e.c.session).outerjoin(
            _parked, sa.and_(_parked.c.session == _s.c.id, _parked.c.status == t.word("'parked'"))
        )
    )
    .where(
        _e.c.status == t.PENDING,
        _e.c.due_ms <= sa.bindparam(AT),
        _s.c.wakefulness == _SLEEPING,
        # The scheduler finds envelopes with a delivery time, whether or not the session is awake.
        sa.or_(_e.c.deliver_ms.is_(None), _e.c.deliver_ms <= _e.c.accepted_ms),
        # Behind a suspended run, silent envelopes wait, and so do results that it reads together with others.
        sa.or_(
            _parked.c.id.is_(None),
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
        *_wrong_by(
            _history.c.session,
            (_s.c.id.is_(None), "it has records, but does not exist"),
            (_s.c.record_seq != _history.c.last, "its last record is not the one it counts on from"),
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
_without_records = sa.select(*_wrong(_s.c.id, "it has no records at all")).where(
    ~sa.exists().where(t.records.c.session == _s.c.id)
)

# --- alone, steps, counters, readable ---

_two_runs = (
    sa.select(*_wrong(_r.c.session, "it has more than one open run"))
    .where(_r.c.status.in_(t.OPEN_RUN))
    .group_by(_r.c.session)
    .having(sa.func.count() > 1)
)
_left_open = (
    sa.select(*_wrong(t.steps.c.run, "a step of it is open, but it has ended"))
    .join_from(t.steps, _r, _r.c.id == t.steps.c.run)
    .where(t.steps.c.state == t.word("'open'"), _r.c.status.not_in(t.OPEN_RUN))
)
_last_envelope = sa.select(sa.func.coalesce(sa.func.max(_e.c.seq), 0)).scalar_subquery()
_last_news = sa.select(sa.func.coalesce(sa.func.max(t.news.c.seq), 0)).scalar_subquery()
_envelope_counter = sa.select(*_wrong(sa.literal("envelope_seq"), "it is not the number of the last envelope")).where(
    t.house.c.envelope_seq != _last_envelope
)
_news_counter = sa.select(*_wrong(sa.literal("news_seq"), "it is not the number of the last news")).where(
    t.house.c.news_seq != _last_news
)


_slots = t.schedule_slots
_occurs = sa.exists().where(
    _slots.c.schedule == t.schedules.c.id,
    _slots.c.state.in_(t.OPEN_SLOT),
    _slots.c.made_by == t.word("'clock'"),
)
_standing_still = sa.select(*_wrong(t.schedules.c.id, "it is enabled, and nothing of it is ahead")).where(
    t.schedules.c.enabled == sa.true(), ~_occurs
)
_lost_slot = (
    sa.select(*_wrong(_slots.c.schedule, "what it waits for or works on has ended, or is not here"))
    .outerjoin_from(_slots, _e, _e.c.id == _slots.c.envelope)
    .where(_slots.c.state.in_(t.OPEN_SLOT), sa.or_(_e.c.id.is_(None), _e.c.status == t.DONE))
)


def _unreadable(conn: sa.Connection) -> Iterator[Finding]:
    for damage in records.damaged(conn):
        yield Finding(damage.session, f"record {damage.seq} is damaged: {damage.because}")


# --- handed: a delegation is open as long as its envelope, and its result is one envelope back. If that was purged,
# or the agent is external, only the delegation itself is left ---

_h, _letter, _back_letter = t.delegations, _e.alias("letter"), _e.alias("back_letter")
_OPEN = t.word("'open'")
_open_without_letter = (
    sa.select(*_wrong(_h.c.id, "open, but its letter is done"))
    .join_from(_h, _letter, _letter.c.id == _h.c.id)
    .where(
        _h.c.state == _OPEN,
        _letter.c.status == t.DONE,
        _h.c.child.is_not(None),
        _h.c.kind != t.word("'background'"),  # whose envelope is settled when it is accepted
    )
)
_ended_with_letter = (
    sa.select(*_wrong(_h.c.id, "ended, but its letter is not done"))
    .join_from(_h, _letter, _letter.c.id == _h.c.id)
    .where(_h.c.state != _OPEN, _letter.c.status != t.DONE, _h.c.child.is_not(None))
)
_letter_of_nothing = sa.select(*_wrong(_e.c.id, "it hands work on, but nothing is known of it")).where(
    _e.c.kind == t.word("'delegation'"), ~sa.exists().where(_h.c.id == _e.c.id)
)
_told_elsewhere = (
    sa.select(*_wrong(_h.c.id, "what came of it does not reply to it, or went elsewhere"))
    .join_from(_h, _back_letter, _back_letter.c.id == _h.c.result)
    .where(
        sa.or_(
            _back_letter.c.reply_to != _h.c.id,
            _back_letter.c.recipient != sa.literal("agent:") + _h.c.agent + sa.literal("/") + _h.c.session,
        )
    )
)
_waits_for_nobody = (
    sa.select(*_wrong(_h.c.id, "a call waits for it, but its run has ended"))
    .outerjoin_from(_h, _r, _r.c.id == _h.c.run)
    .where(_h.c.wait_ms.is_not(None), _r.c.status.not_in(t.OPEN_RUN))
)

RULES: tuple[Rule, ...] = (
    Rule("counted", "all accepted envelopes of each day and source are here, or were purged", (_miscounted,)),
    Rule(
        "settled",
        "a done envelope has one outcome, an open one has none",
        (_done_and_settled_differ, _outcome_of_nothing),
    ),
    Rule(
        "answered",
        "what is answered has an answer that points back or a silent mark, and nothing else has",
        (_unanswered, _answered_otherwise, _stray_answer),
    ),
    Rule(
        "delivered",
        "what is delivered is in an inbox or was sent with a receipt, and nothing else is",
        (_undelivered, _in_an_inbox, _sent_anyway),
    ),
    Rule(
        "held",
        "what is claimed or parked is held by one open run or delivery, and those hold nothing else",
        (_not_held, _sent_unclaimed),
    ),
    Rule(
        "handed",
        "work that was handed on is open while its letter is, and one letter tells whoever asked what came of it",
        (_open_without_letter, _ended_with_letter, _letter_of_nothing, _told_elsewhere, _waits_for_nobody),
    ),
    Rule(
        "money",
        "what was reserved is settled, released or held, held only while its step is open, and summed up by day",
        (_unbalanced, _held_for_nothing, _missummed),
    ),
    Rule("done", "what is done was settled at some time, and is in no open run", (_half_done,)),
    Rule("awake", "no session sleeps while its run is running or mail is due", (_asleep_at_work, _asleep_with_mail)),
    Rule("numbered", "each session's records are numbered from 1 without a gap", (_misnumbered, _without_records)),
    Rule("alone", "no session has more than one open run", (_two_runs,)),
    Rule("steps", "only open runs have open steps", (_left_open,)),
    Rule(
        "counters", "the house counts on from its last envelope and its last news", (_envelope_counter, _news_counter)
    ),
    Rule(
        "schedules",
        "an enabled schedule has one occurrence ahead or at work, whose envelope has not ended",
        (_standing_still, _lost_slot),
    ),
    Rule("readable", "every record can be read back", (_unreadable,)),
)
