"""Builds the report of a dry run from the copy: every run and skip, and the totals."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy as sa

from retinue.config import Settings
from retinue.domain.address import AddressKind
from retinue.domain.budget import MICROUSD_PER_USD, BudgetSpent, date_of_day_number, day_number
from retinue.domain.errors import RetinueError
from retinue.domain.ids import short_id
from retinue.domain.schedule import (
    SKIPS_COUNTED_MAX,
    OccurrenceState,
    Schedule,
    ScheduleKind,
    describe_trigger,
    next_occurrence,
)
from retinue.domain.session import SessionOptions
from retinue.domain.times import from_ms, to_ms
from retinue.dry_run.copied_server import RECORDED_TABLE, DryRunContext, SimulationResult
from retinue.dry_run.parameters import DryRunPlan
from retinue.dry_run.report_types import (
    BudgetSummary,
    BusyMinute,
    DelayedRuns,
    DryRunReport,
    GateSummary,
    IdleSchedule,
    NamedTotals,
    RunTotals,
    ScheduleSummary,
    SimulatedRun,
    SimulatedSkip,
    SkipKind,
)
from retinue.store.core import tables as t
from retinue.store.schedules.schedules import StoredSchedule
from retinue.text.quantity import format_quantity

BUSIEST_MAX = 5
LATE_AFTER_S = 60
CopyRow = Any  # a row of the copy
ENVELOPE_LABEL = "(mail)"  # shown in place of a schedule: an envelope sent with a later due time
NOTES_MAX = 20


class TotalsCounter:
    """Adds up the totals of runs, skips, tokens and costs."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()

    def add_run(self, run: SimulatedRun) -> None:
        numbers = self._numbers
        numbers["runs"] += 1
        numbers["failed"] += run.state == OccurrenceState.FAILED
        numbers["input_tokens"] += run.input_tokens
        numbers["output_tokens"] += run.output_tokens
        numbers["cost_microusd"] += run.cost_microusd or 0
        numbers["unpriced"] += run.cost_microusd is None

    def add_skip(self, skip: SimulatedSkip) -> None:
        self._numbers["skipped"] += SKIPS_COUNTED_MAX if skip.times is None else skip.times

    @property
    def totals(self) -> RunTotals:
        return RunTotals(**self._numbers)


_occurrences_query = sa.text(f"SELECT * FROM {RECORDED_TABLE} ORDER BY id")
_runs_query = sa.select(
    t.runs.c.id,
    t.runs.c.session,
    t.runs.c.agent,
    t.runs.c.status,
    t.runs.c.sender,
    t.runs.c.started_ms,
    t.runs.c.ended_ms,
    t.runs.c.error,
).where(t.runs.c.started_ms >= sa.bindparam("since"))
_costs_query = sa.select(
    t.model_calls.c.run,
    t.model_calls.c.provider,
    t.model_calls.c.model,
    t.model_calls.c.input_tokens,
    t.model_calls.c.output_tokens,
    t.model_calls.c.settled_microusd,
    t.model_calls.c.cost_unknown,
).where(t.model_calls.c.at_ms >= sa.bindparam("since"))
_envelope_runs_query = sa.select(t.envelopes.c.id, t.envelopes.c.run).where(
    t.envelopes.c.run.is_not(None), t.envelopes.c.sender.startswith("schedule:")
)
_running_occurrences_query = sa.text(
    "SELECT schedule, occurs_ms, envelope, started_ms FROM occurrences WHERE state = 'working'"
)
_gate_history_query = sa.text(
    "SELECT SUM(state IN ('ran', 'failed')) AS opened, SUM(state = 'skipped' AND because LIKE 'gate:%') AS closed "
    "FROM occurrences WHERE schedule = :schedule"
)
_spending_query = sa.select(t.spending.c.day, t.spending.c.agent, t.spending.c.settled_microusd).where(
    t.spending.c.day >= sa.bindparam("day_from"), t.spending.c.day <= sa.bindparam("day_to")
)


def read_gate_history(conn: sa.Connection, context: DryRunContext) -> dict[str, tuple[int, int]]:
    """Return how often each gate was open and closed before the dry run."""
    found: dict[str, tuple[int, int]] = {}
    for kept in context.schedules:
        if kept.schedule.gate is not None:
            row = conn.execute(_gate_history_query, {"schedule": kept.id}).one()
            found[kept.id] = (row.opened or 0, row.closed or 0)
    return found


def build_report(
    conn: sa.Connection,
    plan: DryRunPlan,
    settings: Settings,
    context: DryRunContext,
    result: SimulationResult,
    *,
    gate_history: Mapping[str, tuple[int, int]],
    gate_descriptions: Mapping[str, str],
    notes: Sequence[str],
    duration_s: float,
) -> DryRunReport:
    """Build the report of a dry run from the copy."""
    zone = settings.zone
    names: dict[str, str] = {each.id: _schedule_name(each.schedule) for each in context.schedules}
    runs = _list_runs(conn, plan, result, names, zone)
    skips = [
        _summarize_skip(row, names, zone)
        for row in conn.execute(_occurrences_query)
        if row.state == OccurrenceState.SKIPPED
    ]
    total = TotalsCounter()
    by_schedule, by_agent, by_day = (defaultdict[str, TotalsCounter](TotalsCounter) for _ in range(3))
    for run in runs:
        for adding in (total, by_schedule[run.schedule], by_agent[run.agent], by_day[run.started_at[:10]]):
            adding.add_run(run)
    agent_of = {names[each.id]: _schedule_agent(each.schedule) for each in context.schedules}
    for skip in skips:
        agent = agent_of.get(skip.schedule, "")
        for adding in (total, by_schedule[skip.schedule], by_agent[agent], by_day[skip.at[:10]]):
            adding.add_skip(skip)
    summaries = [
        _summarize_schedule(
            each,
            context,
            result,
            names[each.id],
            by_schedule[names[each.id]].totals,
            gate=_summarize_gate(each, gate_history, gate_descriptions),
            zone=zone,
        )
        for each in sorted(context.schedules, key=lambda each: names[each.id])
    ]
    if ENVELOPE_LABEL in by_schedule:
        runs_text = format_quantity(by_schedule[ENVELOPE_LABEL].totals.runs, "run")
        notes = [*notes, f"{runs_text} for messages that were sent with a later delivery time"]
    return DryRunReport(
        data_directory=str(settings.home),
        start=_format_time(plan.start, zone),
        until=_format_time(result.until, zone),
        days=plan.days,
        zone=zone.key,
        seed=plan.seed,
        duration_s=duration_s,
        stopped_because=result.stopped_because,
        cancelled_runs=len(result.cancelled_runs),
        totals=total.totals,
        schedules=summaries,
        agents=[NamedTotals(name=name, totals=each.totals) for name, each in sorted(by_agent.items())],
        by_day=[NamedTotals(name=day, totals=each.totals) for day, each in sorted(by_day.items())],
        skips=skips,
        budgets=list(_summarize_budgets(conn, plan, settings, context, runs)),
        busiest_minutes=_busiest_minutes(runs),
        delayed=_find_delays(runs),
        idle_schedules=[
            IdleSchedule(schedule=each.name, because=_idle_because(each)) for each in summaries if _is_idle(each.totals)
        ],
        notes=list(notes)[:NOTES_MAX],
        runs=runs,
    )


def _schedule_name(schedule: Schedule) -> str:
    if schedule.kind is ScheduleKind.HEARTBEAT:
        return f"heartbeat of {schedule.to.name}"
    return schedule.name or short_id(schedule.id)


def _schedule_agent(schedule: Schedule) -> str:
    """Return the agent that a schedule writes to, or an empty string if it writes to a person or a channel."""
    return schedule.to.name if schedule.to.kind is AddressKind.AGENT else ""


# --- runs and skips ---


def _list_runs(
    conn: sa.Connection, plan: DryRunPlan, result: SimulationResult, names: Mapping[str, str], zone: ZoneInfo
) -> list[SimulatedRun]:
    """Return all runs by start time, and the occurrences without a run, whose envelopes go to a person or a channel."""
    since = {"since": to_ms(plan.start)}
    slots: dict[str, CopyRow] = {
        row.envelope: row for row in conn.execute(_occurrences_query) if row.state != OccurrenceState.SKIPPED
    }
    slots |= {row.envelope: row for row in conn.execute(_running_occurrences_query)}
    of_run = {row.run: slots.pop(row.id) for row in conn.execute(_envelope_runs_query) if row.id in slots}
    paid: dict[str, CopyRow] = {row.run: row for row in conn.execute(_costs_query, since)}
    found = [
        (run.started_ms, _summarize_run(run, of_run.get(run.id), paid.get(run.id), names, zone))
        for run in conn.execute(_runs_query, since)
        if run.id not in result.cancelled_runs
    ]
    found += [(slot.started_ms or slot.occurs_ms, _summarize_occurrence(slot, names, zone)) for slot in slots.values()]
    return [run for _, run in sorted(found, key=lambda each: each[0])]


def _summarize_run(
    run: CopyRow, occurrence: CopyRow | None, cost: CopyRow | None, names: Mapping[str, str], zone: ZoneInfo
) -> SimulatedRun:
    return SimulatedRun(
        at=_format_ms(occurrence.occurs_ms if occurrence is not None else run.started_ms, zone),
        started_at=_format_ms(run.started_ms, zone),
        ended_at=_format_ms(run.ended_ms, zone) if run.ended_ms is not None else None,
        schedule=names.get(occurrence.schedule, short_id(occurrence.schedule))
        if occurrence is not None
        else ENVELOPE_LABEL,
        agent=run.agent,
        session=short_id(run.session),
        state=_STATES_BY_STATUS.get(run.status, OccurrenceState.WORKING).value,
        because=run.error or "",
        model="" if cost is None else f"{cost.provider}/{cost.model}".strip("/"),
        input_tokens=cost.input_tokens if cost is not None else 0,
        output_tokens=cost.output_tokens if cost is not None else 0,
        cost_microusd=_cost_of(cost),
    )


_STATES_BY_STATUS = {
    "completed": OccurrenceState.RAN,
    "failed": OccurrenceState.FAILED,
    "cancelled": OccurrenceState.FAILED,
}


def _cost_of(cost: CopyRow | None) -> int | None:
    if cost is None:
        return 0  # refused before the model call, or a free model
    return None if cost.cost_unknown else cost.settled_microusd


def _summarize_occurrence(occurrence: CopyRow, names: Mapping[str, str], zone: ZoneInfo) -> SimulatedRun:
    """Return the summary of an occurrence without a run, whose envelope goes to a person or a channel."""
    state = getattr(occurrence, "state", OccurrenceState.WORKING)
    ended = getattr(occurrence, "ended_ms", None)
    return SimulatedRun(
        at=_format_ms(occurrence.occurs_ms, zone),
        started_at=_format_ms(occurrence.started_ms or occurrence.occurs_ms, zone),
        ended_at=_format_ms(ended, zone) if ended is not None else None,
        schedule=names.get(occurrence.schedule, short_id(occurrence.schedule)),
        agent="",
        session="",
        state=str(state),
        because=getattr(occurrence, "because", ""),
        model="",
        input_tokens=0,
        output_tokens=0,
        cost_microusd=0,
    )


def _summarize_skip(row: CopyRow, names: Mapping[str, str], zone: ZoneInfo) -> SimulatedSkip:
    return SimulatedSkip(
        at=_format_ms(row.occurs_ms, zone),
        until=_format_ms(row.until_ms, zone) if row.until_ms is not None else None,
        times=row.skipped_count,
        schedule=names.get(row.schedule, short_id(row.schedule)),
        kind=skip_kind_of(row.because),
        because=row.because,
    )


_SKIP_KINDS_BY_PREFIX = {
    "missed": SkipKind.MISSED,
    "its time had passed": SkipKind.MISSED,
    "overlap": SkipKind.OVERLAP,
    "the previous occurrence was still running": SkipKind.OVERLAP,
    "gate": SkipKind.GATE,
    "it has no text, and its gate": SkipKind.GATE,
    "quiet": SkipKind.HOURS,
    "empty": SkipKind.EMPTY,
    "nothing is due": SkipKind.EMPTY,
    "busy": SkipKind.BUSY,
}


def skip_kind_of(because: str) -> SkipKind:
    return next((kind for start, kind in _SKIP_KINDS_BY_PREFIX.items() if because.startswith(start)), SkipKind.OTHER)


# --- totals ---


def _summarize_schedule(
    stored: StoredSchedule,
    context: DryRunContext,
    result: SimulationResult,
    name: str,
    totals: RunTotals,
    *,
    gate: GateSummary | None,
    zone: ZoneInfo,
) -> ScheduleSummary:
    schedule = stored.schedule
    following = next_occurrence(schedule.when, result.until, stored.zone_info) if stored.enabled else None
    works = schedule.to.kind is AddressKind.AGENT
    return ScheduleSummary(
        id=stored.id,
        name=name,
        to=str(schedule.to),
        when=describe_trigger(schedule.when, stored.zone_info),
        zone=stored.zone,
        enabled=stored.enabled,
        because=stored.because,
        totals=totals,
        model=_model_of(stored, context, result) if works else "",
        estimate_basis=context.estimates.for_schedule(stored.id).basis if works else "no model is called",
        gate=gate,
        next=_format_time(following, zone) if following is not None else None,
    )


def _model_of(stored: StoredSchedule, context: DryRunContext, result: SimulationResult) -> str:
    """Return the model that a schedule's agent uses first.

    If a session has another model, the report shows that model for the runs of the session.
    """
    agent = next((each for each in context.agents if each.name == stored.schedule.to.name), None)
    if agent is None:
        return ""
    try:
        caps = result.models.caps(agent)
        return str(result.stub_runner.select_model(agent, SessionOptions(), stored.schedule.model, caps).ref)
    except RetinueError as error:
        return f"none: {error.sentence}"


def _summarize_gate(
    stored: StoredSchedule, history: Mapping[str, tuple[int, int]], descriptions: Mapping[str, str]
) -> GateSummary | None:
    if stored.schedule.gate is None:
        return None
    was_open, was_closed = history.get(stored.id, (0, 0))
    return GateSummary(treatment=descriptions.get(stored.id, "assumed open"), was_open=was_open, was_closed=was_closed)


def _is_idle(totals: RunTotals) -> bool:
    return not totals.runs and not totals.skipped


def _idle_because(schedule: ScheduleSummary) -> str:
    if not schedule.enabled:
        return f"it is disabled: {schedule.because}" if schedule.because else "it is disabled"
    return f"its next occurrence is at {schedule.next}" if schedule.next else "it has no further occurrence"


# --- budgets ---


def _summarize_budgets(
    conn: sa.Connection, plan: DryRunPlan, settings: Settings, context: DryRunContext, runs: Sequence[SimulatedRun]
) -> Iterable[BudgetSummary]:
    first = plan.start.astimezone(settings.zone).date()
    last = plan.until.astimezone(settings.zone).date()
    days = {"day_from": day_number(first.replace(day=1)), "day_to": day_number(last)}
    spent = [
        (date_of_day_number(row.day), row.agent, row.settled_microusd) for row in conn.execute(_spending_query, days)
    ]
    refused = [run for run in runs if run.because.startswith(BudgetSpent.code)]
    budgets = settings.budgets
    caps: list[tuple[str, str, int]] = [
        (f"instance's {period}", "", round(cap * MICROUSD_PER_USD))
        for period, cap in (("day", budgets.instance_day_usd), ("month", budgets.instance_month_usd))
        if cap is not None
    ]
    caps += [
        (f"agent's {period}", agent.name, cap)
        for agent in context.agents
        for period, cap in (("day", agent.day_microusd_max), ("month", agent.month_microusd_max))
        if cap is not None
    ]
    for what, owner, cap in caps:
        totals: Counter[str] = Counter()
        for day, agent, microusd in spent:
            if (not owner or agent == owner) and (what.endswith("month") or day >= first):
                totals[f"{day:%Y-%m}" if what.endswith("month") else f"{day:%Y-%m-%d}"] += microusd
        on, most = max(totals.items(), key=lambda each: each[1], default=("", 0))
        by_it = [run for run in refused if _was_refused_by(run, what, owner)]
        yield BudgetSummary(
            name=what,
            owner=owner,
            cap_microusd=cap,
            highest_microusd=most,
            highest_on=on,
            refused=len(by_it),
            first_refused=by_it[0].started_at if by_it else None,
        )
    if others := [run for run in refused if not any(_was_refused_by(run, what, owner) for what, owner, _ in caps)]:
        yield BudgetSummary(
            name="run",
            owner=", ".join(sorted({run.agent for run in others})),
            cap_microusd=0,
            highest_microusd=0,
            highest_on="",
            refused=len(others),
            first_refused=others[0].started_at,
        )


def _was_refused_by(run: SimulatedRun, what: str, owner: str) -> bool:
    """Return whether a budget refused a run. The error text of the run names the budget."""
    named = f"agent '{owner}'" if owner else "this server"
    period = "today" if what.endswith("day") else "this month"
    return f"{named} for {period} " in run.because


# --- load ---


def _find_delays(runs: Sequence[SimulatedRun]) -> DelayedRuns:
    late = [(_parse_time(run.started_at) - _parse_time(run.at), run) for run in runs]
    late = [each for each in late if each[0] > timedelta(seconds=LATE_AFTER_S)]
    if not late:
        return DelayedRuns()
    by, run = max(late, key=lambda each: each[0])
    return DelayedRuns(runs=len(late), longest_s=int(by.total_seconds()), schedule=run.schedule, at=run.at)


def _busiest_minutes(runs: Sequence[SimulatedRun]) -> list[BusyMinute]:
    """Return the minutes with the most runs in progress, starting with the busiest.

    If the same runs continue for several minutes, only the first minute is returned.
    """
    changes: Counter[datetime] = Counter()
    for run in runs:
        started_at, ended = _parse_time(run.started_at), _parse_time(run.ended_at or run.started_at)
        until = max(
            started_at, ended - timedelta(seconds=1)
        )  # a run that ends on the minute does not count in the next
        changes[started_at.replace(second=0)] += 1
        changes[until.replace(second=0) + timedelta(minutes=1)] -= 1
    at_work, found = 0, list[tuple[datetime, int]]()
    for minute in sorted(changes):
        at_work += changes[minute]
        if changes[minute] > 0:
            found.append((minute, at_work))
    busiest = heapq.nsmallest(BUSIEST_MAX, found, key=lambda each: (-each[1], each[0]))
    return [BusyMinute(at=minute.isoformat(timespec="minutes"), runs=count) for minute, count in busiest if count > 1]


def _parse_time(shown: str) -> datetime:
    return datetime.fromisoformat(shown)


def _format_ms(ms: int, zone: ZoneInfo) -> str:
    return _format_time(from_ms(ms), zone)


def _format_time(moment: datetime, zone: ZoneInfo) -> str:
    return moment.astimezone(zone).isoformat(timespec="seconds")
