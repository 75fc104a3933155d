"""Reads the checklist of each heartbeat once, before the dry run simulates anything.

A checklist does not change during a dry run, so every heartbeat would read the same content. The gates of its tasks are
assumed to be open.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from retinue.agents.agent_directory import agent_directory_of
from retinue.config import Settings
from retinue.domain.agent import Agent
from retinue.domain.ids import SessionId, derive_id
from retinue.domain.ports import Clock, ReadChecklist
from retinue.domain.protected_paths import ProtectedPaths
from retinue.domain.schedule import GateResult, Schedule
from retinue.domain.times import to_ms
from retinue.dry_run.copied_server import DryRunContext, assume_gate_open
from retinue.engine.heartbeats import is_session_busy
from retinue.schedules.file_reader import read_with_trust
from retinue.schedules.heartbeat_prompt import ChecklistReader
from retinue.schedules.heartbeats import HeartbeatSettings, HeartbeatSync
from retinue.store.core.connection import Store
from retinue.store.envelopes.attachment_files import AttachmentFiles
from retinue.tools.files.file_services import FileServices

NOT_READ_RESULT = GateResult(is_open=False, because="its checklist cannot be read in a dry run")


class ReadOnlyHeartbeatSync(HeartbeatSync):
    """Syncs heartbeats like a server that starts, without creating anything in the agent directories."""

    def _watch_tasks(self, agent: str | None) -> None:
        return


async def sync_heartbeats(store: Store, clock: Clock, settings: Settings) -> None:
    """Update the stored heartbeats from the current settings and files, as a server does when it starts."""
    wishes = HeartbeatSettings(
        defaults=settings.defaults.heartbeat, default_agent=settings.default_agent, zone=settings.zone
    )
    beats = ReadOnlyHeartbeatSync(
        store,
        clock,
        lambda: wishes,
        agent_directory_of=partial(agent_directory_of, settings.home),
        workspace_of=settings.defaults.workspace_of,
    )
    await beats.sync(is_boot=True)


async def read_checklists(
    context: DryRunContext, store: Store, clock: Clock, settings: Settings
) -> dict[str, GateResult]:
    """Return the result of reading the checklist of each heartbeat."""
    lists = ChecklistReader(**_reader_arguments(store, clock, settings))
    agents_by_name = {agent.name: agent for agent in context.agents}
    found: dict[str, GateResult] = {}
    for kept in context.schedules:
        agent = agents_by_name.get(kept.schedule.to.name)
        if kept.schedule.heartbeat is not None and kept.enabled and agent is not None:
            session = SessionId(derive_id(kept.id, "dry_run"))
            found[kept.id] = await lists(kept.schedule, agent, session, wanted=(), forced=True)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedChecklists(ChecklistReader):
    """Returns the recorded result of a checklist.

    Like the real reader, it first waits while the session is busy. If the session stays busy, the
    heartbeat is skipped.
    """

    results: Mapping[str, GateResult]

    async def __call__(
        self, schedule: Schedule, agent: Agent, session: SessionId, *, wanted: tuple[str, ...], forced: bool
    ) -> GateResult:
        if not forced and (because := await self._busy_reason(schedule, session)):
            return GateResult(is_open=False, because=because)
        return self.results.get(schedule.id, NOT_READ_RESULT)


def make_recorded_checklists(
    results: Mapping[str, GateResult], settings: Settings, store: Store, clock: Clock
) -> ReadChecklist:
    return RecordedChecklists(results=results, **_reader_arguments(store, clock, settings))


def _reader_arguments(store: Store, clock: Clock, settings: Settings) -> dict[str, Any]:
    """Return the arguments for a checklist reader: the folders, their trust, and a check for a busy session."""
    home = Path(os.path.realpath(settings.home))
    withheld = ProtectedPaths(data_directory=home, user_home=Path(os.path.realpath(Path.home())))
    file_services = FileServices(store=store, clock=clock, files=AttachmentFiles(home / "files"), withheld=withheld)

    async def has_something_to_do(session: SessionId) -> bool:
        return await store.read(partial(is_session_busy, session=session, now_ms=to_ms(clock.now())))

    def nothing(agent: Agent) -> str:
        return ""

    return {
        "clock": clock,
        "read_file": partial(read_with_trust, file_services),
        "is_busy": has_something_to_do,
        "agent_directory_of": partial(agent_directory_of, settings.home),
        "workspace_of": settings.defaults.workspace_of,
        "run_gate": assume_gate_open,
        "gate_refusal": nothing,
    }
