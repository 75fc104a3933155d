"""Apply `[schedules.*]` of the settings file: compare declared with stored schedules, as for agents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.agents.apply_plan import Planned, Step
from retinue.config.declarations import ScheduleGate
from retinue.domain import address
from retinue.domain.errors import Invalid, RetinueError
from retinue.domain.ids import ScheduleId
from retinue.domain.principal import Principal
from retinue.domain.schedule import Every, Schedule
from retinue.domain.trust import Trust
from retinue.intake.routing import OWNER
from retinue.operations.base import Desk
from retinue.operations.schedule.schedules import zone_of
from retinue.schedules import schedule_parser
from retinue.schedules.schedule_parser import Form, Setting
from retinue.store.core.transaction import Page
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import Kept

SETTINGS = "settings"  # source of schedules written by `apply`


class PlannedSchedule(Struct, frozen=True):
    planned: Planned
    schedule: Schedule | None = None
    enabled: bool = True
    kept: Kept | None = None


def plan(
    conn: sa.Connection, desk: Desk, declared: Mapping[str, Mapping[str, Any]], *, take_file: bool, reset: bool
) -> list[PlannedSchedule]:
    """Return the planned steps in the order of the file, then the schedules that the file does not declare."""
    here = {each.schedule.name.casefold(): each for each in _named(conn)}
    if reset:
        here = {}
    planned = [
        _plan(desk, name, table, here.pop(name.casefold(), None), take_file=take_file)
        for name, table in declared.items()
    ]
    left = [each.schedule.name for each in here.values() if each.schedule.source == SETTINGS]
    because = "it is not in the file, so it is left as it is"
    return [*planned, *(PlannedSchedule(Planned(Step.UNDECLARED, name, because)) for name in left)]


def _named(conn: sa.Connection) -> list[Kept]:
    found: list[Kept] = []
    after = ""
    while rows := schedules.everyone(conn, after=after, limit=500):
        found += [each for each in rows if each.schedule.name]
        after = rows[-1].id
    return found


def _plan(desk: Desk, name: str, table: Mapping[str, Any], kept: Kept | None, *, take_file: bool) -> PlannedSchedule:
    enabled = bool(table.get("enabled", True))
    was = kept.schedule if kept is not None else None
    try:
        wanted = schedule_parser.read(
            form_of(table),
            Setting(
                id=was.id if was is not None else ScheduleId(desk.ids.new()),
                name=was.name if was is not None else name,
                owner=was.owner if was is not None else OWNER,
                trust=Trust.OWNER,
                now=desk.clock.now(),
                zone=zone_of(desk),
                source=SETTINGS,
                start=was.when.start if was is not None and isinstance(was.when, Every) else None,
            ),
        )
    except RetinueError as error:
        raise Invalid(
            f"schedules.{name} cannot be applied: {error.sentence}",
            because=error.because,
            try_this=error.try_this,
            code=error.code,
        ) from None
    if kept is None or was is None:
        return PlannedSchedule(Planned(Step.ADD, name, "no schedule of this name is here"), wanted, enabled)
    changed = differences(was, wanted, kept.enabled, enabled)
    if not changed:
        return PlannedSchedule(Planned(Step.KEEP, was.name, "it is as declared"))
    if was.source != SETTINGS and not take_file:
        because = f"it was set over the {was.source}; take the file to overwrite that"
        return PlannedSchedule(Planned(Step.DRIFT, was.name, because, changed=changed))
    because = "it is declared otherwise"
    return PlannedSchedule(Planned(Step.CHANGE, was.name, because, changed=changed), wanted, enabled, kept)


def form_of(table: Mapping[str, Any]) -> Form:
    gate = table.get("gate")
    agent: str = table["agent"]
    return Form(
        to=str(address.agent(agent)),
        text=table.get("text", ""),
        description=table.get("description", ""),
        at=table.get("at", ""),
        every=f"{int(table['every_s'])}s" if table.get("every_s") else "",
        cron=table.get("cron", ""),
        zone=table.get("zone", ""),
        place=table.get("place"),
        deliver=table.get("deliver", ""),
        missed=table.get("missed"),
        delete_after_run=table.get("delete_after_run", False),
        model=table.get("model", ""),
        title=table.get("title", ""),
        gate=schedule_parser.form_of(gate) if isinstance(gate, ScheduleGate) else None,
    )


def differences(was: Schedule, wanted: Schedule, was_on: bool, on: bool) -> dict[str, tuple[Any, Any]]:
    changed: dict[str, tuple[Any, Any]] = {}
    for name in ("to", "text", "description", "when", "zone", "place", "deliver", "missed"):
        one, other = getattr(was, name), getattr(wanted, name)
        if one != other:
            changed[name] = (str(one), str(other))
    for name in ("delete_after_run", "model", "title"):
        one, other = getattr(was, name), getattr(wanted, name)
        if one != other:
            changed[name] = (one, other)
    if was.gate != wanted.gate:
        changed["gate"] = (was.gate is not None, wanted.gate is not None)
    if was_on != on:
        changed["enabled"] = (was_on, on)
    return changed


def carry_out(page: Page, desk: Desk, plan: list[PlannedSchedule], caller: Principal) -> None:
    because = f"the settings were applied by {caller.address}"
    for each in plan:
        if each.schedule is None:
            continue
        if each.kept is None:
            why = "" if each.enabled else "so say the settings"
            schedules.add(page, each.schedule, zone=zone_of(desk), enabled=each.enabled, because=why)
            continue
        kept = schedules.change(page, each.kept, each.schedule, zone=zone_of(desk), because=because)
        if each.enabled and not kept.enabled:
            schedules.enable(page, kept)
        elif not each.enabled and kept.enabled:
            schedules.disable(page, kept, because="so say the settings")


def clear(page: Page, caller: Principal) -> int:
    """Delete all schedules, for `--reset`."""
    cleared = 0
    while rows := schedules.everyone(page.conn, limit=500):
        for kept in rows:
            schedules.delete(page, kept, because=f"the house was reset by {caller.address}")
            cleared += 1
    return cleared
