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
from retinue.domain.errors import RetinueError
from retinue.domain.ids import short
from retinue.domain.money import MICROUSD, BudgetSpent, date_of, day_number
from retinue.domain.schedule import SKIPS_COUNTED_MAX, Kind, Schedule, SlotState, in_words, next_after
from retinue.domain.session import Mind
from retinue.domain.times import from_ms, to_ms
from retinue.dry_run.copied_server import KEPT_SLOTS, Played, Scene
from retinue.dry_run.parameters import Plan
from retinue.dry_run.report_types import (
    BudgetTold,
    GateTold,
    HeldUp,
    MinuteTold,
    Never,
    Report,
    RunTold,
    ScheduleTold,
    SkipKind,
    SkipTold,
    Sums,
    SumsOf,
)
from retinue.store.core import tables as t
from retinue.store.schedules.schedules import Kept

BUSIEST_MAX = 5
LATE_S = 60
Row = Any  # a row of the copy
MAIL = "(mail)"  # shown in place of a schedule: an envelope sent with a later due time
NOTES_MAX = 20


class Adding:
    """Accumulates totals."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()

    def run(self, run: RunTold) -> None:
        numbers = self._numbers
        numbers["runs"] += 1
        numbers["failed"] += run.state == SlotState.FAILED
        numbers["input_tokens"] += run.input_tokens
        numbers["output_tokens"] += run.output_tokens
        numbers["cost_microusd"] += run.cost_microusd or 0
        numbers["unpriced"] += run.cost_microusd is None

    def skip(self, skip: SkipTold) -> None:
        self._numbers["skipped"] += SKIPS_COUNTED_MAX if skip.times is None else skip.times

    @property
    def sums(self) -> Sums:
        return Sums(**self._numbers)


_slots = sa.text(f"SELECT * FROM {KEPT_SLOTS} ORDER BY id")
_runs = sa.select(
    t.runs.c.id,
    t.runs.c.session,
    t.runs.c.agent,
    t.runs.c.status,
    t.runs.c.sender,
    t.runs.c.started_ms,
    t.runs.c.ended_ms,
    t.runs.c.error,
).where(t.runs.c.started_ms >= sa.bindparam("since"))
_money = sa.select(
    t.money.c.run,
    t.money.c.provider,
    t.money.c.model,
    t.money.c.input_tokens,
    t.money.c.output_tokens,
    t.money.c.settled_microusd,
    t.money.c.unknown,
).where(t.money.c.at_ms >= sa.bindparam("since"))
_run_of = sa.select(t.envelopes.c.id, t.envelopes.c.run).where(
    t.envelopes.c.run.is_not(None), t.envelopes.c.sender.startswith("schedule:")
)
_working = sa.text("SELECT schedule, slot_ms, envelope, begun_ms FROM schedule_slots WHERE state = 'working'")
_gate_history = sa.text(
    "SELECT SUM(state IN ('ran', 'failed')) AS opened, SUM(state = 'skipped' AND because LIKE 'gate:%') AS closed "
    "FROM schedule_slots WHERE schedule = :schedule"
)
_spending = sa.select(t.spending.c.day, t.spending.c.agent, t.spending.c.settled_microusd).where(
    t.spending.c.day >= sa.bindparam("day_from"), t.spending.c.day <= sa.bindparam("day_to")
)


def gates_before(conn: sa.Connection, scene: Scene) -> dict[str, tuple[int, int]]:
    """Return how often each gate was open and closed before the dry run."""
    found: dict[str, tuple[int, int]] = {}
    for kept in scene.schedules:
        if kept.schedule.gate is not None:
            row = conn.execute(_gate_history, {"schedule": kept.id}).one()
            found[kept.id] = (row.opened or 0, row.closed or 0)
    return found


def report(
    conn: sa.Connection,
    plan: Plan,
    settings: Settings,
    scene: Scene,
    played: Played,
    *,
    gates: Mapping[str, tuple[int, int]],
    gates_taken: Mapping[str, str],
    notes: Sequence[str],
    took_s: float,
) -> Report:
    """Build the report."""
    zone = settings.zone
    names: dict[str, str] = {each.id: _name_of(each.schedule) for each in scene.schedules}
    runs = _runs_told(conn, plan, played, names, zone)
    skips = [_skip_told(row, names, zone) for row in conn.execute(_slots) if row.state == SlotState.SKIPPED]
    total = Adding()
    by_schedule, by_agent, by_day = (defaultdict[str, Adding](Adding) for _ in range(3))
    for run in runs:
        for adding in (total, by_schedule[run.schedule], by_agent[run.agent], by_day[run.began[:10]]):
            adding.run(run)
    agent_of = {names[each.id]: _agent_of(each.schedule) for each in scene.schedules}
    for skip in skips:
        agent = agent_of.get(skip.schedule, "")
        for adding in (total, by_schedule[skip.schedule], by_agent[agent], by_day[skip.at[:10]]):
            adding.skip(skip)
    told = [
        _schedule_told(
            each,
            scene,
            played,
            names[each.id],
            by_schedule[names[each.id]].sums,
            gate=_gate_told(each, gates, gates_taken),
            zone=zone,
        )
        for each in sorted(scene.schedules, key=lambda each: names[each.id])
    ]
    if MAIL in by_schedule:
        notes = [*notes, f"{by_schedule[MAIL].sums.runs} runs are of mail that was sent for a later time"]
    return Report(
        house=str(settings.home),
        begin=_show(plan.begin, zone),
        until=_show(played.until, zone),
        days=plan.days,
        zone=zone.key,
        seed=plan.seed,
        took_s=took_s,
        stopped=played.stopped,
        left_out=len(played.left_out),
        sums=total.sums,
        schedules=told,
        agents=[SumsOf(name=name, sums=each.sums) for name, each in sorted(by_agent.items())],
        by_day=[SumsOf(name=day, sums=each.sums) for day, each in sorted(by_day.items())],
        skips=skips,
        budgets=list(_budgets(conn, plan, settings, scene, runs)),
        busiest=_busiest(runs),
        held_up=_held_up(runs),
        never=[Never(schedule=each.name, because=_why_never(each)) for each in told if _is_idle(each.sums)],
        notes=list(notes)[:NOTES_MAX],
        runs=runs,
    )


def _name_of(schedule: Schedule) -> str:
    if schedule.kind is Kind.HEARTBEAT:
        return f"heartbeat of {schedule.to.name}"
    return schedule.name or short(schedule.id)


def _agent_of(schedule: Schedule) -> str:
    """Return the agent of a schedule; an empty string if it is for a person or a channel."""
    return schedule.to.name if schedule.to.kind is AddressKind.AGENT else ""


# --- runs and skips ---


def _runs_told(
    conn: sa.Connection, plan: Plan, played: Played, names: Mapping[str, str], zone: ZoneInfo
) -> list[RunTold]:
    """Return all runs by start time, and the occurrences without a run, which go to a person or a channel."""
    since = {"since": to_ms(plan.begin)}
    slots: dict[str, Row] = {row.envelope: row for row in conn.execute(_slots) if row.state != SlotState.SKIPPED}
    slots |= {row.envelope: row for row in conn.execute(_working)}
    of_run = {row.run: slots.pop(row.id) for row in conn.execute(_run_of) if row.id in slots}
    paid: dict[str, Row] = {row.run: row for row in conn.execute(_money, since)}
    found = [
        (run.started_ms, _run_told(run, of_run.get(run.id), paid.get(run.id), names, zone))
        for run in conn.execute(_runs, since)
        if run.id not in played.left_out
    ]
    found += [(slot.begun_ms or slot.slot_ms, _word_told(slot, names, zone)) for slot in slots.values()]
    return [told for _, told in sorted(found, key=lambda each: each[0])]


def _run_told(run: Row, slot: Row | None, paid: Row | None, names: Mapping[str, str], zone: ZoneInfo) -> RunTold:
    return RunTold(
        at=_show_ms(slot.slot_ms if slot is not None else run.started_ms, zone),
        began=_show_ms(run.started_ms, zone),
        ended=_show_ms(run.ended_ms, zone) if run.ended_ms is not None else None,
        schedule=names.get(slot.schedule, short(slot.schedule)) if slot is not None else MAIL,
        agent=run.agent,
        session=short(run.session),
        state=_STATES.get(run.status, SlotState.WORKING).value,
        because=run.error or "",
        model="" if paid is None else f"{paid.provider}/{paid.model}".strip("/"),
        input_tokens=paid.input_tokens if paid is not None else 0,
        output_tokens=paid.output_tokens if paid is not None else 0,
        cost_microusd=_cost_of(paid),
    )


_STATES = {"completed": SlotState.RAN, "failed": SlotState.FAILED, "cancelled": SlotState.FAILED}


def _cost_of(paid: Row | None) -> int | None:
    if paid is None:
        return 0  # refused before the model call, or a free model
    return None if paid.unknown else paid.settled_microusd


def _word_told(slot: Row, names: Mapping[str, str], zone: ZoneInfo) -> RunTold:
    """Return an occurrence without a run: its envelope goes to a person or a channel."""
    state = getattr(slot, "state", SlotState.WORKING)
    ended = getattr(slot, "ended_ms", None)
    return RunTold(
        at=_show_ms(slot.slot_ms, zone),
        began=_show_ms(slot.begun_ms or slot.slot_ms, zone),
        ended=_show_ms(ended, zone) if ended is not None else None,
        schedule=names.get(slot.schedule, short(slot.schedule)),
        agent="",
        session="",
        state=str(state),
        because=getattr(slot, "because", ""),
        model="",
        input_tokens=0,
        output_tokens=0,
        cost_microusd=0,
    )


def _skip_told(row: Row, names: Mapping[str, str], zone: ZoneInfo) -> SkipTold:
    return SkipTold(
        at=_show_ms(row.slot_ms, zone),
        until=_show_ms(row.until_ms, zone) if row.until_ms is not None else None,
        times=row.number,
        schedule=names.get(row.schedule, short(row.schedule)),
        kind=kind_of(row.because),
        because=row.because,
    )


_KINDS = {
    "missed": SkipKind.MISSED,
    "its time was over": SkipKind.MISSED,
    "overlap": SkipKind.OVERLAP,
    "the one before it was still": SkipKind.OVERLAP,
    "gate": SkipKind.GATE,
    "it has no text, and its gate": SkipKind.GATE,
    "quiet": SkipKind.HOURS,
    "empty": SkipKind.EMPTY,
    "nothing is due": SkipKind.EMPTY,
    "busy": SkipKind.BUSY,
}


def kind_of(because: str) -> SkipKind:
    return next((kind for start, kind in _KINDS.items() if because.startswith(start)), SkipKind.OTHER)


# --- totals ---


def _schedule_told(
    kept: Kept, scene: Scene, played: Played, name: str, sums: Sums, *, gate: GateTold | None, zone: ZoneInfo
) -> ScheduleTold:
    schedule = kept.schedule
    following = next_after(schedule.when, played.until, kept.place) if kept.enabled else None
    works = schedule.to.kind is AddressKind.AGENT
    return ScheduleTold(
        id=kept.id,
        name=name,
        to=str(schedule.to),
        when=in_words(schedule.when, kept.place),
        zone=kept.zone,
        enabled=kept.enabled,
        because=kept.because,
        sums=sums,
        model=_model_of(kept, scene, played) if works else "",
        estimated=scene.estimates.of_schedule(kept.id).basis if works else "no model is asked",
        gate=gate,
        next=_show(following, zone) if following is not None else None,
    )


def _model_of(kept: Kept, scene: Scene, played: Played) -> str:
    """Return the first model of the agent. A session may use another one, which its runs show."""
    agent = next((each for each in scene.staff if each.name == kept.schedule.to.name), None)
    if agent is None:
        return ""
    try:
        caps = played.minds.caps(agent)
        return str(played.understudy.thinks_with(agent, Mind(), kept.schedule.model, caps).ref)
    except RetinueError as error:
        return f"none: {error.sentence}"


def _gate_told(kept: Kept, gates: Mapping[str, tuple[int, int]], taken: Mapping[str, str]) -> GateTold | None:
    if kept.schedule.gate is None:
        return None
    was_open, was_closed = gates.get(kept.id, (0, 0))
    return GateTold(taken=taken.get(kept.id, "assumed open"), was_open=was_open, was_closed=was_closed)


def _is_idle(sums: Sums) -> bool:
    return not sums.runs and not sums.skipped


def _why_never(told: ScheduleTold) -> str:
    if not told.enabled:
        return f"it is disabled: {told.because}" if told.because else "it is disabled"
    return f"it comes next at {told.next}" if told.next else "it does not come any more"


# --- budgets ---


def _budgets(
    conn: sa.Connection, plan: Plan, settings: Settings, scene: Scene, runs: Sequence[RunTold]
) -> Iterable[BudgetTold]:
    first = plan.begin.astimezone(settings.zone).date()
    last = plan.until.astimezone(settings.zone).date()
    days = {"day_from": day_number(first.replace(day=1)), "day_to": day_number(last)}
    spent = [(date_of(row.day), row.agent, row.settled_microusd) for row in conn.execute(_spending, days)]
    refused = [run for run in runs if run.because.startswith(BudgetSpent.code)]
    house = settings.budgets
    caps: list[tuple[str, str, int]] = [
        (f"house's {period}", "", round(cap * MICROUSD))
        for period, cap in (("day", house.house_day_usd), ("month", house.house_month_usd))
        if cap is not None
    ]
    caps += [
        (f"agent's {period}", agent.name, cap)
        for agent in scene.staff
        for period, cap in (("day", agent.day_microusd_max), ("month", agent.month_microusd_max))
        if cap is not None
    ]
    for what, whose, cap in caps:
        sums: Counter[str] = Counter()
        for day, agent, microusd in spent:
            if (not whose or agent == whose) and (what.endswith("month") or day >= first):
                sums[f"{day:%Y-%m}" if what.endswith("month") else f"{day:%Y-%m-%d}"] += microusd
        on, most = max(sums.items(), key=lambda each: each[1], default=("", 0))
        by_it = [run for run in refused if _was_by(run, what, whose)]
        yield BudgetTold(
            what=what,
            whose=whose,
            cap_microusd=cap,
            most_microusd=most,
            most_on=on,
            refused=len(by_it),
            first_refused=by_it[0].began if by_it else None,
        )
    if others := [run for run in refused if not any(_was_by(run, what, whose) for what, whose, _ in caps)]:
        yield BudgetTold(
            what="run",
            whose=", ".join(sorted({run.agent for run in others})),
            cap_microusd=0,
            most_microusd=0,
            most_on="",
            refused=len(others),
            first_refused=others[0].began,
        )


def _was_by(run: RunTold, what: str, whose: str) -> bool:
    """Whether this budget refused a run, according to the text of the error."""
    named = f"agent '{whose}'" if whose else "the house"
    period = "today" if what.endswith("day") else "this month"
    return f"{named} for {period} " in run.because


# --- load ---


def _held_up(runs: Sequence[RunTold]) -> HeldUp:
    late = [(_moment(run.began) - _moment(run.at), run) for run in runs]
    late = [each for each in late if each[0] > timedelta(seconds=LATE_S)]
    if not late:
        return HeldUp()
    by, run = max(late, key=lambda each: each[0])
    return HeldUp(runs=len(late), longest_s=int(by.total_seconds()), schedule=run.schedule, at=run.at)


def _busiest(runs: Sequence[RunTold]) -> list[MinuteTold]:
    """Return the minutes with the most runs in progress, busiest first; of a stretch of minutes, the first."""
    changes: Counter[datetime] = Counter()
    for run in runs:
        began, ended = _moment(run.began), _moment(run.ended or run.began)
        until = max(began, ended - timedelta(seconds=1))  # a run that ends on the minute does not count in the next
        changes[began.replace(second=0)] += 1
        changes[until.replace(second=0) + timedelta(minutes=1)] -= 1
    at_work, found = 0, list[tuple[datetime, int]]()
    for minute in sorted(changes):
        at_work += changes[minute]
        if changes[minute] > 0:
            found.append((minute, at_work))
    busiest = heapq.nsmallest(BUSIEST_MAX, found, key=lambda each: (-each[1], each[0]))
    return [MinuteTold(at=minute.isoformat(timespec="minutes"), runs=count) for minute, count in busiest if count > 1]


def _moment(shown: str) -> datetime:
    return datetime.fromisoformat(shown)


def _show_ms(ms: int, zone: ZoneInfo) -> str:
    return _show(from_ms(ms), zone)


def _show(moment: datetime, zone: ZoneInfo) -> str:
    return moment.astimezone(zone).isoformat(timespec="seconds")
