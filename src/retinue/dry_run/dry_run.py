"""Performs a dry run from start to end: copy the instance, read the copy, simulate, and report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from pathlib import Path

from retinue.config import Settings
from retinue.domain.ports import Clock, IdSource
from retinue.domain.structs import replace
from retinue.dry_run import copied_server
from retinue.dry_run import report as reporting
from retinue.dry_run.cancellation import SignalRecorder
from retinue.dry_run.copied_server import OnProgress, ignore_progress
from retinue.dry_run.copy_instance import copy_folder, copy_instance
from retinue.dry_run.gate_answers import RecordedGates
from retinue.dry_run.gate_answers import run_gates as ask_gates
from retinue.dry_run.heartbeat_checklists import make_recorded_checklists, read_checklists, sync_heartbeats
from retinue.dry_run.parameters import DryRunPlan, DryRunRequest, make_plan
from retinue.dry_run.report_types import DryRunReport
from retinue.schedules.schedule_files import ScheduleFileSync
from retinue.store.core.sqlite import InlineStore
from retinue.store.maintenance.backup import STORE
from retinue.testing.fake_clock import FakeClock


def run_dry_run(
    request: DryRunRequest,
    settings: Settings,
    *,
    now: datetime,
    environment: Mapping[str, str],
    make_progress: Callable[[DryRunPlan], OnProgress] = lambda _plan: ignore_progress,
    notes: Sequence[str] = (),
    signals: SignalRecorder | None = None,
) -> DryRunReport:
    """Copy the instance, simulate its schedules on the copy, and return the report. The instance is only read."""
    started = time.monotonic()
    signals = signals or SignalRecorder()
    plan = make_plan(request, now=now, zone=settings.zone)
    with copy_folder(request.keep) as folder:
        is_open = copy_instance(settings, folder)
        store = copied_server.open_copy(folder / STORE)
        with closing(store.connection):
            clock, ids = FakeClock(plan.start), copied_server.SeededIds(plan.seed)
            unread = [] if is_open else signals.run(_sync_files(store, clock, ids, settings, folder))
            context = copied_server.read_context(store, plan)
            checklists = signals.run(read_checklists(context, store, clock, settings))
            gates = reporting.read_gate_history(store.connection, context)
            asked_gates = RecordedGates()
            if plan.runs_gates:
                asked_gates = signals.run(
                    ask_gates(context, settings, store, clock, ids, folder=folder, environment=environment)
                )
            simulated = copied_server.run_simulation(
                plan,
                replace(settings, home=folder),
                store,
                context,
                data_dir=folder,
                environment=environment,
                build_checklist_reader=partial(make_recorded_checklists, checklists, settings),
                run_gate=asked_gates,
                on_progress=make_progress(plan),
                after_step=signals.raise_if_signalled,
            )
            return reporting.build_report(
                store.connection,
                plan,
                settings,
                context,
                simulated,
                gate_history=gates,
                gate_descriptions=asked_gates.descriptions,
                notes=[*notes, *unread],
                duration_s=round(time.monotonic() - started, 1),
            )


async def _sync_files(store: InlineStore, clock: Clock, ids: IdSource, settings: Settings, folder: Path) -> list[str]:
    """Read the schedule files and the heartbeat settings into the copy, as a server does when it starts.

    Returns the problems found in the files.
    """
    files = ScheduleFileSync(store, clock, ids, folder, settings.zone)
    await files.sync()
    await sync_heartbeats(store, clock, settings)
    return files.problems()
