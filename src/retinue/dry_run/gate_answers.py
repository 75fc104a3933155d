"""Runs each gate once before a dry run, in a sandbox, on a copy of the agent directory, and records the result.

No real time passes between two simulated occurrences, so a gate would return the same result each time. A gate that may
write outside the agent directory or use the network is not run, because that would have effects. Such a gate is assumed
to be open.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from retinue.agents.agent_directory import agent_directory_of, ensure_agent_directory
from retinue.config import Settings
from retinue.config.sandbox import DockerSettings, SandboxKind
from retinue.domain import permission
from retinue.domain.agent import Agent
from retinue.domain.ids import SessionId, derive_id
from retinue.domain.permission import PermissionKind
from retinue.domain.ports import Clock, IdSource
from retinue.domain.protected_paths import ProtectedPaths
from retinue.domain.schedule import GateResult, Schedule, ScheduleGate
from retinue.domain.session import Origin, OriginKind
from retinue.domain.structs import replace
from retinue.domain.trust import Trust
from retinue.dry_run.copied_server import GATE_OUTPUT, DryRunContext, assume_gate_open
from retinue.dry_run.errors import NO_SANDBOX_REASON, DryRunUnconfined
from retinue.sandbox.base import Confinement, RunningCommand, Sandbox, SandboxProbe
from retinue.sandbox.bubblewrap import BubblewrapSandbox
from retinue.schedules.gates import GateRunner
from retinue.store.core.connection import Store
from retinue.store.sessions import sessions
from retinue.tools.grants import GrantCache
from retinue.tools.shell.sandbox_choice import SandboxChooser

AGENT_DIRECTORY_BYTES_MAX = 200 * 1024 * 1024
ASSUMED_OPEN = "assumed open"


class RefusingSandbox:
    """Refuses every command. In a dry run it replaces the host and containers, so gates run only in bubblewrap."""

    name = "none"

    def __init__(self) -> None:
        self.was_called = False

    async def probe(self) -> SandboxProbe:
        return SandboxProbe(False, NO_SANDBOX_REASON, 'set `kind = "bubblewrap"`')

    async def start(self, argv: Sequence[str], confinement: Confinement, *, pty: bool = False) -> RunningCommand:
        self.was_called = True
        raise DryRunUnconfined


class RecordedGates:
    """The recorded result of each schedule's gate, used for all occurrences, and a description for the report."""

    def __init__(self) -> None:
        self.descriptions: dict[str, str] = {}
        self._results: dict[str, GateResult] = {}

    async def __call__(self, schedule: Schedule, agent: Agent, session: SessionId) -> GateResult:
        recorded = self._results.get(schedule.id)
        return recorded if recorded is not None else await assume_gate_open(schedule, agent, session)

    def record(self, schedule: Schedule, result: GateResult) -> None:
        # The output is private and not shown. Only keep whether there is output: the occurrence may depend on it.
        output = GATE_OUTPUT if result.output else ""
        self._results[schedule.id] = GateResult(
            is_open=result.is_open, because=result.because, output=output, trust=Trust.PRIVATE
        )
        self.descriptions[schedule.id] = "run once: open" if result.is_open else f"run once: closed ({result.because})"


async def run_gates(
    context: DryRunContext,
    settings: Settings,
    store: Store,
    clock: Clock,
    ids: IdSource,
    *,
    folder: Path,
    environment: Mapping[str, str],
) -> RecordedGates:
    """Run each gate that has no effects, and return the results. `folder` is the folder of the copy."""
    asked = RecordedGates()
    sandbox = BubblewrapSandbox(
        folder=folder / "sandbox",
        private_paths=(settings.home, folder, *settings.sandbox.hidden),
        shareable_parents=(folder / "agents",),
        user_home=Path(os.path.realpath(Path.home())),
    )
    probe = await sandbox.probe()
    agents = {agent.name: agent for agent in context.agents}
    for kept in context.schedules:
        gate, agent = kept.schedule.gate, agents.get(kept.schedule.to.name) or agents.get(kept.schedule.owner.name)
        if gate is None or agent is None or not kept.enabled:
            continue
        because = _not_run_because(gate, settings, agent, probe) or _copy_agent_directory(
            settings.home, folder, agent.name
        )
        if because:
            asked.descriptions[kept.id] = f"{ASSUMED_OPEN}: {because}"
            continue
        refusing = RefusingSandbox()
        result = await _build_gate_runner(
            settings, store, clock, ids, sandbox, refusing, folder=folder, environment=environment
        )(kept.schedule, agent, await _session_of(store, kept.schedule, agent))
        if refusing.was_called:
            asked.descriptions[kept.id] = f"{ASSUMED_OPEN}: {agent.name} has no sandbox"
        else:
            asked.record(kept.schedule, result)
    return asked


def _not_run_because(gate: ScheduleGate, settings: Settings, agent: Agent, probe: SandboxProbe) -> str:
    if not probe.works:
        return f"this machine has no sandbox: {probe.because}"
    if gate.domains:
        return "it uses the network"
    if any(permission.parse_permission(tag).kind is not PermissionKind.READ for tag in gate.permissions):
        return "it can write outside the agent directory"
    size = sum(path.lstat().st_size for path in agent_directory_of(settings.home, agent.name).rglob("*"))
    return (
        f"the agent directory of {agent.name} is larger than {AGENT_DIRECTORY_BYTES_MAX:,} bytes"
        if size > AGENT_DIRECTORY_BYTES_MAX
        else ""
    )


def _copy_agent_directory(data_dir: Path, folder: Path, agent: str) -> str:
    target, source = agent_directory_of(folder, agent), agent_directory_of(data_dir, agent)
    try:
        if not target.exists() and source.is_dir():
            shutil.copytree(source, target, symlinks=True)
    except (OSError, shutil.Error):
        return f"the agent directory of {agent} cannot be copied"
    return ""


async def _session_of(store: Store, schedule: Schedule, agent: Agent) -> SessionId:
    """Return the session whose granted permissions apply to a schedule's gate.

    That is the schedule's session, or an unused id if the schedule has no session yet.
    """
    origin = Origin(OriginKind.SCHEDULE, f"schedule:{schedule.id}")
    found = await store.read(lambda conn: sessions.get_by_origin(conn, agent.name, origin))
    return found.id if found is not None else SessionId(derive_id(schedule.id, "dry_run"))


def _build_gate_runner(
    settings: Settings,
    store: Store,
    clock: Clock,
    ids: IdSource,
    bubblewrap: Sandbox,
    refusing: Sandbox,
    *,
    folder: Path,
    environment: Mapping[str, str],
) -> GateRunner:
    sandbox = replace(settings.sandbox, kind=SandboxKind.BUBBLEWRAP)

    def container(key: str, docker: DockerSettings | None) -> Sandbox:
        return refusing

    return GateRunner(
        store=store,
        clock=clock,
        ids=ids,
        grants=GrantCache(store, clock),
        sandbox_choice=SandboxChooser(
            settings=lambda: sandbox,
            host=refusing,
            bubblewrap=bubblewrap,
            container=container,
            agents_directory=folder / "agents",
            is_owner=lambda _scene: False,
            environment=environment,
        ),
        withheld=ProtectedPaths(data_directory=folder, user_home=Path(os.path.realpath(Path.home()))),
        agent_directory_of=lambda name: ensure_agent_directory(folder, name),
    )
