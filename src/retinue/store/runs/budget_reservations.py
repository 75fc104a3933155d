"""Reserve the cost of each model call before the call. Settle or release it in the commit that ends the step.

Each call has a row in the table `model_calls`. The table `spending` contains sums by day, which are
updated in the same commits. Budgets are checked in the commit that reserves the cost, so concurrent
calls cannot exceed a budget together. The caller must have opened a `Transaction`, because that
serializes commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from retinue.domain import address
from retinue.domain.address import AddressKind
from retinue.domain.budget import (
    BudgetLimits,
    BudgetPeriod,
    ModelCallReservation,
    ModelCallReservationRequest,
    PriceUnknown,
)
from retinue.domain.budget_reservation import (
    BudgetBalance,
    BudgetPayer,
    budget_warning,
    grant_output_tokens,
    max_cost_microusd,
)
from retinue.domain.record import NO_USAGE, Usage
from retinue.domain.run import Run
from retinue.store.core import tables as t

ERROR_CHARS_MAX = 1_000
TOKEN_KINDS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "reasoning_tokens")
SUM_KEY = ("day", "agent", "person", "provider", "model")  # key columns of the sums
SUMMED_COLUMNS = ("calls", "settled_microusd", "held_microusd", *TOKEN_KINDS)
_THE_KEY = tuple((f"the_{name}", name) for name in SUM_KEY)
_MORE = tuple((f"more_{name}", name) for name in SUMMED_COLUMNS)
_CLOSED = (
    *("settled_microusd", "released_microusd", "held_microusd", "cost_unknown", *TOKEN_KINDS, "estimated"),
    *("failure", "next_action", "error", "ended_ms"),
)

_b = sa.bindparam
_m, _s = t.model_calls, t.spending
_is_call = sa.and_(*(_m.c[name] == _b(f"the_{name}") for name in ("run", "turn", "call_index", "attempt")))
_insert = _m.insert()
_get = sa.select(_m).where(_is_call)
_close = _m.update().where(_is_call).values(**{name: _b(f"new_{name}") for name in _CLOSED})
_held = sa.select(_m).where(_m.c.run == _b("run"), _m.c.held_microusd > 0)
_charge_held = (
    _m.update()
    .where(_m.c.run == _b("the_run"), _m.c.held_microusd > 0)
    .values(settled_microusd=_m.c.settled_microusd + _m.c.held_microusd, held_microusd=0, cost_unknown=True)
)
_last_call = (
    sa.select(_m.c.settled_microusd, _m.c.day)
    .where(_m.c.run == _b("run"), _m.c.held_microusd == 0)
    .order_by(_m.c.at_ms.desc(), _m.c.turn.desc(), _m.c.call_index.desc(), _m.c.attempt.desc())
    .limit(1)
)
_sender = sa.select(t.runs.c.sender).where(t.runs.c.id == _b("run"))

# To add to the sums, try an update first: after the first call of a day, the row exists.

_add_to_sums = (
    _s.update()
    .where(*(_s.c[name] == _b(the_name) for the_name, name in _THE_KEY))
    .values(**{name: _s.c[name] + _b(more_name) for more_name, name in _MORE})
)
_insert_sums = _s.insert()

# --- sums that limits are compared with ---


def sum_where(column: sa.ColumnElement[int], *where: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    """Return an SQL expression that sums a column over the matching rows. It is 0 if no rows match."""
    return sa.func.coalesce(sa.func.sum(sa.case((sa.and_(*where), column), else_=0) if where else column), 0)


_sums = (sum_where(_m.c.settled_microusd).label("settled"), sum_where(_m.c.held_microusd).label("held"))
_of_run = sa.select(*_sums).where(_m.c.run == _b("run"))
_is_below_root = sa.and_(
    _m.c.root_run == _b("root_run"), _m.c.root_run != _m.c.run
)  # the same terms as in its partial index
_of_tree = sa.select(*_sums).where(sa.or_(_m.c.run == _b("root_run"), _is_below_root))
_WHO: dict[str, tuple[sa.ColumnElement[bool], ...]] = {
    "agent": (_s.c.agent == _b("the_agent"),),
    "person": (_s.c.person == _b("the_person"),),
    "instance": (),
}
_WHEN: dict[str, tuple[sa.ColumnElement[bool], ...]] = {"day": (_s.c.day == _b("the_day"),), "month": ()}
_of_days = sa.select(
    *(
        sum_where(_s.c[f"{kind}_microusd"], *who, *when).label(f"{name}_{period}_{kind}")
        for name, who in _WHO.items()
        for period, when in _WHEN.items()
        for kind in ("settled", "held")
    )
).where(_s.c.day >= _b("day_from"), _s.c.day <= _b("day_to"))


def reserve(
    conn: sa.Connection,
    run: Run,
    *,
    turn: int,
    index: int,
    attempt: int,
    terms: ModelCallReservationRequest,
    days: BudgetPeriod,
    root: str,
    at_ms: int,
) -> ModelCallReservation:
    """Reserve the cost of a model call, with as many output tokens as the tightest budget allows.

    Raises `BudgetSpent` if that is too few tokens, and `PriceUnknown` if there is a budget but no
    price. These errors occur before anything is written, so the caller can commit other changes. A
    free call reserves nothing. Any other call reserves its cost even without a budget, so that the
    cost is known if a crash interrupts the call.
    """
    price = terms.price
    if price is None:
        if terms.limits.has_any:
            raise PriceUnknown(terms.ref)
        return ModelCallReservation(output_tokens_max=terms.output_tokens_max)
    if price.is_free:
        return ModelCallReservation(output_tokens_max=terms.output_tokens_max)
    above = run.lineage.agents[:-1] if run.lineage is not None else ()
    payer = BudgetPayer(agent=run.agent, person=_payer_person(conn, run, root), delegators=above)
    standings = _load_budget_statuses(conn, run, terms.limits, payer, days, root)
    output = grant_output_tokens(terms, price, standings, payer=payer, period=days)
    microusd = max_cost_microusd(price, input_tokens=terms.input_tokens_max, output_tokens=output)
    warnings = _build_warnings(conn, run, standings, terms.limits, payer, days)
    row = _new_row(run, payer, terms, turn=turn, index=index, attempt=attempt, day=days.day, root=root, at_ms=at_ms)
    row |= {"reserved_microusd": microusd, "held_microusd": microusd}
    conn.execute(_insert, row)
    add_to_sums(conn, row, calls=1, held_microusd=microusd)
    return ModelCallReservation(output_tokens_max=output, reserved_microusd=microusd, warnings=warnings)


def settle(
    conn: sa.Connection,
    run: Run,
    *,
    turn: int,
    index: int,
    attempt: int,
    terms: ModelCallReservationRequest,
    usage: Usage,
    days: BudgetPeriod,
    root: str,
    at_ms: int,
) -> int:
    """Store the cost of a model call that succeeded, and return the cost.

    The cost is what the provider reported, or else the price of the tokens. If the number of tokens
    is not known, the complete reservation is charged. If the price is not known, the cost is 0. In
    both cases the cost is marked as unknown. If the cost exceeds the reservation,
    `released_microusd` is negative.
    """
    row, is_new = _get_or_build_row(
        conn, run, terms, turn=turn, index=index, attempt=attempt, days=days, root=root, at_ms=at_ms
    )
    microusd, unknown = _cost(terms, usage, row["reserved_microusd"])
    changed = {name: getattr(usage, name) for name in TOKEN_KINDS}
    changed |= {"estimated": usage.estimated, "cost_unknown": unknown, "settled_microusd": microusd, "ended_ms": at_ms}
    _close_row(conn, row, changed, is_new=is_new)
    return microusd


def fail(
    conn: sa.Connection,
    run: Run,
    *,
    turn: int,
    index: int,
    attempt: int,
    terms: ModelCallReservationRequest,
    failure: str,
    next_action: str,
    error: str,
    unknown: bool,
    days: BudgetPeriod,
    root: str,
    at_ms: int,
    usage: Usage | None = None,
) -> None:
    """Store that a model call failed, with the reason and what is tried next.

    With `unknown`, the call may have cost something, so the complete reservation is charged.
    Otherwise, the reservation is released. If `usage` is given, the cost is computed from it
    instead.
    """
    row, is_new = _get_or_build_row(
        conn, run, terms, turn=turn, index=index, attempt=attempt, days=days, root=root, at_ms=at_ms
    )
    may_have_cost = unknown and (terms.price is None or not terms.price.is_free)
    changed: dict[str, Any] = {
        "settled_microusd": row["reserved_microusd"] if may_have_cost else 0,
        "cost_unknown": may_have_cost,
    }
    if usage is not None:
        microusd, not_known = _cost(terms, usage, row["reserved_microusd"])
        changed = {"settled_microusd": microusd, "cost_unknown": not_known, "estimated": usage.estimated}
        changed |= {name: getattr(usage, name) for name in TOKEN_KINDS}
    changed |= {
        "failure": failure,
        "next_action": next_action,
        "error": error[:ERROR_CHARS_MAX],
        "ended_ms": at_ms,
    }
    _close_row(conn, row, changed, is_new=is_new)


def charge_interrupted_calls(conn: sa.Connection, run: str) -> None:
    """Charge the complete reservations of a run's interrupted calls, because the calls may have cost that much."""
    held = conn.execute(_held, {"run": run}).all()
    if not held:
        return
    conn.execute(_charge_held, {"the_run": run})
    for row in held:
        key = {name: getattr(row, name) for name in SUM_KEY}
        add_to_sums(conn, key, settled_microusd=row.held_microusd, held_microusd=-row.held_microusd)


def get_spent_microusd(conn: sa.Connection, run: str) -> int:
    """Return how much the model calls of a run have cost so far."""
    return int(conn.execute(_of_run, {"run": run}).one().settled)


def list_warnings(
    conn: sa.Connection, run: Run, *, terms: ModelCallReservationRequest, days: BudgetPeriod, root: str
) -> tuple[str, ...]:
    """Return a warning for each budget whose warning threshold was exceeded by the last model call of a run.

    Call this in the commit that settles the run's last call. For any other call, reserving the next
    call returns the warnings.
    """
    payer = BudgetPayer(agent=run.agent, person=_payer_person(conn, run, root))
    standings = _load_budget_statuses(conn, run, terms.limits, payer, days, root)
    return _build_warnings(conn, run, standings, terms.limits, payer, days)


def _payer_person(conn: sa.Connection, run: Run, root: str) -> str:
    """Return the name of the person who is charged for a run, or an empty string if there is none.

    This is the sender of the run or, if that is not a person, the sender of the root run.
    """
    sender = run.sender
    if sender.kind is not AddressKind.PERSON and root != run.id:
        found = conn.execute(_sender, {"run": root}).scalar()
        sender = address.parse_address(found) if found else sender
    return sender.name if sender.kind is AddressKind.PERSON else ""


def _cost(terms: ModelCallReservationRequest, usage: Usage, reserved: int) -> tuple[int, bool]:
    """Return the cost of a model call, and whether this is only an estimate because the actual cost is unknown."""
    if usage.cost_microusd and not usage.estimated:
        return usage.cost_microusd, False
    price = terms.price
    if price is None:
        return 0, True
    if price.is_free:
        return 0, False
    if usage.estimated or usage == NO_USAGE:
        bound = max_cost_microusd(price, input_tokens=terms.input_tokens_max, output_tokens=terms.output_tokens_max)
        return reserved or bound, True
    return price.cost_microusd(usage), False


def _load_budget_statuses(
    conn: sa.Connection, run: Run, caps: BudgetLimits, payer: BudgetPayer, days: BudgetPeriod, root: str
) -> Sequence[BudgetBalance]:
    """Return the balance of each budget that is set. Budgets per person are included only if a person is charged."""
    kept = {what: cap for what, cap in caps.by_name().items() if cap is not None}
    if not payer.person:
        kept = {what: cap for what, cap in kept.items() if not what.startswith("person")}
    sums: dict[str, tuple[int, int]] = {}
    for what, statement, key in (("run", _of_run, {"run": run.id}), ("tree", _of_tree, {"root_run": root})):
        if what in kept:
            row = conn.execute(statement, key).one()
            sums[what] = int(row.settled), int(row.held)
    if kept.keys() - sums.keys():
        sums |= _load_period_sums(conn, payer, days, month=any(what.endswith("month") for what in kept))
    return [
        BudgetBalance(name=what, limit_microusd=cap, spent_microusd=sums[what][0], reserved_microusd=sums[what][1])
        for what, cap in kept.items()
    ]


def _load_period_sums(
    conn: sa.Connection, payer: BudgetPayer, days: BudgetPeriod, *, month: bool
) -> dict[str, tuple[int, int]]:
    found = conn.execute(
        _of_days,
        {
            "the_agent": payer.agent,
            "the_person": payer.person,
            "the_day": days.day,
            "day_from": days.month_first_day if month else days.day,
            "day_to": days.month_last_day if month else days.day,
        },
    ).one()
    return {
        f"{who}'s {period}": (
            int(getattr(found, f"{who}_{period}_settled")),
            int(getattr(found, f"{who}_{period}_held")),
        )
        for who in _WHO
        for period in _WHEN
    }


def _build_warnings(
    conn: sa.Connection,
    run: Run,
    statuses: Sequence[BudgetBalance],
    caps: BudgetLimits,
    payer: BudgetPayer,
    days: BudgetPeriod,
) -> tuple[str, ...]:
    past = [each for each in statuses if each.spent_microusd >= each.limit_microusd * caps.warn_share]
    last = conn.execute(_last_call, {"run": run.id}).one_or_none() if past else None
    if last is None:
        return ()
    said: list[str | None] = []
    for standing in past:
        counts = not standing.name.endswith("day") or last.day == days.day
        counts = counts and (
            not standing.name.endswith("month") or days.month_first_day <= last.day <= days.month_last_day
        )
        last_microusd = last.settled_microusd if counts else 0
        said.append(budget_warning(standing, caps.warn_share, last_microusd=last_microusd, payer=payer))
    return tuple(each for each in said if each is not None)


# --- rows ---


def _get_or_build_row(
    conn: sa.Connection,
    run: Run,
    terms: ModelCallReservationRequest,
    *,
    turn: int,
    index: int,
    attempt: int,
    days: BudgetPeriod,
    root: str,
    at_ms: int,
) -> tuple[dict[str, Any], bool]:
    """Return the row of a model call, and whether the row is new. A call that reserved nothing has no row yet."""
    key = {"the_run": run.id, "the_turn": turn, "the_call_index": index, "the_attempt": attempt}
    found = conn.execute(_get, key).one_or_none() if terms.is_charged else None
    if found is not None:
        return {column.name: getattr(found, column.name) for column in _m.c}, False
    payer = BudgetPayer(agent=run.agent, person=_payer_person(conn, run, root))
    made = _new_row(run, payer, terms, turn=turn, index=index, attempt=attempt, day=days.day, root=root, at_ms=at_ms)
    return made, True


def _new_row(
    run: Run,
    payer: BudgetPayer,
    terms: ModelCallReservationRequest,
    *,
    turn: int,
    index: int,
    attempt: int,
    day: int,
    root: str,
    at_ms: int,
) -> dict[str, Any]:
    return {
        "run": run.id,
        "turn": turn,
        "call_index": index,
        "attempt": attempt,
        "session": run.session,
        "root_run": root,
        "agent": payer.agent,
        "person": payer.person,
        "provider": terms.ref.provider,
        "model": terms.ref.model,
        "credential": terms.credential,
        "day": day,
        "reserved_microusd": 0,
        "settled_microusd": 0,
        "released_microusd": 0,
        "held_microusd": 0,
        "cost_unknown": False,
        **dict.fromkeys(TOKEN_KINDS, 0),
        "estimated": False,
        "failure": None,
        "next_action": None,
        "error": None,
        "at_ms": at_ms,
        "ended_ms": None,
    }


def _close_row(conn: sa.Connection, row: dict[str, Any], changed: dict[str, Any], *, is_new: bool) -> None:
    """Close the row of a model call, and add the difference from its old values to the daily sums.

    If a call is closed twice, its cost is therefore counted only once.
    """
    after = {**row, **changed, "held_microusd": 0}
    after["released_microusd"] = after["reserved_microusd"] - after["settled_microusd"]
    if is_new:
        conn.execute(_insert, after)
    else:
        key = {f"the_{name}": row[name] for name in ("run", "turn", "call_index", "attempt")}
        conn.execute(_close, key | {f"new_{name}": after[name] for name in _CLOSED})
    moved = {name: after[name] - row[name] for name in ("settled_microusd", "held_microusd")}
    # The sums contain only tokens that the provider reported.
    if not after["estimated"]:
        moved |= {name: after[name] for name in TOKEN_KINDS}
    if not is_new and not row["estimated"]:
        moved |= {name: moved.get(name, 0) - row[name] for name in TOKEN_KINDS}
    add_to_sums(conn, row, calls=int(is_new), **moved)


def add_to_sums(conn: sa.Connection, key: dict[str, Any], **amounts: int) -> None:
    """Add amounts to the daily sums with this key. If there is no row for the key yet, it is inserted."""
    moved = {the_name: key[name] for the_name, name in _THE_KEY}
    moved |= {more_name: amounts.get(name, 0) for more_name, name in _MORE}
    if conn.execute(_add_to_sums, moved).rowcount == 0:
        conn.execute(
            _insert_sums,
            {name: key[name] for name in SUM_KEY} | {name: amounts.get(name, 0) for name in SUMMED_COLUMNS},
        )
