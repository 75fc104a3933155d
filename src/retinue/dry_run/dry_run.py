"""A dry run from start to end: copy the instance, read it, simulate, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path

from retinue.config import Settings
from retinue.domain.ports import Clock, Ids
from retinue.domain.structs import replace
from retinue.dry_run import copied_server
from retinue.dry_run import report as reporting
from retinue.dry_run.cancellation import Leaving
from retinue.dry_run.copied_server import Tell, nobody_watches
from retinue.dry_run.copy_instance import copy, folder_for
from retinue.dry_run.gate_answers import GatesAsked
from retinue.dry_run.gate_answers import ask as ask_gates
from retinue.dry_run.heartbeat_checklists import fit, read_all, read_before
from retinue.dry_run.parameters import Asked, Plan, plan
from retinue.dry_run.report_types import Report
from retinue.schedules.schedule_files import ScheduleFiles
from retinue.store.core.sqlite import InlineStore
from retinue.store.maintenance.backup import STORE
from retinue.testing.fake_clock import FakeClock


def rehearse(
    asked: Asked,
    settings: Settings,
    *,
    now: datetime,
    environment: Mapping[str, str],
    watch: Callable[[Plan], Tell] = lambda _plan: nobody_watches,
    notes: Sequence[str] = (),
    leaving: Leaving | None = None,
) -> Report:
    """Copy the instance, simulate its schedules on the copy, and return the report. The instance is only read."""
    began = time.monotonic()
    leaving = leaving or Leaving()
    wanted = plan(asked, now=now, zone=settings.zone)
    with folder_for(asked.keep) as folder:
        is_open = copy(settings, folder)
        store = copied_server.open_copy(folder / STORE)
        with closing(store.connection):
            clock, ids = FakeClock(wanted.begin), copied_server.CountedIds(wanted.seed)
            unread = [] if is_open else leaving.run(_open(store, clock, ids, settings, folder))
            scene = copied_server.look(store, wanted)
            said = leaving.run(read_all(scene, store, clock, settings))
            gates = reporting.gates_before(store.connection, scene)
            asked_gates = GatesAsked()
            if wanted.gates:
                asked_gates = leaving.run(
                    ask_gates(scene, settings, store, clock, ids, folder=folder, environment=environment)
                )
            played = copied_server.play(
                wanted,
                replace(settings, home=folder),
                store,
                scene,
                home=folder,
                environment=environment,
                checklists=partial(read_before, said, settings),
                ask_gate=asked_gates,
                tell=watch(wanted),
                after_step=leaving.heed,
            )
            return reporting.report(
                store.connection,
                wanted,
                settings,
                scene,
                played,
                gates=gates,
                gates_taken=asked_gates.taken,
                notes=[*notes, *unread],
                took_s=round(time.monotonic() - began, 1),
            )


async def _open(store: InlineStore, clock: Clock, ids: Ids, settings: Settings, folder: Path) -> list[str]:
    """Do what a server does when it starts: read the schedule files and the heartbeat settings.

    Returns the problems in the files.
    """
    files = ScheduleFiles(store, clock, ids, folder, settings.zone)
    await files.look()
    await fit(store, clock, settings)
    return files.problems()
