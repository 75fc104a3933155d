"""The schedules of a simulation: which schedules exist, what their gates return, and how people change them."""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from retinue.domain import address
from retinue.domain.agent import Agent, PermissionLevel
from retinue.domain.ids import ScheduleId, short_id
from retinue.domain.ports import IdSource
from retinue.domain.principal import Principal
from retinue.domain.schedule import (
    CronTrigger,
    EveryTrigger,
    GateResult,
    MissedPolicy,
    OnceTrigger,
    Schedule,
    ScheduleGate,
    ScheduleKind,
    ScheduleSession,
    ScheduleTrigger,
)
from retinue.domain.trust import Trust
from retinue.sandbox.errors import SandboxUnavailable
from retinue.schedules.schedule_files import DIRECTORY
from retinue.testing.local_instance import boss_principal
from retinue.testing.simulated_server import SimulatedDisk, SimulatedServer
from retinue.testing.virtual_time import VirtualClock

SCHEDULE_COUNT = 40
ZONES = (None, "Europe/Berlin", "America/New_York")
FREQUENT = ("* * * * *", "*/2 * * * *", "*/30 * * * * *", "1-59/3 * * * *", "*/5 * * * *", "10,40 * * * *")
INFREQUENT = (
    *("0 * * * *", "30 2 * * *", "0,30 1-3 * * *", "15 10 * * 1-5", "0 0 1 * *", "0 12 13 * 5", "5 */2 * * *"),
    *("0 3 * * 0,6", "45 1,2 * * *", "20 0 * * * *"),
)
DAILY = (
    *("0 9 * * *", "30 2 * * *", "15 1,2,3 * * *", "0 18 * * 1-5", "45 6 */2 * *", "0 12 1,15 * *", "0 */6 * * *"),
    *("30 7 * * 1", "0 22 * * 0,6", "5 0 * * *", "10 3-23/8 * * *", "0 2 * * 0"),
)
"""The schedules of calendar mode."""

DST_CHANGES = (
    datetime(2026, 3, 8, 7, tzinfo=UTC),
    datetime(2026, 3, 29, 1, tzinfo=UTC),
    datetime(2026, 10, 25, 1, tzinfo=UTC),
    datetime(2026, 11, 1, 6, tzinfo=UTC),
)
"""The moments at which the clocks change in New York and in Berlin in one year."""

PLAN_NAMES_MAX = 12  # names that agents give to their schedules
GATE_HANG_S = 300.0


class ScheduleWorkload(Protocol):
    """The part of a `Workload` that events about schedules use."""

    rng: random.Random
    clock: VirtualClock
    disk: SimulatedDisk
    agents: list[Agent]
    is_stress: bool
    data_dir: Path

    def trace(self, template: str, *values: object) -> None: ...

    async def call_server(self, ask: Callable[[SimulatedServer], Coroutine[Any, Any, Any]]) -> bool: ...


class ScheduleGenerator:
    """Draws the schedules of a simulation at random, from a seed."""

    def __init__(self, rng: random.Random, ids: IdSource, agents: Sequence[Agent], start: datetime) -> None:
        self._chance = rng
        self._ids = ids
        self._staff = agents
        self._start = start

    def draw_frequent(self) -> list[Schedule]:
        """Draw schedules for stress mode.

        Most have an occurrence every few seconds. Some are due only after a jump of the clock.
        """
        return [self._draw_schedule(number, self._draw_when(number)) for number in range(SCHEDULE_COUNT)]

    def draw_daily(self) -> list[Schedule]:
        """Draw schedules for calendar mode, in which a simulated server is used for weeks."""
        whens: list[ScheduleTrigger] = [CronTrigger(self._chance.choice(DAILY)) for _ in range(SCHEDULE_COUNT - 8)]
        whens += [EveryTrigger(self._chance.choice((40_000, 86_400, 200_000)), self._start) for _ in range(4)]
        whens += [OnceTrigger(self._start + timedelta(hours=self._chance.uniform(1, 160))) for _ in range(4)]
        return [self._draw_schedule(number, when) for number, when in enumerate(whens)]

    def _draw_when(self, number: int) -> ScheduleTrigger:
        chance = self._chance
        match number % 4:
            case 0:
                return CronTrigger(chance.choice(FREQUENT))
            case 1:
                return EveryTrigger(
                    chance.choice((20, 45, 90, 300)), self._start - timedelta(seconds=chance.randrange(300))
                )
            case 2:
                return CronTrigger(chance.choice(INFREQUENT))
            case _:
                return OnceTrigger(self._start + timedelta(seconds=chance.choice((5, 40, 200, 900, 5_000))))

    def _draw_schedule(self, number: int, when: ScheduleTrigger) -> Schedule:
        chance = self._chance
        agent = chance.choice(self._staff)
        reminder = isinstance(when, OnceTrigger) and chance.random() < 0.4
        to_person = reminder or chance.random() < 0.1
        own = not to_person and chance.random() < 0.2
        return Schedule(
            id=ScheduleId(self._ids.new()),
            name=f"filed-{number}" if number % 4 == 1 and not reminder else "",
            kind=ScheduleKind.REMINDER if reminder else ScheduleKind.SCHEDULE,
            owner=address.agent_address(agent.name) if own else address.person_address("owner"),
            to=address.person_address(chance.choice(("owner", "maria")))
            if to_person
            else address.agent_address(agent.name),
            when=when,
            text=f"slot of {number}",
            zone=chance.choice(ZONES),
            place=chance.choice(list(ScheduleSession)),
            deliver=chance.choice(("", "", "none", "person:maria")),
            missed=chance.choice((None, None, *MissedPolicy)),
            delete_after_run=chance.random() < (0.7 if isinstance(when, OnceTrigger) else 0.03),
            gate=ScheduleGate(command="true") if not to_person and chance.random() < 0.25 else None,
            trust=Trust.OWNER,
        )


async def simulate_gate(server: SimulatedServer, rng: random.Random) -> GateResult:
    """Simulate the command of a gate. The gate is usually open or closed; sometimes the command fails or hangs."""
    await server.clock.sleep(rng.choice((0.0, 0.01, 0.5, 5.0)))
    luck = rng.random()
    if luck < 0.5:
        output = rng.choice(("", "", "rain", "seen on a page"))
        return GateResult(is_open=True, output=output, trust=Trust.UNTRUSTED if "page" in output else Trust.PRIVATE)
    if luck < 0.85:
        return GateResult(is_open=False, because="gate: exit 1")
    if luck < 0.93:
        raise SandboxUnavailable(because="the simulation makes it fail", try_this="")
    await server.clock.sleep(GATE_HANG_S)
    return GateResult(is_open=False, because=f"gate: it took longer than {GATE_HANG_S:g} s, and was ended")


def draw_cron_call(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Draw a call of the tool `cron`, with which an agent changes its own schedules."""
    name = f"plan-{rng.randrange(PLAN_NAMES_MAX)}"
    text = f"work {rng.randrange(10**6)}"
    match rng.choice(("add", "add", "update", "enable", "disable", "remove", "run", "wake", "wake", "remind")):
        case "add":
            return "add", {"parameters": {"name": name, "text": text, **_draw_times(rng, is_agent=True)}}
        case "update":
            return "update", {"schedule": name, "parameters": _draw_times(rng, is_agent=True)}
        case "wake" | "remind" as action:
            return action, {"parameters": {"text": text, "delay_s": rng.choice((5, 30, 120, 900))}}
        case action:
            return action, {"schedule": name}


def _draw_times(rng: random.Random, *, is_agent: bool = False) -> dict[str, Any]:
    """Draw the time fields of a schedule. Schedules of agents run at most once a minute."""
    often = tuple(each for each in FREQUENT if not is_agent or "30 * * * * *" not in each)
    match rng.choice(("cron", "cron", "rare", "every", "at")):
        case "cron":
            when = {"cron": rng.choice(often)}
        case "rare":
            when = {"cron": rng.choice(INFREQUENT)}
        case "every":
            when = {"every": rng.choice(("60s", "2m", "5m") if is_agent else ("15s", "50s", "2m"))}
        case _:
            when = {"at": rng.choice(("+10s", "+1m", "+20m"))}
    return {**when, "zone": rng.choice(ZONES) or ""}


# --- events ---


async def add_schedule(workload: ScheduleWorkload) -> None:
    chance = workload.rng
    agent = chance.choice(workload.agents).name
    asked: dict[str, Any] = {"to": f"agent:{agent}", "text": "by the way", **_draw_times(chance)}
    asked["session"] = chance.choice([place.value for place in ScheduleSession])
    asked["delete_after_run"] = chance.random() < 0.2
    if chance.random() < 0.3:
        asked["gate"] = {"command": "true"}
    await _perform_operation(workload, "schedule.add", _OWNER, asked)


async def add_daily_schedule(workload: ScheduleWorkload) -> None:
    agent, zone = workload.rng.choice(workload.agents).name, workload.rng.choice(ZONES) or ""
    expression = workload.rng.choice(DAILY)
    await _perform_operation(
        workload, "schedule.add", _OWNER, {"to": f"agent:{agent}", "text": "so", "cron": expression, "zone": zone}
    )


async def change_schedule(workload: ScheduleWorkload) -> None:
    if id_ := _choose_schedule(workload):
        chance = workload.rng
        changes: tuple[dict[str, Any], ...] = (
            _draw_times(chance) if workload.is_stress else {"cron": chance.choice(DAILY)},
            {"text": "in other words"},
            {"missed": chance.choice(("skip", "run", ""))},
            {"gate": chance.choice((None, {"command": "true"}))},
            {"zone": chance.choice(ZONES) or "", "delete_after_run": False},
        )
        await _perform_operation(workload, "schedule.set", _OWNER, {"schedule": id_, **chance.choice(changes)})


async def toggle_schedule(workload: ScheduleWorkload) -> None:
    if id_ := _choose_schedule(workload):
        how = workload.rng.choice(("enable", "enable", "disable"))
        await _perform_operation(workload, f"schedule.{how}", _OWNER, {"schedule": id_})


async def run_schedule(workload: ScheduleWorkload) -> None:
    """Run a schedule now, often twice. Sometimes force this while an earlier occurrence is still running."""
    if id_ := _choose_schedule(workload):
        for _ in range(workload.rng.choice((1, 1, 2))):
            await _perform_operation(
                workload, "schedule.run", _OWNER, {"schedule": id_, "force": workload.rng.random() < 0.3}
            )


async def delete_schedule(workload: ScheduleWorkload) -> None:
    if id_ := _choose_schedule(workload):
        await _perform_operation(workload, "schedule.delete", _OWNER, {"schedule": id_})


async def add_reminder(workload: ScheduleWorkload) -> None:
    who = workload.rng.choice((_OWNER, _MARIA))
    await _perform_operation(
        workload, "reminder.add", who, {"text": "the oven", "delay_s": workload.rng.choice((3, 60, 1_000))}
    )


async def cancel_occurrence(workload: ScheduleWorkload) -> None:
    """Cancel the envelope of a waiting occurrence."""
    found = _fetch_column(workload, "SELECT envelope FROM occurrences WHERE state = 'waiting' ORDER BY envelope")
    if found:
        await _perform_operation(workload, "envelope.cancel", _OWNER, {"id": workload.rng.choice(found)})


async def change_schedule_when_due(workload: ScheduleWorkload) -> None:
    """Change a schedule at the moment when its occurrence is due."""
    found = workload.disk.raw_connection.execute(
        "SELECT schedule, occurs_ms FROM occurrences WHERE state = 'waiting' ORDER BY occurs_ms, schedule LIMIT 5"
    ).fetchall()
    if not found:
        return
    id_, slot_ms = workload.rng.choice(found)
    wait_s = slot_ms / 1000 - workload.clock.now().timestamp()
    if not 0 < wait_s < 120:
        return
    await asyncio.sleep(wait_s + workload.rng.choice((-0.005, 0.0, 0.001, 0.005, 0.05)))  # sleep: virtual time
    what = workload.rng.choice(("disable", "enable", "run", "delete", "set"))
    asked: dict[str, Any] = {"schedule": id_, **({"text": "just now"} if what == "set" else {})}
    await _perform_operation(workload, f"schedule.{what}", _OWNER, asked)


async def edit_schedule_file(workload: ScheduleWorkload) -> None:
    """Change or remove the file of a schedule, and let the server read it."""
    found = sorted((workload.data_dir / DIRECTORY).glob("*.md"))
    if not found:
        return
    path, chance = workload.rng.choice(found), workload.rng
    text, luck = path.read_text(), chance.random()
    if luck < 0.1:
        path.unlink()
    elif luck < 0.2:
        _save_file(workload, path, f"{text[:20]}\nnothing that can be read\n")
    elif luck < 0.5:
        on, off = "enabled: true", "enabled: false"
        _save_file(workload, path, text.replace(on, off) if on in text else text.replace(off, on))
    elif luck < 0.8:
        times = (f"every: {chance.choice(('20s', '1m', '4m'))}", f"cron: '{chance.choice(FREQUENT)}'")
        _save_file(workload, path, re.sub(r"^(every|cron|at): .*$", chance.choice(times), text, flags=re.MULTILINE))
    else:
        _save_file(workload, path, f"{text}\nand more\n")
    done = await workload.call_server(lambda server: server.schedule_files.sync())
    workload.trace("changed the file {}: {}", path.name, "seen" if done else "not seen")


def _save_file(workload: ScheduleWorkload, path: Path, text: str) -> None:
    path.write_text(text)
    now = workload.clock.now().timestamp()
    os.utime(path, (now, now))


async def disable_all(workload: ScheduleWorkload) -> list[str]:
    """Disable every enabled schedule, and return their ids."""
    stopped: list[str] = []
    while found := _fetch_column(workload, "SELECT id FROM schedules WHERE enabled AND kind <> 'deleted' ORDER BY id"):
        for id_ in found:
            if await _perform_operation(workload, "schedule.disable", _OWNER, {"schedule": id_}):
                stopped.append(id_)
        await asyncio.sleep(1)  # sleep: virtual time
    return stopped


async def enable_all(workload: ScheduleWorkload, ids: Sequence[str]) -> None:
    for id_ in ids:
        await _perform_operation(workload, "schedule.enable", _OWNER, {"schedule": id_})


SCHEDULE_EVENTS: tuple[tuple[Callable[[ScheduleWorkload], Coroutine[Any, Any, None]], int], ...] = (
    (add_schedule, 20),
    (change_schedule, 25),
    (toggle_schedule, 25),
    (run_schedule, 25),
    (delete_schedule, 6),
    (add_reminder, 10),
    (cancel_occurrence, 6),
    (change_schedule_when_due, 20),
    (edit_schedule_file, 15),
)

_OWNER = boss_principal("owner")
_MARIA = Principal(address=address.person_address("maria"), level=PermissionLevel.STANDARD, trust=Trust.PERSON)


async def _perform_operation(
    workload: ScheduleWorkload, operation: str, principal: Principal, request: dict[str, Any]
) -> bool:
    done = await workload.call_server(lambda server: server.perform(principal, operation, request))
    about = short_id(str(request.get("schedule", request.get("id", ""))))
    workload.trace("requested {} of {}: {}", operation, about, "done" if done else "refused")
    return done


def _choose_schedule(workload: ScheduleWorkload) -> str | None:
    """Choose a schedule, preferably one with a running occurrence, because bugs are likely there."""
    busy = _fetch_column(
        workload, "SELECT DISTINCT schedule FROM occurrences WHERE state = 'working' ORDER BY schedule"
    )
    if busy and workload.rng.random() < 0.5:
        return workload.rng.choice(busy)
    found = _fetch_column(workload, "SELECT id FROM schedules WHERE kind <> 'deleted' ORDER BY id")
    return workload.rng.choice(found) if found else None


def _fetch_column(workload: ScheduleWorkload, sql: str) -> list[str]:
    return [value for (value,) in workload.disk.raw_connection.execute(sql)]
