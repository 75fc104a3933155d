"""Keeps the heartbeat schedules in sync with the settings, the agents and their task files.

A heartbeat is stored as a schedule of the kind `heartbeat`. This module adds, changes and disables
these schedules. On a server without heartbeats and tasks it writes nothing to the store.
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

from retinue.config.declarations import choose_default_agent
from retinue.config.heartbeats import TARGET_LAST, HeartbeatDefaults
from retinue.domain import address, heartbeat
from retinue.domain.agent import NO_HEARTBEAT, Agent, HeartbeatRules
from retinue.domain.heartbeat import CHECKLIST_FILE, DEFAULT_EVERY_S, HEARTBEAT_EVERY_S_MIN, Heartbeat
from retinue.domain.ids import ScheduleId, derive_id
from retinue.domain.ports import Clock
from retinue.domain.schedule import EveryTrigger, Schedule, ScheduleKind, ScheduleSession
from retinue.domain.times import to_ms
from retinue.domain.trust import Trust
from retinue.schedules.file_watcher import DebouncedTask, DirectoryWatcher
from retinue.schedules.heartbeat_files import list_task_ids, tasks_directory
from retinue.store.agents import agents
from retinue.store.core import tables
from retinue.store.core.connection import Store
from retinue.store.core.transaction import Transaction
from retinue.store.core.untrusted_files import open_untrusted
from retinue.store.schedules import schedules
from retinue.store.schedules.schedules import StoredSchedule

log = logging.getLogger(__name__)

OWNER = address.person_address("owner")
HEARTBEATS_MAX = 1_000
CHECKLIST_BYTES_MAX = 1024 * 1024
BOOT_DELAY = timedelta(seconds=1)
NOT_CONFIGURED = "it has no heartbeat settings and no tasks"


class HeartbeatSettings(Struct, frozen=True, kw_only=True):
    """The parts of the settings that heartbeats depend on."""

    defaults: HeartbeatDefaults
    default_agent: str | None
    zone: ZoneInfo


class AgentHeartbeat(Struct, frozen=True):
    """An agent with a heartbeat, and the rules for that heartbeat.

    If `is_configured` is false, neither the agent nor the settings configure the heartbeat. It then
    runs only while the agent has tasks or a checklist.
    """

    agent: str
    rules: HeartbeatRules
    is_configured: bool


def agents_with_heartbeat(all_agents: Sequence[Agent], settings: HeartbeatSettings) -> list[AgentHeartbeat]:
    """Return the agents that have a heartbeat: those with heartbeat settings, or else the default agent.

    An agent whose interval is 0 has no heartbeat.
    """
    own = [agent for agent in all_agents if agent.heartbeat != NO_HEARTBEAT]
    defaults = settings.defaults.rules
    if not own:
        name = choose_default_agent(settings.default_agent, [agent.name for agent in all_agents])
        own = [agent for agent in all_agents if agent.name == name]
    found = [
        AgentHeartbeat(
            agent.name,
            agent.heartbeat.with_defaults(defaults),
            agent.heartbeat != NO_HEARTBEAT or defaults != NO_HEARTBEAT,
        )
        for agent in own
    ]
    return [each for each in found if each.rules.every_s != 0]


def heartbeat_schedule_id(agent: str) -> ScheduleId:
    """Return the schedule id of an agent's heartbeat.

    It is derived from the agent's name, because each agent has at most one heartbeat.
    """
    return ScheduleId(derive_id(agent.casefold(), "heartbeat"))


def build_heartbeat_schedule(
    agent_heartbeat: AgentHeartbeat, defaults: HeartbeatDefaults, *, start: datetime
) -> Schedule:
    rules = agent_heartbeat.rules
    every_s = max(HEARTBEAT_EVERY_S_MIN, DEFAULT_EVERY_S if rules.every_s is None else rules.every_s)
    return Schedule(
        id=heartbeat_schedule_id(agent_heartbeat.agent),
        name="",
        owner=OWNER,
        to=address.agent_address(agent_heartbeat.agent),
        when=EveryTrigger(int(every_s), start),
        kind=ScheduleKind.HEARTBEAT,
        text=rules.prompt or "",
        description=f"Heartbeat of {agent_heartbeat.agent}",
        place=rules.session or ScheduleSession.OWN,
        deliver="" if rules.target in (None, TARGET_LAST) else str(rules.target),
        model=rules.model,
        title="",
        heartbeat=Heartbeat(
            asked_for=agent_heartbeat.is_configured,
            active_start=rules.active_start or "",
            active_end=rules.active_end or "",
            active_zone=rules.active_zone or "",
            ack_chars_max=heartbeat.DEFAULT_ACK_CHARS_MAX if rules.ack_chars_max is None else rules.ack_chars_max,
            shown=heartbeat.HeartbeatVisibility(
                ok=defaults.show_ok, alerts=defaults.show_alerts, indicator=defaults.use_indicator
            ),
            channels={name: each.visibility for name, each in defaults.platforms.items()},
            accounts={name: each.visibility for name, each in defaults.connectors.items()},
        ),
        trust=Trust.PRIVATE,
        source="settings",
    )


class HeartbeatSync:
    """Keeps heartbeat schedules in sync in the background: see `sync`."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        read_settings: Callable[[], HeartbeatSettings],
        *,
        agent_directory_of: Callable[[str], Path],
        workspace_of: Callable[[Agent, Path], Path],
    ) -> None:
        self._store = store
        self._clock = clock
        self._read_settings = read_settings
        self._agent_directory_of = agent_directory_of
        self._workspace_of = workspace_of
        self._lock = asyncio.Lock()
        self._sync_task = DebouncedTask(self.sync, clock, name="heartbeats")
        self._watcher: DirectoryWatcher | None = None
        self._watched_directory: Path | None = None

    async def start(self) -> None:
        await self.sync(is_boot=True)
        self._store.on_commit(self._sync_task.trigger, tables.agents)
        self._sync_task.start()

    async def stop(self) -> None:
        if self._watcher is not None:
            self._watcher.stop()
        await self._sync_task.stop()

    def trigger(self) -> None:
        """Sync the heartbeat schedules soon. Call this after a change of settings, agents or task files."""
        self._sync_task.trigger()

    async def sync(self, *, is_boot: bool = False) -> None:
        """Add, change or disable heartbeat schedules to match the settings, agents and tasks.

        If `is_boot`, a heartbeat that has never run is due at once.
        """
        async with self._lock:
            wishes = self._read_settings()
            staff = await self._store.read(agents.list_all)
            found = agents_with_heartbeat(staff, wishes)
            by_name = {agent.name: agent for agent in staff}
            quiet = [beat for beat in found if not beat.is_configured]
            self._watch_tasks(quiet[0].agent if quiet else None)
            wanted = [
                beat
                for beat in found
                if beat.is_configured or await asyncio.to_thread(self._has_tasks, by_name[beat.agent])
            ]
            body = partial(_plan_changes, heartbeats=wanted, settings=wishes, now=self._clock.now(), is_boot=is_boot)
            if await self._store.read(body):
                act = partial(_apply_changes, plan=body, zone=wishes.zone, now_ms=to_ms(self._clock.now()))
                await self._store.write(act, point="schedule")

    def _has_tasks(self, agent: Agent) -> bool:
        """Whether the agent has tasks or a checklist that is not empty. Untrusted files count too."""
        home = self._agent_directory_of(agent.name)
        if list_task_ids(home):
            return True
        found = (
            _read_regular_file(root / CHECKLIST_FILE) for root in dict.fromkeys((self._workspace_of(agent, home), home))
        )
        text = next((each for each in found if each is not None), "")
        return not heartbeat.is_checklist_empty(text)

    def _watch_tasks(self, agent: str | None) -> None:
        """Watch the task directory of this agent, or stop watching if `agent` is None.

        Only an agent whose heartbeat runs only while it has tasks needs to be watched.
        """
        folder = tasks_directory(self._agent_directory_of(agent)) if agent is not None else None
        if folder == self._watched_directory:
            return
        if self._watcher is not None:
            self._watcher.stop()
        self._watcher, self._watched_directory = None, folder
        if folder is not None:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._watcher = DirectoryWatcher(folder, self._clock, self.trigger)
            self._watcher.start()


def _read_regular_file(path: Path) -> str | None:
    """Return the text of a file, or None if there is no regular file.

    Agents write to this directory, so the path could be a FIFO or a device, and reading it could
    block.
    """
    try:
        with open_untrusted(path) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            return file.read(CHECKLIST_BYTES_MAX).decode(errors="replace")
    except OSError:
        return None


class _ScheduleChange(Struct, frozen=True):
    """A heartbeat schedule to add or change. If `schedule` is None, the stored schedule is disabled."""

    stored: StoredSchedule | None
    schedule: Schedule | None


def _plan_changes(
    conn: sa.Connection,
    *,
    heartbeats: Sequence[AgentHeartbeat],
    settings: HeartbeatSettings,
    now: datetime,
    is_boot: bool,
) -> list[_ScheduleChange]:
    here = {kept.id: kept for kept in schedules.list_of_kind(conn, ScheduleKind.HEARTBEAT, limit=HEARTBEATS_MAX)}
    soon = now.replace(microsecond=0) + BOOT_DELAY
    changes: list[_ScheduleChange] = []
    for beat in heartbeats[:HEARTBEATS_MAX]:
        kept = here.pop(heartbeat_schedule_id(beat.agent), None)
        fresh = build_heartbeat_schedule(beat, settings.defaults, start=soon if is_boot else now.replace(microsecond=0))
        if kept is None:
            changes.append(_ScheduleChange(None, fresh))
        elif is_boot and schedules.get_status(conn, kept).last_run_at is None:
            changes.append(_ScheduleChange(kept, fresh))
        elif not kept.enabled or kept.schedule != _keep_start(kept.schedule, fresh):
            changes.append(_ScheduleChange(kept, _keep_start(kept.schedule, fresh)))
    return [*changes, *(_ScheduleChange(kept, None) for kept in here.values() if kept.enabled)]


def _keep_start(current: Schedule, new: Schedule) -> Schedule:
    """Return the new schedule, with the start time of the current one if both have the same interval."""
    same = (
        isinstance(current.when, EveryTrigger)
        and isinstance(new.when, EveryTrigger)
        and current.when.seconds == new.when.seconds
    )
    return replace(new, when=current.when) if same else new


def _apply_changes(
    conn: sa.Connection, *, plan: Callable[[sa.Connection], list[_ScheduleChange]], zone: ZoneInfo, now_ms: int
) -> None:
    tx = Transaction(conn, now_ms)
    for change in plan(conn):
        if change.schedule is None:
            assert change.stored is not None  # a schedule to disable exists
            schedules.disable(tx, change.stored, because=NOT_CONFIGURED)
        elif change.stored is None:
            schedules.add(tx, change.schedule, zone=zone)
        else:
            kept = schedules.change(tx, change.stored, change.schedule, zone=zone, because="its settings were changed")
            if not kept.enabled:
                schedules.enable(tx, kept)
    tx.close()
