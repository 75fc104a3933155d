"""The schedules of a simulation: which exist, what their gates return, and how people change them."""

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
from retinue.domain.errors import Busy
from retinue.domain.ids import ScheduleId, short
from retinue.domain.ports import Ids
from retinue.domain.principal import Principal
from retinue.domain.schedule import Cron, Every, Gate, GateSaid, Kind, Missed, Once, Place, Schedule, When
from retinue.domain.trust import Trust
from retinue.schedules.schedule_files import FOLDER
from retinue.testing.local_instance import boss
from retinue.testing.simulated_server import Disk, SimulatedHouse
from retinue.testing.virtual_time import VirtualClock

SCHEDULES = 40
ZONES = (None, "Europe/Berlin", "America/New_York")
OFTEN = ("* * * * *", "*/2 * * * *", "*/30 * * * * *", "1-59/3 * * * *", "*/5 * * * *", "10,40 * * * *")
RARELY = (
    *("0 * * * *", "30 2 * * *", "0,30 1-3 * * *", "15 10 * * 1-5", "0 0 1 * *", "0 12 13 * 5", "5 */2 * * *"),
    *("0 3 * * 0,6", "45 1,2 * * *", "20 0 * * * *"),
)
DAILY = (
    *("0 9 * * *", "30 2 * * *", "15 1,2,3 * * *", "0 18 * * 1-5", "45 6 */2 * *", "0 12 1,15 * *", "0 */6 * * *"),
    *("30 7 * * 1", "0 22 * * 0,6", "5 0 * * *", "10 3-23/8 * * *", "0 2 * * 0"),
)
"""What a house has that nobody storms."""

CHANGES = (
    datetime(2026, 3, 8, 7, tzinfo=UTC),
    datetime(2026, 3, 29, 1, tzinfo=UTC),
    datetime(2026, 10, 25, 1, tzinfo=UTC),
    datetime(2026, 11, 1, 6, tzinfo=UTC),
)
"""When clocks are changed in New York and in Berlin, in one year."""

PLANS = 12  # names that agents give to their schedules
HANGS_S = 300.0


class Weather(Protocol):
    """The part of a `Workload` that schedule events need."""

    chance: random.Random
    clock: VirtualClock
    disk: Disk
    staff: list[Agent]
    stormy: bool
    home: Path

    def note(self, words: str, *about: object) -> None: ...

    async def ask(self, ask: Callable[[SimulatedHouse], Coroutine[Any, Any, Any]]) -> bool: ...


class Timetable:
    """Draws schedules from a seed."""

    def __init__(self, chance: random.Random, ids: Ids, staff: Sequence[Agent], start: datetime) -> None:
        self._chance = chance
        self._ids = ids
        self._staff = staff
        self._start = start

    def often(self) -> list[Schedule]:
        """Draw schedules for stress mode: occurrences every few seconds, and some that only a clock jump reaches."""
        return [self._schedule(number, self._when(number)) for number in range(SCHEDULES)]

    def daily(self) -> list[Schedule]:
        """Draw schedules for calendar mode."""
        whens: list[When] = [Cron(self._chance.choice(DAILY)) for _ in range(SCHEDULES - 8)]
        whens += [Every(self._chance.choice((40_000, 86_400, 200_000)), self._start) for _ in range(4)]
        whens += [Once(self._start + timedelta(hours=self._chance.uniform(1, 160))) for _ in range(4)]
        return [self._schedule(number, when) for number, when in enumerate(whens)]

    def _when(self, number: int) -> When:
        chance = self._chance
        match number % 4:
            case 0:
                return Cron(chance.choice(OFTEN))
            case 1:
                return Every(chance.choice((20, 45, 90, 300)), self._start - timedelta(seconds=chance.randrange(300)))
            case 2:
                return Cron(chance.choice(RARELY))
            case _:
                return Once(self._start + timedelta(seconds=chance.choice((5, 40, 200, 900, 5_000))))

    def _schedule(self, number: int, when: When) -> Schedule:
        chance = self._chance
        agent = chance.choice(self._staff)
        reminder = isinstance(when, Once) and chance.random() < 0.4
        to_person = reminder or chance.random() < 0.1
        own = not to_person and chance.random() < 0.2
        return Schedule(
            id=ScheduleId(self._ids.new()),
            name=f"filed-{number}" if number % 4 == 1 and not reminder else "",
            kind=Kind.REMINDER if reminder else Kind.SCHEDULE,
            owner=address.agent(agent.name) if own else address.person("owner"),
            to=address.person(chance.choice(("owner", "maria"))) if to_person else address.agent(agent.name),
            when=when,
            text=f"slot of {number}",
            zone=chance.choice(ZONES),
            place=chance.choice(list(Place)),
            deliver=chance.choice(("", "", "none", "person:maria")),
            missed=chance.choice((None, None, *Missed)),
            delete_after_run=chance.random() < (0.7 if isinstance(when, Once) else 0.03),
            gate=Gate(command="true") if not to_person and chance.random() < 0.25 else None,
            trust=Trust.OWNER,
        )


async def ask_gate(house: SimulatedHouse, chance: random.Random) -> GateSaid:
    """Simulate a gate's command: mostly open or closed, sometimes it fails or hangs."""
    await house.clock.sleep(chance.choice((0.0, 0.01, 0.5, 5.0)))
    luck = chance.random()
    if luck < 0.5:
        output = chance.choice(("", "", "rain", "seen on a page"))
        return GateSaid(open=True, output=output, trust=Trust.UNTRUSTED if "page" in output else Trust.PRIVATE)
    if luck < 0.85:
        return GateSaid(open=False, because="gate: exit 1")
    if luck < 0.93:
        raise Busy("the sandbox does not work", because="it is a bad day", code="sandbox.unavailable")
    await house.clock.sleep(HANGS_S)
    return GateSaid(open=False, because=f"gate: it took longer than {HANGS_S:g} s, and was ended")


def plan(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """Draw what an agent does with the tool `cron` and its own schedules: an action and its arguments."""
    name = f"plan-{chance.randrange(PLANS)}"
    text = f"work {chance.randrange(10**6)}"
    match chance.choice(("add", "add", "update", "enable", "disable", "remove", "run", "wake", "wake", "remind")):
        case "add":
            return "add", {"parameters": {"name": name, "text": text, **_times(chance, of_agents=True)}}
        case "update":
            return "update", {"schedule": name, "parameters": _times(chance, of_agents=True)}
        case "wake" | "remind" as action:
            return action, {"parameters": {"text": text, "delay_s": chance.choice((5, 30, 120, 900))}}
        case action:
            return action, {"schedule": name}


def _times(chance: random.Random, *, of_agents: bool = False) -> dict[str, Any]:
    """Draw the time fields of a schedule. Agents' schedules run once a minute at most."""
    often = tuple(each for each in OFTEN if not of_agents or "30 * * * * *" not in each)
    match chance.choice(("cron", "cron", "rare", "every", "at")):
        case "cron":
            when = {"cron": chance.choice(often)}
        case "rare":
            when = {"cron": chance.choice(RARELY)}
        case "every":
            when = {"every": chance.choice(("60s", "2m", "5m") if of_agents else ("15s", "50s", "2m"))}
        case _:
            when = {"at": chance.choice(("+10s", "+1m", "+20m"))}
    return {**when, "zone": chance.choice(ZONES) or ""}


# --- events ---


async def add_a_schedule(storm: Weather) -> None:
    chance = storm.chance
    agent = chance.choice(storm.staff).name
    asked: dict[str, Any] = {"to": f"agent:{agent}", "text": "by the way", **_times(chance)}
    asked["place"] = chance.choice([place.value for place in Place])
    asked["delete_after_run"] = chance.random() < 0.2
    if chance.random() < 0.3:
        asked["gate"] = {"command": "true"}
    await _ask(storm, "schedule.add", _OWNER, asked)


async def add_a_daily_one(storm: Weather) -> None:
    agent, zone = storm.chance.choice(storm.staff).name, storm.chance.choice(ZONES) or ""
    expression = storm.chance.choice(DAILY)
    await _ask(storm, "schedule.add", _OWNER, {"to": f"agent:{agent}", "text": "so", "cron": expression, "zone": zone})


async def change_a_schedule(storm: Weather) -> None:
    if id_ := _some(storm):
        chance = storm.chance
        changes: tuple[dict[str, Any], ...] = (
            _times(chance) if storm.stormy else {"cron": chance.choice(DAILY)},
            {"text": "in other words"},
            {"missed": chance.choice(("skip", "run", ""))},
            {"gate": chance.choice((None, {"command": "true"}))},
            {"zone": chance.choice(ZONES) or "", "delete_after_run": False},
        )
        await _ask(storm, "schedule.set", _OWNER, {"schedule": id_, **chance.choice(changes)})


async def switch_a_schedule(storm: Weather) -> None:
    if id_ := _some(storm):
        how = storm.chance.choice(("enable", "enable", "disable"))
        await _ask(storm, f"schedule.{how}", _OWNER, {"schedule": id_})


async def run_a_schedule(storm: Weather) -> None:
    """Run a schedule now, often twice, or by force while it is working."""
    if id_ := _some(storm):
        for _ in range(storm.chance.choice((1, 1, 2))):
            await _ask(storm, "schedule.run", _OWNER, {"schedule": id_, "force": storm.chance.random() < 0.3})


async def delete_a_schedule(storm: Weather) -> None:
    if id_ := _some(storm):
        await _ask(storm, "schedule.delete", _OWNER, {"schedule": id_})


async def remind(storm: Weather) -> None:
    who = storm.chance.choice((_OWNER, _MARIA))
    await _ask(storm, "reminder.add", who, {"text": "the oven", "delay_s": storm.chance.choice((3, 60, 1_000))})


async def take_back_an_occurrence(storm: Weather) -> None:
    """Cancel the envelope of an occurrence that waits."""
    found = _all(storm, "SELECT envelope FROM schedule_slots WHERE state = 'waiting' ORDER BY envelope")
    if found:
        await _ask(storm, "envelope.cancel", _OWNER, {"id": storm.chance.choice(found)})


async def strike_at_a_slot(storm: Weather) -> None:
    """Change a schedule at the moment when its occurrence is due."""
    found = storm.disk.raw.execute(
        "SELECT schedule, slot_ms FROM schedule_slots WHERE state = 'waiting' ORDER BY slot_ms, schedule LIMIT 5"
    ).fetchall()
    if not found:
        return
    id_, slot_ms = storm.chance.choice(found)
    wait_s = slot_ms / 1000 - storm.clock.now().timestamp()
    if not 0 < wait_s < 120:
        return
    await asyncio.sleep(wait_s + storm.chance.choice((-0.005, 0.0, 0.001, 0.005, 0.05)))  # sleep: virtual time
    what = storm.chance.choice(("disable", "enable", "run", "delete", "set"))
    asked: dict[str, Any] = {"schedule": id_, **({"text": "just now"} if what == "set" else {})}
    await _ask(storm, f"schedule.{what}", _OWNER, asked)


async def edit_a_file(storm: Weather) -> None:
    """Change or remove the file of a schedule, and let the server read it."""
    found = sorted((storm.home / FOLDER).glob("*.md"))
    if not found:
        return
    path, chance = storm.chance.choice(found), storm.chance
    text, luck = path.read_text(), chance.random()
    if luck < 0.1:
        path.unlink()
    elif luck < 0.2:
        _save(storm, path, f"{text[:20]}\nnothing that can be read\n")
    elif luck < 0.5:
        on, off = "enabled: true", "enabled: false"
        _save(storm, path, text.replace(on, off) if on in text else text.replace(off, on))
    elif luck < 0.8:
        times = (f"every: {chance.choice(('20s', '1m', '4m'))}", f"cron: '{chance.choice(OFTEN)}'")
        _save(storm, path, re.sub(r"^(every|cron|at): .*$", chance.choice(times), text, flags=re.MULTILINE))
    else:
        _save(storm, path, f"{text}\nand more\n")
    done = await storm.ask(lambda house: house.files.look())
    storm.note("someone has changed {}: {}", path.name, "seen" if done else "not seen")


def _save(storm: Weather, path: Path, text: str) -> None:
    path.write_text(text)
    now = storm.clock.now().timestamp()
    os.utime(path, (now, now))


async def stop_all(storm: Weather) -> list[str]:
    """Disable every enabled schedule, and return their ids."""
    stopped: list[str] = []
    while found := _all(storm, "SELECT id FROM schedules WHERE enabled AND kind <> 'gone' ORDER BY id"):
        for id_ in found:
            if await _ask(storm, "schedule.disable", _OWNER, {"schedule": id_}):
                stopped.append(id_)
        await asyncio.sleep(1)  # sleep: virtual time
    return stopped


async def start_again(storm: Weather, ids: Sequence[str]) -> None:
    for id_ in ids:
        await _ask(storm, "schedule.enable", _OWNER, {"schedule": id_})


EVENTS: tuple[tuple[Callable[[Weather], Coroutine[Any, Any, None]], int], ...] = (
    (add_a_schedule, 20),
    (change_a_schedule, 25),
    (switch_a_schedule, 25),
    (run_a_schedule, 25),
    (delete_a_schedule, 6),
    (remind, 10),
    (take_back_an_occurrence, 6),
    (strike_at_a_slot, 20),
    (edit_a_file, 15),
)

_OWNER = boss("owner")
_MARIA = Principal(address=address.person("maria"), level=PermissionLevel.STANDARD, trust=Trust.PERSON)


async def _ask(storm: Weather, operation: str, who: Principal, asked: dict[str, Any]) -> bool:
    done = await storm.ask(lambda house: house.perform(who, operation, asked))
    about = short(str(asked.get("schedule", asked.get("id", ""))))
    storm.note("someone asks for {} of {}: {}", operation, about, "done" if done else "refused")
    return done


def _some(storm: Weather) -> str | None:
    """Choose a schedule, preferably one that is working, because bugs are likely there."""
    busy = _all(storm, "SELECT DISTINCT schedule FROM schedule_slots WHERE state = 'working' ORDER BY schedule")
    if busy and storm.chance.random() < 0.5:
        return storm.chance.choice(busy)
    found = _all(storm, "SELECT id FROM schedules WHERE kind <> 'gone' ORDER BY id")
    return storm.chance.choice(found) if found else None


def _all(storm: Weather, sql: str) -> list[str]:
    return [value for (value,) in storm.disk.raw.execute(sql)]
