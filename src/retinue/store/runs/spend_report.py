"""Spending by day, agent, model, provider, person, session or run, and how much of each cap is used.

Read by people, outside the event loop. Tokens that a provider did not report are our estimates and
not in any sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.domain.model import ModelRef
from retinue.domain.money import Days, date_of
from retinue.domain.principal import Principal
from retinue.store.core import tables as t
from retinue.store.core.row_visibility import PerScope, Scope, me, scope_of
from retinue.store.runs.money import KEY, SUMMED, TOKEN_SORTS, add, sum_of

_b = sa.bindparam
_m, _s = t.money, t.spending


class By(StrEnum):
    DAY = "day"
    AGENT = "agent"
    MODEL = "model"
    PROVIDER = "provider"
    PERSON = "person"
    SESSION = "session"
    RUN = "run"


class Wanted(Struct, frozen=True, kw_only=True):
    """A range of days, both included. An empty name matches everything."""

    by: By
    first_day: int
    last_day: int
    agent: str = ""
    person: str = ""
    limit: int


class Used(Struct, frozen=True, kw_only=True):
    """The usage of some calls. `unknown_microusd` is the part of `cost_microusd` that is only an upper limit.

    A call is unknown if it was interrupted, or its usage was not reported. It is also unknown, at
    no cost, if its price is.
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


class Usages(Struct, frozen=True):
    rows: list[Used]
    total: Used
    left_out: int


def _count(where: sa.ColumnElement[bool]) -> sa.ColumnElement[int]:
    return sum_of(sa.literal_column("1", sa.Integer), where)


_COLUMNS: tuple[sa.Label[int], ...] = (
    sa.func.count().label("calls"),
    _count(_m.c.failure.is_not(None)).label("failed_calls"),
    _count(_m.c.unknown == sa.true()).label("unknown_calls"),
    *(sum_of(_m.c[name], _m.c.estimated == sa.false()).label(name) for name in TOKEN_SORTS),
    sum_of(_m.c.settled_microusd).label("cost_microusd"),
    sum_of(_m.c.settled_microusd, _m.c.unknown == sa.true()).label("unknown_microusd"),
    sum_of(_m.c.held_microusd).label("held_microusd"),
)
_NUMBERS = tuple(column.name for column in _COLUMNS)
_GROUPS: dict[By, tuple[sa.Column[Any], ...]] = {
    by: (_m.c.provider, _m.c.model) if by is By.MODEL else (_m.c[by.value],) for by in By
}


def _where(scope: Scope) -> sa.ColumnElement[bool]:
    """Match spending in these days that the caller can see: on behalf of a person, or of an agent itself."""
    seen = {
        Scope.ALL: sa.true(),
        Scope.PERSON: _m.c.person == _b("my_name"),
        Scope.AGENT: _m.c.agent == _b("my_name"),
    }[scope]
    return sa.and_(
        _m.c.day >= _b("first_day"),
        _m.c.day <= _b("last_day"),
        sa.or_(_b("agent", type_=sa.String) == "", _m.c.agent == _b("agent", type_=sa.String)),
        sa.or_(_b("person", type_=sa.String) == "", _m.c.person == _b("person", type_=sa.String)),
        seen,
    )


def _grouped(scope: Scope, by: By) -> sa.Select[Any]:
    groups = _GROUPS[by]
    dearest: list[Any] = [sa.desc("cost_microusd"), sa.desc("calls"), *groups]
    order: list[Any] = [_m.c.day.desc()] if by is By.DAY else dearest
    return sa.select(*groups, *_COLUMNS).where(_where(scope)).group_by(*groups).order_by(*order).limit(_b("limit"))


def _groups(scope: Scope, by: By) -> sa.Select[Any]:
    found = sa.select(*_GROUPS[by]).where(_where(scope)).distinct().subquery()
    return sa.select(sa.func.count()).select_from(found)


_rows = {by: PerScope(lambda scope, by=by: _grouped(scope, by)) for by in By}
_how_many = {by: PerScope(lambda scope, by=by: _groups(scope, by)) for by in By}
_in_days = {
    by: PerScope(
        lambda scope, by=by: (
            sa.select(_m.c.day, *_GROUPS[by], *_COLUMNS).where(_where(scope)).group_by(_m.c.day, *_GROUPS[by])
        )
    )
    for by in (By.AGENT, By.MODEL, By.PROVIDER, By.PERSON)
}
# Through its runs, for which there is an index: `money` is indexed by run and by day.
_of_session = sa.select(*_COLUMNS).where(
    _m.c.run.in_(sa.select(t.runs.c.id).where(t.runs.c.session == _b("session"))), _m.c.session == _b("session")
)
_total = PerScope(lambda scope: sa.select(*_COLUMNS).where(_where(scope)))


def of_session(conn: sa.Connection, session: str) -> Used:
    """Return the usage of one session."""
    return _used(conn.execute(_of_session, {"session": session}).one(), session)


def usage(conn: sa.Connection, *, wanted: Wanted, seen_by: Principal) -> Usages:
    """Return days in order, the newest `limit` of them; otherwise the most expensive first.

    The total covers everything.
    """
    scope, asked = scope_of(seen_by), _asked(wanted, seen_by)
    found = conn.execute(_rows[wanted.by][scope], asked | {"limit": wanted.limit}).all()
    rows = [_used(row, _named(row, wanted.by)) for row in found]
    many: int = conn.execute(_how_many[wanted.by][scope], asked).scalar_one()
    total = _used(conn.execute(_total[scope], asked).one(), "")
    return Usages(rows[::-1] if wanted.by is By.DAY else rows, total, many - len(rows))


def in_days(conn: sa.Connection, *, wanted: Wanted, seen_by: Principal) -> dict[str, list[tuple[int, Used]]]:
    """Return, for each group, the days on which it used something, in no particular order."""
    found: dict[str, list[tuple[int, Used]]] = {}
    for row in conn.execute(_in_days[wanted.by][scope_of(seen_by)], _asked(wanted, seen_by)):
        key = _named(row, wanted.by)
        found.setdefault(key, []).append((row.day, _used(row, key)))
    return found


def _asked(wanted: Wanted, seen_by: Principal) -> dict[str, Any]:
    return {
        "first_day": wanted.first_day,
        "last_day": wanted.last_day,
        "agent": wanted.agent,
        "person": wanted.person,
        **({"my_name": me(seen_by)["my_name"]} if scope_of(seen_by) is not Scope.ALL else {}),
    }


def _used(row: Any, key: str) -> Used:
    return Used(key=key, **{name: int(getattr(row, name)) for name in _NUMBERS})


def _named(row: Any, by: By) -> str:
    match by:
        case By.DAY:
            return date_of(row.day).isoformat()
        case By.MODEL:
            return str(ModelRef(row.provider, row.model))
        case _:
            return getattr(row, by.value)


# --- use of the caps ---


class Amounts(Struct, frozen=True):
    """The amount spent in a day or month, and the amount held for calls in progress."""

    settled_microusd: int = 0
    held_microusd: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(
            self.settled_microusd + other.settled_microusd,
            self.held_microusd + other.held_microusd,
        )


NOTHING = Amounts()


class Spent(Struct, frozen=True):
    """Spending by subject and period: `("agent", "ada", "day")`. The server's name is empty."""

    amounts: Mapping[tuple[str, str, str], Amounts]

    def of(self, who: str, name: str, period: str) -> Amounts:
        return self.amounts.get((who, name, period), NOTHING)


_today = _s.c.day == _b("the_day")
_of_month = (
    sa.select(
        _s.c.agent,
        _s.c.person,
        sum_of(_s.c.settled_microusd, _today).label("day_settled"),
        sum_of(_s.c.held_microusd, _today).label("day_held"),
        sum_of(_s.c.settled_microusd).label("month_settled"),
        sum_of(_s.c.held_microusd).label("month_held"),
    )
    .where(_s.c.day >= _b("month_from"), _s.c.day <= _b("month_to"))
    .group_by(_s.c.agent, _s.c.person)
)


def spent(conn: sa.Connection, days: Days) -> Spent:
    """Return the amounts that daily and monthly caps are compared with, for all subjects at once."""
    amounts: dict[tuple[str, str, str], Amounts] = {}
    asked = {"the_day": days.day, "month_from": days.month_from, "month_to": days.month_to}
    for row in conn.execute(_of_month, asked):
        day = Amounts(int(row.day_settled), int(row.day_held))
        month = Amounts(int(row.month_settled), int(row.month_held))
        for who, name in (("agent", row.agent), ("person", row.person), ("house", "")):
            for period, amount in (("day", day), ("month", month)):
                amounts[who, name, period] = amounts.get((who, name, period), NOTHING) + amount
    return Spent(amounts)


# --- erasure of a person ---

_no_name = _m.update().where(_m.c.person == _b("the_person")).values(person="", error=None)
_of_person = sa.select(_s).where(_s.c.person == _b("person"))
_gone = _s.delete().where(_s.c.person == _b("the_person"))


def forget_person(conn: sa.Connection, person: str) -> None:
    """Remove the person's name from what was spent. The amounts stay."""
    conn.execute(_no_name, {"the_person": person})
    for row in conn.execute(_of_person, {"person": person}).all():
        key = {name: getattr(row, name) for name in KEY} | {"person": ""}
        add(conn, key, **{name: getattr(row, name) for name in SUMMED})
    conn.execute(_gone, {"the_person": person})
