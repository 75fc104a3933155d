"""Plans and applies the `[schedules.*]` tables of the settings file, for `config.apply`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from msgspec import Struct

from retinue.agents.apply_plan import ApplyAction, PlannedChange
from retinue.config.declarations import DeclaredGate
from retinue.domain import address
from retinue.domain.errors import RetinueError
from retinue.domain.ids import ScheduleId
from retinue.domain.principal import Principal
from retinue.domain.schedule import EveryTrigger, Schedule
from retinue.domain.trust import Trust
from retinue.intake.routing import OWNER
from retinue.operations.base import Services
from retinue.operations.schedule.errors import DeclaredScheduleInvalid
from retinue.operations.schedule.schedules import owner_zone
from retinue.schedules import schedule_parser
from retinue.schedules.schedule_parser import ScheduleContext, ScheduleForm
from retinue.store.core.transaction import Transaction
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import StoredSchedule

SETTINGS_SOURCE = "settings"  # source of schedules written by `apply`


class PlannedSchedule(Struct, frozen=True):
    step: PlannedChange
    schedule: Schedule | None = None
    enabled: bool = True
    stored: StoredSchedule | None = None


def plan_schedules(
    conn: sa.Connection, services: Services, declared: Mapping[str, Mapping[str, Any]], *, overwrite: bool, reset: bool
) -> list[PlannedSchedule]:
    """Plan the changes that make the stored schedules match the settings file.

    The changes are in the order of the file. Schedules that the file does not declare come last.
    """
    here = {each.schedule.name.casefold(): each for each in _list_named_schedules(conn)}
    if reset:
        here = {}
    planned = [
        _plan_schedule(services, name, table, here.pop(name.casefold(), None), overwrite=overwrite)
        for name, table in declared.items()
    ]
    left = [each.schedule.name for each in here.values() if each.schedule.source == SETTINGS_SOURCE]
    because = "it is not in the settings file, so it stays unchanged"
    return [*planned, *(PlannedSchedule(PlannedChange(ApplyAction.UNDECLARED, name, because)) for name in left)]


def _list_named_schedules(conn: sa.Connection) -> list[StoredSchedule]:
    found: list[StoredSchedule] = []
    after = ""
    while rows := schedules.list_all(conn, after=after, limit=500):
        found += [each for each in rows if each.schedule.name]
        after = rows[-1].id
    return found


def _plan_schedule(
    services: Services, name: str, table: Mapping[str, Any], stored: StoredSchedule | None, *, overwrite: bool
) -> PlannedSchedule:
    enabled = bool(table.get("enabled", True))
    was = stored.schedule if stored is not None else None
    try:
        wanted = schedule_parser.parse_form(
            to_schedule_form(table),
            ScheduleContext(
                id=was.id if was is not None else ScheduleId(services.ids.new()),
                name=was.name if was is not None else name,
                owner=was.owner if was is not None else OWNER,
                trust=Trust.OWNER,
                now=services.clock.now(),
                zone=owner_zone(services),
                source=SETTINGS_SOURCE,
                start=was.when.start if was is not None and isinstance(was.when, EveryTrigger) else None,
            ),
        )
    except RetinueError as error:
        raise DeclaredScheduleInvalid(name, error) from None
    if stored is None or was is None:
        return PlannedSchedule(PlannedChange(ApplyAction.ADD, name, "no schedule has this name yet"), wanted, enabled)
    changed = diff_schedules(was, wanted, stored.enabled, enabled)
    if not changed:
        return PlannedSchedule(PlannedChange(ApplyAction.KEEP, was.name, "it matches the settings file"))
    if was.source != SETTINGS_SOURCE and not overwrite:
        because = f"it was last changed through the {was.source}; use `--overwrite` to overwrite that change"
        return PlannedSchedule(PlannedChange(ApplyAction.DRIFT, was.name, because, changes=changed))
    because = "it differs from the settings file"
    return PlannedSchedule(
        PlannedChange(ApplyAction.CHANGE, was.name, because, changes=changed), wanted, enabled, stored
    )


def to_schedule_form(table: Mapping[str, Any]) -> ScheduleForm:
    gate = table.get("gate")
    agent: str = table["agent"]
    return ScheduleForm(
        to=str(address.agent_address(agent)),
        text=table.get("text", ""),
        description=table.get("description", ""),
        at=table.get("at", ""),
        every=f"{int(table['every_s'])}s" if table.get("every_s") else "",
        cron=table.get("cron", ""),
        zone=table.get("zone", ""),
        session=table.get("session"),
        deliver_to=table.get("deliver_to", ""),
        missed=table.get("missed"),
        delete_after_run=table.get("delete_after_run", False),
        model=table.get("model", ""),
        title=table.get("title", ""),
        gate=schedule_parser.gate_to_form(gate) if isinstance(gate, DeclaredGate) else None,
    )


_SETTING_NAMES = {"place": "session", "deliver": "deliver_to"}  # fields with another name in the settings


def diff_schedules(
    stored: Schedule, declared: Schedule, was_enabled: bool, is_enabled: bool
) -> dict[str, tuple[Any, Any]]:
    changed: dict[str, tuple[Any, Any]] = {}
    for name in ("to", "text", "description", "when", "zone", "place", "deliver", "missed"):
        one, other = getattr(stored, name), getattr(declared, name)
        if one != other:
            changed[_SETTING_NAMES.get(name, name)] = (str(one), str(other))
    for name in ("delete_after_run", "model", "title"):
        one, other = getattr(stored, name), getattr(declared, name)
        if one != other:
            changed[name] = (one, other)
    if stored.gate != declared.gate:
        changed["gate"] = (stored.gate is not None, declared.gate is not None)
    if was_enabled != is_enabled:
        changed["enabled"] = (was_enabled, is_enabled)
    return changed


def apply_plan(
    tx: Transaction, services: Services, planned_schedules: list[PlannedSchedule], caller: Principal
) -> None:
    because = f"the settings were applied by {caller.address}"
    for each in planned_schedules:
        if each.schedule is None:
            continue
        if each.stored is None:
            why = "" if each.enabled else "disabled in the settings"
            schedules.add(tx, each.schedule, zone=owner_zone(services), enabled=each.enabled, because=why)
            continue
        kept = schedules.change(tx, each.stored, each.schedule, zone=owner_zone(services), because=because)
        if each.enabled and not kept.enabled:
            schedules.enable(tx, kept)
        elif not each.enabled and kept.enabled:
            schedules.disable(tx, kept, because="disabled in the settings")


def delete_all_schedules(tx: Transaction, caller: Principal) -> int:
    """Delete all schedules, for `config.apply` with `reset`."""
    cleared = 0
    while rows := schedules.list_all(tx.conn, limit=500):
        for kept in rows:
            schedules.delete(tx, kept, because=f"the server was reset by {caller.address}")
            cleared += 1
    return cleared
