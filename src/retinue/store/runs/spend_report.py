"""Report spending by day, agent, model, provider, person, session or run, and how much of each budget is used.

These reports are for people, and run outside the event loop. Sums of tokens do not include
estimates, which are stored if a provider did not report the tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.budget import BudgetPeriod, date_of_day_number
from retinue.domain.model import ModelRef
from retinue.domain.principal import Principal
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import PerScope, VisibilityScope, principal_parameters, visibility_scope
from retinue.store.runs.budget_reservations import SUM_KEY, SUMMED_COLUMNS, TOKEN_KINDS, add_to_sums, sum_where

_b = sa.bindparam
_m, _s = t.model_calls, t.spending


class SpendGrouping(StrEnum):
    DAY = "day"
    AGENT = "agent"
    MODEL = "model"
    PROVIDER = "provider"
    PERSON = "person"
    SESSION = "session"
    RUN = "run"


class SpendQuery(Struct, frozen=True, kw_only=True):
    """The filters and grouping of a spending report. Both days are included. An empty name matches everything."""

    by: SpendGrouping
    first_day: int
    last_day: int
    agent: str = ""
    person: str = ""
    limit: int


class UsageSum(Struct, frozen=True, kw_only=True):
    """The usage of a group of model calls.

    `unknown_microusd` is the part of `cost_microusd` that is only an upper limit. It comes from
    calls that were interrupted, or whose usage was not reported. `unknown_calls` also counts calls
    without a known price, whose cost is 0.
    """

    key: str
    calls: int
    failed_calls: int
    unknown_calls: int
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    reasoning_tokens: int
    cost_microusd: int
    unknown_microusd: int
    held_microusd: int


class SpendReport(Struct, frozen=True):
    rows: list[UsageSum]
    total: UsageSum
    left_out: int


def _count(where: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sum_where(sa.literal_column("1", sa.Integer), where)


_COLUMNS: tuple[sa.Label[int], ...] = (
    sa.func.count().label("calls"),
    _count(_m.c.failure.is_not(None)).label("failed_calls"),
    _count(_m.c.cost_unknown == sa.true()).label("unknown_calls"),
    *(sum_where(_m.c[name], _m.c.estimated == sa.false()).label(name) for name in TOKEN_KINDS),
    sum_where(_m.c.settled_microusd).label("cost_microusd"),
    sum_where(_m.c.settled_microusd, _m.c.cost_unknown == sa.true()).label("unknown_microusd"),
    sum_where(_m.c.held_microusd).label("held_microusd"),
)
_NUMBERS = tuple(column.name for column in _COLUMNS)
_GROUPS: dict[SpendGrouping, tuple[sa.Column[Any], ...]] = {
    by: (_m.c.provider, _m.c.model) if by is SpendGrouping.MODEL else (_m.c[by.value],) for by in SpendGrouping
}


def _where(scope: VisibilityScope) -> sa.ColumnElement[bool]:
    """Return SQL conditions for the model calls that a report may include.

    A person sees calls on their behalf, an agent sees its own calls, and the owner sees all calls.
    """
    seen = {
        VisibilityScope.ALL: sa.true(),
        VisibilityScope.PERSON: _m.c.person == _b("my_name"),
        VisibilityScope.AGENT: _m.c.agent == _b("my_name"),
    }[scope]
    return sa.and_(
        _m.c.day >= _b("first_day"),
        _m.c.day <= _b("last_day"),
        sa.or_(_b("agent", type_=sa.String) == "", _m.c.agent == _b("agent", type_=sa.String)),
        sa.or_(_b("person", type_=sa.String) == "", _m.c.person == _b("person", type_=sa.String)),
        seen,
    )


def _select_groups(scope: VisibilityScope, by: SpendGrouping) -> sa.Select[Any]:
    groups = _GROUPS[by]
    dearest: list[Any] = [sa.desc("cost_microusd"), sa.desc("calls"), *groups]
    order: list[Any] = [_m.c.day.desc()] if by is SpendGrouping.DAY else dearest
    return sa.select(*groups, *_COLUMNS).where(_where(scope)).group_by(*groups).order_by(*order).limit(_b("limit"))


def _select_group_count(scope: VisibilityScope, by: SpendGrouping) -> sa.Select[Any]:
    found = sa.select(*_GROUPS[by]).where(_where(scope)).distinct().subquery()
    return sa.select(sa.func.count()).select_from(found)


_rows = {by: PerScope(lambda scope, by=by: _select_groups(scope, by)) for by in SpendGrouping}
_group_counts = {by: PerScope(lambda scope, by=by: _select_group_count(scope, by)) for by in SpendGrouping}
_daily = {
    by: PerScope(
        lambda scope, by=by: (
            sa.select(_m.c.day, *_GROUPS[by], *_COLUMNS).where(_where(scope)).group_by(_m.c.day, *_GROUPS[by])
        )
    )
    for by in (SpendGrouping.AGENT, SpendGrouping.MODEL, SpendGrouping.PROVIDER, SpendGrouping.PERSON)
}
# The calls of a session are found through its runs, because `model_calls` is indexed by run and by day only.
_of_session = sa.select(*_COLUMNS).where(
    _m.c.run.in_(sa.select(t.runs.c.id).where(t.runs.c.session == _b("session"))), _m.c.session == _b("session")
)
_total = PerScope(lambda scope: sa.select(*_COLUMNS).where(_where(scope)))


def get_session_usage(conn: sa.Connection, session: str) -> UsageSum:
    """Return the usage of one session."""
    return _usage_from_row(conn.execute(_of_session, {"session": session}).one(), session)


def get_usage(conn: sa.Connection, *, query: SpendQuery, seen_by: Principal) -> SpendReport:
    """Return the usage by group. Days are sorted by date, and other groups by cost, highest first.

    If there are more groups than the limit, the newest days or the most expensive groups are
    returned. The total includes all groups.
    """
    scope, asked = visibility_scope(seen_by), _parameters(query, seen_by)
    found = conn.execute(_rows[query.by][scope], asked | {"limit": query.limit}).all()
    rows = [_usage_from_row(row, _group_name(row, query.by)) for row in found]
    many: int = conn.execute(_group_counts[query.by][scope], asked).scalar_one()
    total = _usage_from_row(conn.execute(_total[scope], asked).one(), "")
    return SpendReport(rows[::-1] if query.by is SpendGrouping.DAY else rows, total, many - len(rows))


def get_daily_usage(
    conn: sa.Connection, *, query: SpendQuery, seen_by: Principal
) -> dict[str, list[tuple[int, UsageSum]]]:
    """Return the usage of each group by day. Days without usage are left out, and the days are not sorted."""
    found: dict[str, list[tuple[int, UsageSum]]] = {}
    for row in conn.execute(_daily[query.by][visibility_scope(seen_by)], _parameters(query, seen_by)):
        key = _group_name(row, query.by)
        found.setdefault(key, []).append((row.day, _usage_from_row(row, key)))
    return found


def _parameters(query: SpendQuery, seen_by: Principal) -> dict[str, Any]:
    return {
        "first_day": query.first_day,
        "last_day": query.last_day,
        "agent": query.agent,
        "person": query.person,
        **(
            {"my_name": principal_parameters(seen_by)["my_name"]}
            if visibility_scope(seen_by) is not VisibilityScope.ALL
            else {}
        ),
    }


def _usage_from_row(row: Any, key: str) -> UsageSum:
    return UsageSum(key=key, **{name: int(getattr(row, name)) for name in _NUMBERS})


def _group_name(row: Any, by: SpendGrouping) -> str:
    match by:
        case SpendGrouping.DAY:
            return date_of_day_number(row.day).isoformat()
        case SpendGrouping.MODEL:
            return str(ModelRef(row.provider, row.model))
        case _:
            return getattr(row, by.value)


# --- use of the budgets ---


class SpendAmounts(Struct, frozen=True):
    """The amount spent in a day or month, and the amount reserved for model calls in progress."""

    settled_microusd: int = 0
    held_microusd: int = 0

    def __add__(self, other: SpendAmounts) -> SpendAmounts:
        return SpendAmounts(
            self.settled_microusd + other.settled_microusd,
            self.held_microusd + other.held_microusd,
        )


NO_SPEND = SpendAmounts()


class SpendByPeriod(Struct, frozen=True):
    """Spending by subject and period. An example of a key is `("agent", "ada", "day")`.

    For the instance, the name is empty.
    """

    amounts: Mapping[tuple[str, str, str], SpendAmounts]

    def get(self, who: str, name: str, period: str) -> SpendAmounts:
        return self.amounts.get((who, name, period), NO_SPEND)


_is_today = _s.c.day == _b("the_day")
_of_month = (
    sa.select(
        _s.c.agent,
        _s.c.person,
        sum_where(_s.c.settled_microusd, _is_today).label("day_settled"),
        sum_where(_s.c.held_microusd, _is_today).label("day_held"),
        sum_where(_s.c.settled_microusd).label("month_settled"),
        sum_where(_s.c.held_microusd).label("month_held"),
    )
    .where(_s.c.day >= _b("month_from"), _s.c.day <= _b("month_to"))
    .group_by(_s.c.agent, _s.c.person)
)


def get_spend(conn: sa.Connection, days: BudgetPeriod) -> SpendByPeriod:
    """Return what all agents, all people and the instance have spent in the current day and month.

    Daily and monthly budgets are compared with these amounts.
    """
    amounts: dict[tuple[str, str, str], SpendAmounts] = {}
    asked = {"the_day": days.day, "month_from": days.month_first_day, "month_to": days.month_last_day}
    for row in conn.execute(_of_month, asked):
        day = SpendAmounts(int(row.day_settled), int(row.day_held))
        month = SpendAmounts(int(row.month_settled), int(row.month_held))
        for who, name in (("agent", row.agent), ("person", row.person), ("instance", "")):
            for period, amount in (("day", day), ("month", month)):
                amounts[who, name, period] = amounts.get((who, name, period), NO_SPEND) + amount
    return SpendByPeriod(amounts)


# --- erasure of a person ---

_anonymize_calls = _m.update().where(_m.c.person == _b("the_person")).values(person="", error=None)
_sums_of_person = sa.select(_s).where(_s.c.person == _b("person"))
_delete_sums = _s.delete().where(_s.c.person == _b("the_person"))


def anonymize_person(conn: sa.Connection, person: str) -> None:
    """Remove a person's name from all stored spending. The amounts are kept."""
    conn.execute(_anonymize_calls, {"the_person": person})
    for row in conn.execute(_sums_of_person, {"person": person}).all():
        key = {name: getattr(row, name) for name in SUM_KEY} | {"person": ""}
        add_to_sums(conn, key, **{name: getattr(row, name) for name in SUMMED_COLUMNS})
    conn.execute(_delete_sums, {"the_person": person})
