"""Operations that show usage and cost, as totals or per day, and the budgets with the amounts spent."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta
from enum import StrEnum

import msgspec
import sqlalchemy as sa

from retinue.config.models import BudgetSettings
from retinue.domain.address import AddressKind
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.budget import MICROUSD_PER_USD, BudgetPeriod, day_number
from retinue.domain.budget_reservation import budget_setting, reset_date
from retinue.domain.principal import Principal
from retinue.domain.shared_errors import TimeRangeInvalid
from retinue.domain.times import YEAR_MIN, parse_time
from retinue.operations.base import EmptyRequest, Operation, Services
from retinue.operations.model.errors import DateInvalid, TooManyUsageDays
from retinue.operations.pagination import check_limit
from retinue.policy.limits.budgets import compute_budget_days
from retinue.store.agents import agents
from retinue.store.people import people
from retinue.store.runs import spend_report
from retinue.store.runs.spend_report import SpendAmounts, SpendByPeriod, SpendGrouping, SpendQuery, UsageSum

DAYS_DEFAULT = 30
ROWS_MIN, ROWS_MAX = 1, 1_000
ROWS_DEFAULT = 100
SERIES_DEFAULT, SERIES_MAX = 8, 50
DAYS_MAX = 400


class UsageRequest(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Show usage from one day to another, including both days. The default is the last 30 days.

    Tokens that the server only estimated are not counted.
    """

    by: SpendGrouping = SpendGrouping.DAY
    from_: str = ""
    to: str = ""
    agent: str = ""
    person: str = ""
    limit: int = ROWS_DEFAULT


class UsageRow(msgspec.Struct, frozen=True):
    """Usage of one group of model calls.

    `unknown_microusd` is the maximum cost of the calls whose real cost is unknown, because they were
    interrupted. `cost_microusd` includes this amount.
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
    reserved_microusd: int


class UsageReport(msgspec.Struct, frozen=True, rename={"from_": "from"}):
    by: SpendGrouping
    from_: str
    to: str
    rows: list[UsageRow]
    omitted_count: int
    total: UsageRow


class UsageGrouping(StrEnum):
    """How the usage of a day is grouped."""

    AGENT = "agent"
    MODEL = "model"
    PROVIDER = "provider"
    PERSON = "person"


class UsageDaysRequest(msgspec.Struct, forbid_unknown_fields=True, rename={"from_": "from"}):
    """Show usage per day, with dates as in `usage.show`.

    `limit` is the maximum number of series. All further series are combined into one.
    """

    by: UsageGrouping = UsageGrouping.AGENT
    from_: str = ""
    to: str = ""
    limit: int = SERIES_DEFAULT


class UsageSeries(msgspec.Struct, frozen=True):
    """One series of a usage chart, with one value per day.

    If `is_rest` is true, the series is the sum of all series beyond the limit, and `key` is empty.
    """

    key: str
    is_rest: bool
    calls: list[int]
    input_tokens: list[int]
    output_tokens: list[int]
    cost_microusd: list[int]


class DailyUsageReport(msgspec.Struct, frozen=True):
    """Usage per day, as series for a chart. The series with the highest cost comes first."""

    by: UsageGrouping
    days: list[str]
    series: list[UsageSeries]
    total: UsageRow


class BudgetStatus(msgspec.Struct, frozen=True):
    """One budget. A limit on each run or tree of runs has neither a spent amount nor a reset date."""

    name: str
    owner: str
    setting: str
    cap_microusd: int
    spent_microusd: int | None = None
    reserved_microusd: int | None = None
    left_microusd: int | None = None
    share: float | None = None
    resets_on: str | None = None


class BudgetList(msgspec.Struct, frozen=True):
    today: str
    warn_share: float
    budgets: list[BudgetStatus]


async def show_usage(services: Services, caller: Principal, request: UsageRequest) -> UsageReport:
    """Show usage. The owner sees all usage, a person the usage of runs on their behalf, and an agent its own."""
    fewer = "request fewer days, or one agent or person"
    check_limit(request.limit, least=ROWS_MIN, most=ROWS_MAX, try_this=fewer)
    first, last = _parse_range(services, request.from_, request.to)

    def body(conn: sa.Connection) -> spend_report.SpendReport:
        wanted = SpendQuery(
            by=request.by,
            first_day=day_number(first),
            last_day=day_number(last),
            agent=_registered_name(agents.find(conn, request.agent), request.agent),
            person=_registered_name(people.find(conn, request.person), request.person),
            limit=request.limit,
        )
        return spend_report.get_usage(conn, query=wanted, seen_by=caller)

    found = await services.store.scan(body)
    return UsageReport(
        by=request.by,
        from_=first.isoformat(),
        to=last.isoformat(),
        rows=[_to_usage_row(row) for row in found.rows],
        omitted_count=found.left_out,
        total=_to_usage_row(found.total),
    )


async def show_daily_usage(services: Services, caller: Principal, request: UsageDaysRequest) -> DailyUsageReport:
    """Show usage per day and group, for a chart over time."""
    check_limit(request.limit, least=1, most=SERIES_MAX, try_this="request fewer series; the rest are added together")
    first, last = _parse_range(services, request.from_, request.to)
    length = (last - first).days + 1
    if length > DAYS_MAX:
        raise TooManyUsageDays(length, days_max=DAYS_MAX)

    def body(conn: sa.Connection) -> tuple[dict[str, list[tuple[int, UsageSum]]], spend_report.SpendReport]:
        wanted = SpendQuery(
            by=SpendGrouping(request.by), first_day=day_number(first), last_day=day_number(last), limit=1
        )
        found = spend_report.get_daily_usage(conn, query=wanted, seen_by=caller)
        return found, spend_report.get_usage(conn, query=wanted, seen_by=caller)

    found, totals = await services.store.scan(body)
    ranked = sorted(
        found, key=lambda key: (-_sum_field(found[key], "cost_microusd"), -_sum_field(found[key], "calls"), key)
    )
    apart, others = ranked[: request.limit], [each for key in ranked[request.limit :] for each in found[key]]
    series = [_build_series(key, found[key], day_number(first), length) for key in apart]
    if others:
        series.append(_build_series("", others, day_number(first), length, is_rest=True))
    return DailyUsageReport(
        by=request.by,
        days=[(first + timedelta(days=day)).isoformat() for day in range(length)],
        series=series,
        total=_to_usage_row(totals.total),
    )


def _sum_field(days: list[tuple[int, UsageSum]], name: str) -> int:
    return sum(getattr(used, name) for _, used in days)


def _build_series(
    key: str, usage_by_day: list[tuple[int, UsageSum]], first: int, length: int, *, is_rest: bool = False
) -> UsageSeries:
    numbers = {name: [0] * length for name in ("calls", "input_tokens", "output_tokens", "cost_microusd")}
    for day, used in usage_by_day:
        for name, each in numbers.items():
            each[day - first] += getattr(used, name)
    return UsageSeries(key=key, is_rest=is_rest, **numbers)


def _parse_range(services: Services, from_: str, to: str) -> tuple[date, date]:
    last = _parse_date(services, to) if to else services.clock.now().astimezone(services.zone).date()
    first = _parse_date(services, from_) if from_ else last - timedelta(days=DAYS_DEFAULT - 1)
    if first > last:
        raise TimeRangeInvalid(str(first), str(last))
    return first, last


def _parse_date(services: Services, text: str) -> date:
    """Parse a date, or a time relative to now, which begins with `+` or `-`."""
    if text.strip()[:1] in ("+", "-"):
        return parse_time(text, now=services.clock.now(), zone=services.zone).astimezone(services.zone).date()
    try:
        found = date.fromisoformat(text.strip())
    except ValueError:
        found = date.min
    if found.year < YEAR_MIN:
        raise DateInvalid(text, year_min=YEAR_MIN)
    return found


def _registered_name(found: object, given: str) -> str:
    """Return the name of an agent or a person as it was registered.

    An unknown name is returned unchanged, because deleted agents and people may still have usage.
    """
    return getattr(found, "name", given) if given else ""


_SUM_FIELDS = {"reserved_microusd": "held_microusd"}  # field of a response: field of a sum in the store


def _to_usage_row(used: UsageSum) -> UsageRow:
    return UsageRow(**{name: getattr(used, _SUM_FIELDS.get(name, name)) for name in UsageRow.__struct_fields__})


async def list_budgets(services: Services, caller: Principal, request: EmptyRequest) -> BudgetList:
    """Show the budgets that the caller may see. Only the owner sees the budgets of the instance."""
    settings = services.config_holder.current.settings.budgets if services.config_holder else BudgetSettings()
    now = compute_budget_days(services.clock.now(), services.zone)

    def body(conn: sa.Connection) -> list[BudgetStatus]:
        spent = spend_report.get_spend(conn, now)
        everyone, registered = [person.name for person in people.list_all(conn)], agents.list_all(conn)
        if caller.sees_everything:
            return [
                *_instance_budgets(settings, spent, now),
                *_person_budgets(settings, everyone, spent, now),
                *_agent_budgets(registered, spent, now),
            ]
        if caller.address.kind is AddressKind.PERSON:
            return [*_person_budgets(settings, [caller.address.name], spent, now)]
        return [*_agent_budgets([agent for agent in registered if agent.name == caller.address.name], spent, now)]

    return BudgetList(
        today=services.clock.now().astimezone(services.zone).date().isoformat(),
        warn_share=settings.warn_share,
        budgets=await services.store.scan(body),
    )


def _instance_budgets(settings: BudgetSettings, spent: SpendByPeriod, now: BudgetPeriod) -> Iterator[BudgetStatus]:
    for period, cap in (("day", settings.instance_day_usd), ("month", settings.instance_month_usd)):
        if cap is not None:
            yield _build_budget(f"instance's {period}", "", _to_microusd(cap), spent.get("instance", "", period), now)
    for what, cap in (("run", settings.run_usd), ("tree", settings.tree_usd)):
        if cap is not None:
            yield BudgetStatus(what, owner="", setting=f"`budgets.{what}_usd`", cap_microusd=_to_microusd(cap))


def _person_budgets(
    settings: BudgetSettings, names: list[str], spent: SpendByPeriod, now: BudgetPeriod
) -> Iterator[BudgetStatus]:
    for name in names:
        for period, cap in (("day", settings.person_day_usd), ("month", settings.person_month_usd)):
            if cap is not None:
                yield _build_budget(
                    f"person's {period}", name, _to_microusd(cap), spent.get("person", name, period), now
                )


def _agent_budgets(registered_agents: list[Agent], spent: SpendByPeriod, now: BudgetPeriod) -> Iterator[BudgetStatus]:
    for agent in registered_agents:
        for period, cap in (("day", agent.day_microusd_max), ("month", agent.month_microusd_max)):
            if cap is not None:
                yield _build_budget(f"agent's {period}", agent.name, cap, spent.get("agent", agent.name, period), now)
        for what, field in (("run", "cost_microusd_max"), ("tree", "tree_microusd_max")):
            cap: int | None = getattr(agent, field)
            if cap is not None:
                raised_by = f"`{field}` of agent '{agent.name}'"
                yield BudgetStatus(what, owner=agent.name, setting=raised_by, cap_microusd=cap)


def _to_microusd(dollars: float) -> int:
    return round(dollars * MICROUSD_PER_USD)


def _build_budget(what: str, owner: str, cap: int, amounts: SpendAmounts, now: BudgetPeriod) -> BudgetStatus:
    resets = reset_date(what, now)
    return BudgetStatus(
        what,
        owner=owner,
        setting=budget_setting(what, owner),
        cap_microusd=cap,
        spent_microusd=amounts.settled_microusd,
        reserved_microusd=amounts.held_microusd,
        left_microusd=max(cap - amounts.settled_microusd - amounts.held_microusd, 0),
        share=round(amounts.settled_microusd / cap, 4) if cap else 1.0,
        resets_on=resets.isoformat() if resets else None,
    )


OPERATIONS = (
    Operation(
        name="usage.show",
        summary="Show usage and cost.",
        parameters=UsageRequest,
        handler=show_usage,
        result=UsageReport,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="usage.days",
        summary="Show usage per day, grouped by agent, model, provider or person.",
        parameters=UsageDaysRequest,
        handler=show_daily_usage,
        result=DailyUsageReport,
        permission=PermissionLevel.RESTRICTED,
    ),
    Operation(
        name="usage.budgets",
        summary="Show the budgets, and how much of each is spent.",
        parameters=EmptyRequest,
        handler=list_budgets,
        result=BudgetList,
        permission=PermissionLevel.RESTRICTED,
    ),
)
