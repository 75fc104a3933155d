"""A rehearsal from beginning to end: copy, look, play, tell."""

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
from retinue.rehearsal import report as reporting
from retinue.rehearsal import stage
from retinue.rehearsal.checklists import fit, read_all, read_before
from retinue.rehearsal.copying import copy, folder_for
from retinue.rehearsal.gates import GatesAsked
from retinue.rehearsal.gates import ask as ask_gates
from retinue.rehearsal.leaving import Leaving
from retinue.rehearsal.plan import Asked, Plan, plan
from retinue.rehearsal.stage import Tell, nobody_watches
from retinue.rehearsal.told import Report
from retinue.schedules.schedule_files import ScheduleFiles
from retinue.store.core.backup import STORE
from retinue.store.core.sqlite import InlineStore
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
    """Copy the house, play its schedules on the copy, and tell what came of it. The house itself is only read."""
    began = time.monotonic()
    leaving = leaving or Leaving()
    wanted = plan(asked, now=now, zone=settings.zone)
    with folder_for(asked.keep) as folder:
        is_open = copy(settings, folder)
        store = stage.open_copy(folder / STORE)
        with closing(store.connection):
            clock, ids = FakeClock(wanted.begin), stage.CountedIds(wanted.seed)
            unread = [] if is_open else leaving.run(_open(store, clock, ids, settings, folder))
            scene = stage.look(store, wanted)
            said = leaving.run(read_all(scene, store, clock, settings))
            gates = reporting.gates_before(store.connection, scene)
            asked_gates = GatesAsked()
            if wanted.gates:
                asked_gates = leaving.run(
                    ask_gates(scene, settings, store, clock, ids, folder=folder, environment=environment)
                )
            played = stage.play(
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
    """What a house does that opens: it reads what was written into its settings and its files since it was closed."""
    files = ScheduleFiles(store, clock, ids, folder, settings.zone)
    await files.look()
    await fit(store, clock, settings)
    return files.problems()
