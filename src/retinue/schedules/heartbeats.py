"""Keeps the heartbeat schedules in sync with the settings, the agents and their task files.

A heartbeat is a schedule of a separate kind: here it is only added, changed and disabled. A server
without heartbeats and tasks has no row for them and makes no commit.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo

import sqlalchemy as sa
from msgspec import Struct
from msgspec.structs import replace

from retinue.config.declarations import default_agent
from retinue.config.heartbeats import LAST, HeartbeatDefaults
from retinue.domain import address, heartbeat
from retinue.domain.agent import NO_HEARTBEAT, Agent, HeartbeatRules
from retinue.domain.heartbeat import CHECKLIST, EVERY_S, EVERY_S_MIN, Heartbeat
from retinue.domain.ids import ScheduleId, derived
from retinue.domain.ports import Clock
from retinue.domain.schedule import Every, Kind, Place, Schedule
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.schedules.file_watcher import Looking, Watcher
from retinue.schedules.heartbeat_files import folder_of, listed
from retinue.store.agents import agents
from retinue.store.core import tables
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Page
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import Kept

log = logging.getLogger(__name__)

OWNER = address.person("owner")
HEARTBEATS_MAX = 1_000
CHECKLIST_BYTES_MAX = 1024 * 1024
SOON = timedelta(seconds=1)
NOT_SET = "no heartbeat is set for it, and it has no tasks"


class Wishes(Struct, frozen=True, kw_only=True):
    """The settings that concern heartbeats."""

    house: HeartbeatDefaults
    default_agent: str | None
    zone: ZoneInfo


class Beating(Struct, frozen=True):
    """An agent with a heartbeat and its rules. Without `is_configured` it runs only while there are tasks."""

    agent: str
    rules: HeartbeatRules
    asked_for: bool


def beating(staff: Sequence[Agent], wishes: Wishes) -> list[Beating]:
    """Return the agents with a configured heartbeat. If there are none, return the default agent."""
    own = [agent for agent in staff if agent.heartbeat != NO_HEARTBEAT]
    house = wishes.house.rules
    if not own:
        name = default_agent(wishes.default_agent, [agent.name for agent in staff])
        own = [agent for agent in staff if agent.name == name]
    found = [
        Beating(agent.name, agent.heartbeat.over(house), agent.heartbeat != NO_HEARTBEAT or house != NO_HEARTBEAT)
        for agent in own
    ]
    return [each for each in found if each.rules.every_s != 0]


def id_of(agent: str) -> ScheduleId:
    """Return the schedule id of an agent's heartbeat. An agent has one, with a fixed id."""
    return ScheduleId(derived(agent.casefold(), "heartbeat"))


def schedule_of(beat: Beating, house: HeartbeatDefaults, *, start: datetime) -> Schedule:
    rules = beat.rules
    every_s = max(EVERY_S_MIN, EVERY_S if rules.every_s is None else rules.every_s)
    return Schedule(
        id=id_of(beat.agent),
        name="",
        owner=OWNER,
        to=address.agent(beat.agent),
        when=Every(int(every_s), start),
        kind=Kind.HEARTBEAT,
        text=rules.prompt or "",
        description=f"The heartbeat of {beat.agent}",
        place=rules.place or Place.OWN,
        deliver="" if rules.target in (None, LAST) else str(rules.target),
        model=rules.model,
        title="",
        heartbeat=Heartbeat(
            asked_for=beat.asked_for,
            active_start=rules.active_start or "",
            active_end=rules.active_end or "",
            active_zone=rules.active_zone or "",
            ack_chars_max=heartbeat.ACK_CHARS_MAX if rules.ack_chars_max is None else rules.ack_chars_max,
            shown=heartbeat.Shown(ok=house.show_ok, alerts=house.show_alerts, indicator=house.use_indicator),
            channels={name: each.shown for name, each in house.channels.items()},
            accounts={name: each.shown for name, each in house.accounts.items()},
        ),
        trust=Trust.PRIVATE,
        source="settings",
    )


class Heartbeats:
    """Keeps heartbeat schedules in sync in the background."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        wishes: Callable[[], Wishes],
        *,
        home_of: Callable[[str], Path],
        workspace_of: Callable[[Agent, Path], Path],
    ) -> None:
        self._store = store
        self._clock = clock
        self._wishes = wishes
        self._home_of = home_of
        self._workspace_of = workspace_of
        self._lock = asyncio.Lock()
        self._looking = Looking(self.fit, clock, what="heartbeats")
        self._watcher: Watcher | None = None
        self._watched: Path | None = None

    async def start(self) -> None:
        await self.fit(boot=True)
        self._store.on_commit(self._looking.poke, tables.agents)
        self._looking.start()

    async def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        await self._looking.stop()

    def poke(self) -> None:
        """Sync soon: settings, agents or task files may have changed."""
        self._looking.poke()

    async def fit(self, *, boot: bool = False) -> None:
        """Sync the schedules. At boot, a heartbeat that has never run is due at once."""
        async with self._lock:
            wishes = self._wishes()
            staff = await self._store.read(agents.everyone)
            found = beating(staff, wishes)
            by_name = {agent.name: agent for agent in staff}
            quiet = [beat for beat in found if not beat.asked_for]
            self._watch(quiet[0].agent if quiet else None)
            wanted = [
                beat for beat in found if beat.asked_for or await asyncio.to_thread(self._has_any, by_name[beat.agent])
            ]
            body = partial(_plan, wanted=wanted, wishes=wishes, now=self._clock.now(), boot=boot)
            if await self._store.read(body):
                act = partial(_fit, plan=body, zone=wishes.zone, now_ms=to_ms(self._clock.now()))
                await self._store.write(act, point="schedule")

    def _has_any(self, agent: Agent) -> bool:
        """Whether the agent has tasks or a checklist that is not empty. File trust is not checked."""
        home = self._home_of(agent.name)
        if listed(home):
            return True
        found = (_read(root / CHECKLIST) for root in dict.fromkeys((self._workspace_of(agent, home), home)))
        text = next((each for each in found if each is not None), "")
        return not heartbeat.is_empty(text)

    def _watch(self, agent: str | None) -> None:
        """Watch the task directory of an agent whose heartbeat depends on tasks alone."""
        folder = folder_of(self._home_of(agent)) if agent is not None else None
        if folder == self._watched:
            return
        if self._watcher is not None:
            self._watcher.stop()
        self._watcher, self._watched = None, folder
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._watcher = Watcher(folder, self._clock, self.poke)
            self._watcher.start()


def _read(path: Path) -> str | None:
    """Read a regular file only. Agents write here, and a FIFO or device could block."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return file.read(CHECKLIST_BYTES_MAX).decode(errors="replace")
    except OSError:
        return None


class _Change(Struct, frozen=True):
    """A schedule to add or change. If `schedule` is None, the stored one is disabled."""

    kept: Kept | None
    schedule: Schedule | None


def _plan(
    conn: sa.Connection, *, wanted: Sequence[Beating], wishes: Wishes, now: datetime, boot: bool
) -> list[_Change]:
    here = {kept.id: kept for kept in schedules.listed_of(conn, Kind.HEARTBEAT, limit=HEARTBEATS_MAX)}
    soon = now.replace(microsecond=0) + SOON
    changes: list[_Change] = []
    for beat in wanted[:HEARTBEATS_MAX]:
        kept = here.pop(id_of(beat.agent), None)
        fresh = schedule_of(beat, wishes.house, start=soon if boot else now.replace(microsecond=0))
        if kept is None:
            changes.append(_Change(None, fresh))
        elif boot and schedules.standing(conn, kept).last_run_at is None:
            changes.append(_Change(kept, fresh))
        elif not kept.enabled or kept.schedule != _from_then_on(kept.schedule, fresh):
            changes.append(_Change(kept, _from_then_on(kept.schedule, fresh)))
    return [*changes, *(_Change(kept, None) for kept in here.values() if kept.enabled)]


def _from_then_on(was: Schedule, wanted: Schedule) -> Schedule:
    """Keep the start time if the interval is unchanged."""
    same = isinstance(was.when, Every) and isinstance(wanted.when, Every) and was.when.seconds == wanted.when.seconds
    return replace(wanted, when=was.when) if same else wanted


def _fit(conn: sa.Connection, *, plan: Callable[[sa.Connection], list[_Change]], zone: ZoneInfo, now_ms: int) -> None:
    page = Page(conn, now_ms)
    for change in plan(conn):
        if change.schedule is None:
            assert change.kept is not None  # a schedule to disable exists
            schedules.disable(page, change.kept, because=NOT_SET)
        elif change.kept is None:
            schedules.add(page, change.schedule, zone=zone)
        else:
            kept = schedules.change(page, change.kept, change.schedule, zone=zone, because="its settings were changed")
            if not kept.enabled:
                schedules.enable(page, kept)
    page.close()
