"""Operations on usage and cost: totals, daily series, and the budgets with what is spent of them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from enum import StrEnum

import msgspec
import sqlalchemy as sa

from retinue.config.models import Budgets
from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.budget_caps import free_again, key_of
from retinue.domain.errors import Invalid
from retinue.domain.money import MICROUSD, Days, day_number
from retinue.domain.principal import Principal
from retinue.domain.times import YEAR_MIN, parse_when
from retinue.operations.base import Desk, Nothing, Operation
from retinue.operations.pagination import check_limit
from retinue.policy.limits.budgets import days
from retinue.store.agents import agents
from retinue.store.people import people
from retinue.store.runs import spend_report
from retinue.store.runs.spend_report import Amounts, By, Spent, Used, Wanted

DAYS_SHOWN = 30
ROWS_LEAST, ROWS_MAX = 1, 1_000
ROWS_SHOWN = 100
APART_SHOWN, APART_MAX = 8, 50
DAYS_MAX = 400


class Usage(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """`from` and `to` are dates, both included; the default is the last 30 days. Estimated tokens are not counted."""

    by: By = By.DAY
    from_: str = ""
    to: str = ""
    agent: str = ""
    person: str = ""
    limit: int = ROWS_SHOWN


class UsedShown(msgspec.Struct, frozen=True, rename="kebab"):
    """`cost-microusd` includes `unknown-microusd`: the maximum cost of calls whose end is unknown."""

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


class UsageShown(msgspec.Struct, frozen=True, rename={"from_": "from", "left_out": "left-out"}):
    by: By
    from_: str
    to: str
    rows: list[UsedShown]
    left_out: int
    total: UsedShown


class Apart(StrEnum):
    """How the usage of a day is grouped."""

    AGENT = "agent"
    MODEL = "model"
    PROVIDER = "provider"
    PERSON = "person"


class InDays(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Dates as in `usage.show`. `limit` is the number of series; all others are summed in one."""

    by: Apart = Apart.AGENT
    from_: str = ""
    to: str = ""
    limit: int = APART_SHOWN


class UsedInDays(msgspec.Struct, frozen=True, rename="kebab"):
    """One value per day. `rest` marks the sum of all other series; its key is empty."""

    key: str
    rest: bool
    calls: list[int]
    input_tokens: list[int]
    output_tokens: list[int]
    cost_microusd: list[int]


class DaysShown(msgspec.Struct, frozen=True):
    """Daily series, the most expensive first."""

    by: Apart
    days: list[str]
    series: list[UsedInDays]
    total: UsedShown


class BudgetShown(msgspec.Struct, frozen=True, rename="kebab"):
    """One budget. Limits per run or run tree have no sums and no reset date."""

    what: str
    whose: str
    raised_by: str
    cap_microusd: int
    spent_microusd: int | None = None
    held_microusd: int | None = None
    left_microusd: int | None = None
    share: float | None = None
    resets_on: str | None = None


class BudgetsShown(msgspec.Struct, frozen=True, rename="kebab"):
    today: str
    warn_share: float
    budgets: list[BudgetShown]


async def show(desk: Desk, caller: Principal, asked: Usage) -> UsageShown:
    """Show usage. The owner sees all, a person what was spent for them, an agent what it spent itself."""
    fewer = "ask for fewer days, or for one agent or person"
    check_limit(asked.limit, least=ROWS_LEAST, most=ROWS_MAX, try_this=fewer)
    first, last = _span(desk, asked.from_, asked.to)

    def body(conn: sa.Connection) -> spend_report.Usages:
        wanted = Wanted(
            by=asked.by,
            first_day=day_number(first),
            last_day=day_number(last),
            agent=_spelled(agents.find(conn, asked.agent), asked.agent),
            person=_spelled(people.find(conn, asked.person), asked.person),
            limit=asked.limit,
        )
        return spend_report.usage(conn, wanted=wanted, seen_by=caller)

    found = await desk.store.scan(body)
    return UsageShown(
        by=asked.by,
        from_=first.isoformat(),
        to=last.isoformat(),
        rows=[_form(row) for row in found.rows],
        left_out=found.left_out,
        total=_form(found.total),
    )


async def in_days(desk: Desk, caller: Principal, asked: InDays) -> DaysShown:
    """Show usage per day and group, for a chart over time."""
    if not 1 <= asked.limit <= APART_MAX:
        raise Invalid(
            f"{asked.limit} cannot be told apart",
            because=f"limit is 1 to {APART_MAX}",
            try_this="ask for fewer: the others are summed up",
            code="list.limit",
        )
    first, last = _span(desk, asked.from_, asked.to)
    length = (last - first).days + 1
    if length > DAYS_MAX:
        raise Invalid(
            f"these are {length} days",
            because=f"each day is told of, and {DAYS_MAX} are the most",
            try_this="ask for fewer days, or for `usage.show`",
            code="usage.too-many-days",
        )

    def body(conn: sa.Connection) -> tuple[dict[str, list[tuple[int, Used]]], spend_report.Usages]:
        wanted = Wanted(by=By(asked.by), first_day=day_number(first), last_day=day_number(last), limit=1)
        found = spend_report.in_days(conn, wanted=wanted, seen_by=caller)
        return found, spend_report.usage(conn, wanted=wanted, seen_by=caller)

    found, whole = await desk.store.scan(body)
    ranked = sorted(found, key=lambda key: (-_sum(found[key], "cost_microusd"), -_sum(found[key], "calls"), key))
    apart, others = ranked[: asked.limit], [each for key in ranked[asked.limit :] for each in found[key]]
    series = [_series(key, found[key], day_number(first), length) for key in apart]
    if others:
        series.append(_series("", others, day_number(first), length, rest=True))
    return DaysShown(
        by=asked.by,
        days=[(first + timedelta(days=day)).isoformat() for day in range(length)],
        series=series,
        total=_form(whole.total),
    )


def _sum(days: list[tuple[int, Used]], name: str) -> int:
    return sum(getattr(used, name) for _, used in days)


def _series(key: str, found: list[tuple[int, Used]], first: int, length: int, *, rest: bool = False) -> UsedInDays:
    numbers = {name: [0] * length for name in ("calls", "input_tokens", "output_tokens", "cost_microusd")}
    for day, used in found:
        for name, each in numbers.items():
            each[day - first] += getattr(used, name)
    return UsedInDays(key=key, rest=rest, **numbers)


def _span(desk: Desk, from_: str, to: str) -> tuple[date, date]:
    last = _date(desk, to) if to else desk.clock.now().astimezone(desk.zone).date()
    first = _date(desk, from_) if from_ else last - timedelta(days=DAYS_SHOWN - 1)
    if first > last:
        raise Invalid(
            "nothing can be in this span of time",
            because=f"it begins on {first}, after it ends on {last}",
            try_this="swap the two",
            code="time.inverted",
        )
    return first, last


def _date(desk: Desk, text: str) -> date:
    """Parse a date, or a span relative to now."""
    if text.strip()[:1] in ("+", "-"):
        return parse_when(text, now=desk.clock.now(), zone=desk.zone).astimezone(desk.zone).date()
    try:
        found = date.fromisoformat(text.strip())
    except ValueError:
        found = date.min
    if found.year < YEAR_MIN:
        raise Invalid(
            f"{text[:64]!r} is not a date",
            because=f"a date is YYYY-MM-DD, from {YEAR_MIN} on, or a span from now",
            try_this="for example: 2026-11-15, or -7D",
            code="date.invalid",
        )
    return found


def _spelled(found: object, typed: str) -> str:
    """Return the registered spelling, or the given one: deleted agents and people may still have usage."""
    return getattr(found, "name", typed) if typed else ""


def _form(used: Used) -> UsedShown:
    return UsedShown(**{name: getattr(used, name) for name in UsedShown.__struct_fields__})


async def budgets(desk: Desk, caller: Principal, asked: Nothing) -> BudgetsShown:
    """Show the budgets that the caller may see. Those of the instance are visible to the owner only."""
    settings = desk.config.current.settings.budgets if desk.config else Budgets()
    now = days(desk.clock.now(), desk.zone)

    def body(conn: sa.Connection) -> list[BudgetShown]:
        spent = spend_report.spent(conn, now)
        everyone, staff = [person.name for person in people.everyone(conn)], agents.everyone(conn)
        if caller.sees_all:
            return [
                *_of_house(settings, spent, now),
                *_of_people(settings, everyone, spent, now),
                *_of(staff, spent, now),
            ]
        if caller.address.kind is AddressKind.PERSON:
            return [*_of_people(settings, [caller.address.name], spent, now)]
        return [*_of([agent for agent in staff if agent.name == caller.address.name], spent, now)]

    return BudgetsShown(
        today=desk.clock.now().astimezone(desk.zone).date().isoformat(),
        warn_share=settings.warn_share,
        budgets=await desk.store.scan(body),
    )


def _of_house(settings: Budgets, spent: Spent, now: Days) -> Iterator[BudgetShown]:
    for period, cap in (("day", settings.house_day_usd), ("month", settings.house_month_usd)):
        if cap is not None:
            yield _cap(f"house's {period}", "", _microusd(cap), spent.of("house", "", period), now)
    for what, cap in (("run", settings.run_usd), ("tree", settings.tree_usd)):
        if cap is not None:
            yield BudgetShown(what, whose="", raised_by=f"`budgets.{what}_usd`", cap_microusd=_microusd(cap))


def _of_people(settings: Budgets, names: list[str], spent: Spent, now: Days) -> Iterator[BudgetShown]:
    for name in names:
        for period, cap in (("day", settings.person_day_usd), ("month", settings.person_month_usd)):
            if cap is not None:
                yield _cap(f"person's {period}", name, _microusd(cap), spent.of("person", name, period), now)


def _of(staff: list[Agent], spent: Spent, now: Days) -> Iterator[BudgetShown]:
    for agent in staff:
        for period, cap in (("day", agent.day_microusd_max), ("month", agent.month_microusd_max)):
            if cap is not None:
                yield _cap(f"agent's {period}", agent.name, cap, spent.of("agent", agent.name, period), now)
        for what, field in (("run", "cost_microusd_max"), ("tree", "tree_microusd_max")):
            cap: int | None = getattr(agent, field)
            if cap is not None:
                raised_by = f"`{field}` of agent '{agent.name}'"
                yield BudgetShown(what, whose=agent.name, raised_by=raised_by, cap_microusd=cap)


def _microusd(dollars: float) -> int:
    return round(dollars * MICROUSD)


def _cap(what: str, whose: str, cap: int, amounts: Amounts, now: Days) -> BudgetShown:
    resets = free_again(what, now)
    return BudgetShown(
        what,
        whose=whose,
        raised_by=key_of(what, whose),
        cap_microusd=cap,
        spent_microusd=amounts.settled_microusd,
        held_microusd=amounts.held_microusd,
        left_microusd=max(cap - amounts.settled_microusd - amounts.held_microusd, 0),
        share=round(amounts.settled_microusd / cap, 4) if cap else 1.0,
        resets_on=resets.isoformat() if resets else None,
    )


OPERATIONS = (
    Operation(
        name="usage.show",
        summary="Show what was used and what it cost.",
        parameters=Usage,
        handler=show,
        result=UsageShown,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="usage.days",
        summary="Show what was used day by day, told apart by agent, model, provider or person.",
        parameters=InDays,
        handler=in_days,
        result=DaysShown,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="usage.budgets",
        summary="Show what may be spent, and how much of it is.",
        parameters=Nothing,
        handler=budgets,
        result=BudgetsShown,
        permission=PermissionLevel.RESTRICTED,
    ),
)
