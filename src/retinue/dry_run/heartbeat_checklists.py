"""Heartbeats in a dry run: each checklist is read once, in its original place, before the simulation.

It does not change during a dry run, so every heartbeat would read the same. The gates of its tasks
are assumed to be open.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from retinue.agents.agent_directory import home_of
from retinue.config import Settings
from retinue.domain.agent import Agent
from retinue.domain.ids import SessionId, derived
from retinue.domain.permission import Withheld
from retinue.domain.ports import Clock, ReadChecklist
from retinue.domain.schedule import GateSaid, Schedule
from retinue.domain.times import to_ms
from retinue.dry_run.copied_server import Scene, assumed_open
from retinue.engine.heartbeats import is_busy
from retinue.schedules.heartbeat_prompt import Checklists
from retinue.schedules.heartbeats import Heartbeats, Wishes
from retinue.schedules.read_with_trust import look_for
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import Files
from retinue.tools.files.file_access import Ground

NOT_READ = GateSaid(open=False, because="there is nothing here that could read its checklist")


class OnlyLooking(Heartbeats):
    """Syncs heartbeats like a server that starts, without creating anything in the agent directories."""

    def _watch(self, agent: str | None) -> None:
        return


async def fit(store: Store, clock: Clock, settings: Settings) -> None:
    """Sync the heartbeats with the current settings and files, as a server does when it starts."""
    wishes = Wishes(house=settings.defaults.heartbeat, default_agent=settings.default_agent, zone=settings.zone)
    beats = OnlyLooking(
        store,
        clock,
        lambda: wishes,
        home_of=partial(home_of, settings.home),
        workspace_of=settings.defaults.workspace_of,
    )
    await beats.fit(boot=True)


async def read_all(scene: Scene, store: Store, clock: Clock, settings: Settings) -> dict[str, GateSaid]:
    """Return the checklist result of each heartbeat."""
    lists = Checklists(**_needs(store, clock, settings))
    staff = {agent.name: agent for agent in scene.staff}
    found: dict[str, GateSaid] = {}
    for kept in scene.schedules:
        agent = staff.get(kept.schedule.to.name)
        if kept.schedule.heartbeat is not None and kept.enabled and agent is not None:
            session = SessionId(derived(kept.id, "rehearsal"))
            found[kept.id] = await lists(kept.schedule, agent, session, wanted=(), forced=True)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBefore(Checklists):
    """Waits for a busy session like the real one, and then returns the recorded result."""

    said: Mapping[str, GateSaid]

    async def __call__(
        self, schedule: Schedule, agent: Agent, session: SessionId, *, wanted: tuple[str, ...], forced: bool
    ) -> GateSaid:
        if not forced and (because := await self._why_busy(schedule, session)):
            return GateSaid(open=False, because=because)
        return self.said.get(schedule.id, NOT_READ)


def read_before(said: Mapping[str, GateSaid], settings: Settings, store: Store, clock: Clock) -> ReadChecklist:
    return ReadBefore(said=said, **_needs(store, clock, settings))


def _needs(store: Store, clock: Clock, settings: Settings) -> dict[str, Any]:
    """Return the arguments of a checklist reader: where checklists are, their trust, and whether a
    session is busy.
    """
    home = Path(os.path.realpath(settings.home))
    withheld = Withheld(house=home, person=Path(os.path.realpath(Path.home())))
    ground = Ground(store=store, clock=clock, files=Files(home / "files"), withheld=withheld)

    async def has_something_to_do(session: SessionId) -> bool:
        return await store.read(partial(is_busy, session=session, now_ms=to_ms(clock.now())))

    def nothing(agent: Agent) -> str:
        return ""

    return {
        "clock": clock,
        "look": partial(look_for, ground),
        "is_busy": has_something_to_do,
        "home_of": partial(home_of, settings.home),
        "workspace_of": settings.defaults.workspace_of,
        "gates": assumed_open,
        "why_no_gate": nothing,
    }
