"""Gates in a dry run: each is run once before the simulation, in a sandbox, on a copy of the agent directory.

No real time passes between two simulated occurrences, so a gate would return the same each time. A
gate that may write outside the agent directory or use the network is not run, because that would
have effects. It is assumed to be open.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from retinue.agents.agent_directory import ensure_home, home_of
from retinue.config import Settings
from retinue.config.sandbox import DockerSettings, SandboxKind
from retinue.domain import permission
from retinue.domain.agent import Agent
from retinue.domain.ids import SessionId, derived
from retinue.domain.permission import Access, Withheld
from retinue.domain.ports import Clock, Ids
from retinue.domain.schedule import Gate, GateSaid, Schedule
from retinue.domain.session import Origin, OriginKind
from retinue.domain.structs import replace
from retinue.domain.trust import Trust
from retinue.dry_run.copied_server import GATE_OUTPUT, Scene, assumed_open
from retinue.sandbox.base import Child, Confinement, Probe, Sandbox, SandboxFailed
from retinue.sandbox.bubblewrap import Bubblewrap
from retinue.schedules.gates import Gates
from retinue.store.core.connection import Store
from retinue.store.sessions import sessions
from retinue.tools.grants import Grants
from retinue.tools.shell.sandbox_choice import Confining

HOME_BYTES_MAX = 200 * 1024 * 1024
ASSUMED = "assumed open"


class NoWalls:
    """Replaces the host, where commands run without a sandbox. It refuses every command."""

    name = "none"

    def __init__(self) -> None:
        self.asked = False

    async def probe(self) -> Probe:
        return Probe(False, "a rehearsal runs nothing without walls", 'set `kind = "bubblewrap"`')

    async def start(self, argv: Sequence[str], confinement: Confinement, *, pty: bool = False) -> Child:
        self.asked = True
        raise SandboxFailed("it was not run", because="a rehearsal runs nothing without walls")


class GatesAsked:
    """The result of each gate for every occurrence of its schedule, and its description for the report."""

    def __init__(self) -> None:
        self.taken: dict[str, str] = {}
        self._said: dict[str, GateSaid] = {}

    async def __call__(self, schedule: Schedule, agent: Agent, session: SessionId) -> GateSaid:
        said = self._said.get(schedule.id)
        return said if said is not None else await assumed_open(schedule, agent, session)

    def said(self, schedule: Schedule, said: GateSaid) -> None:
        # The output is private and not shown. Whether there is any may decide whether the occurrence runs.
        output = GATE_OUTPUT if said.output else ""
        self._said[schedule.id] = GateSaid(open=said.open, because=said.because, output=output, trust=Trust.PRIVATE)
        self.taken[schedule.id] = "asked once: open" if said.open else f"asked once: closed ({said.because})"


async def ask(
    scene: Scene,
    settings: Settings,
    store: Store,
    clock: Clock,
    ids: Ids,
    *,
    folder: Path,
    environment: Mapping[str, str],
) -> GatesAsked:
    """Run each gate that has no effects. `folder` is where the copy is."""
    asked = GatesAsked()
    walls = Bubblewrap(
        folder=folder / "sandbox",
        state=(settings.home, folder, *settings.sandbox.hidden),
        homes=(folder / "agents",),
        user_home=Path(os.path.realpath(Path.home())),
    )
    probe = await walls.probe()
    staff = {agent.name: agent for agent in scene.staff}
    for kept in scene.schedules:
        gate, agent = kept.schedule.gate, staff.get(kept.schedule.to.name) or staff.get(kept.schedule.owner.name)
        if gate is None or agent is None or not kept.enabled:
            continue
        because = _why_not(gate, settings, agent, probe) or _copy_home(settings.home, folder, agent.name)
        if because:
            asked.taken[kept.id] = f"{ASSUMED}: {because}"
            continue
        bare = NoWalls()
        said = await _gates(settings, store, clock, ids, walls, bare, folder=folder, environment=environment)(
            kept.schedule, agent, await _session(store, kept.schedule, agent)
        )
        if bare.asked:
            asked.taken[kept.id] = f"{ASSUMED}: {agent.name} has no sandbox"
        else:
            asked.said(kept.schedule, said)
    return asked


def _why_not(gate: Gate, settings: Settings, agent: Agent, probe: Probe) -> str:
    if not probe.works:
        return f"there is no sandbox here: {probe.because}"
    if gate.domains:
        return "it reaches a network"
    if any(permission.parse(tag).access is not Access.READ for tag in gate.permissions):
        return "it may write elsewhere than at home"
    size = sum(path.lstat().st_size for path in home_of(settings.home, agent.name).rglob("*"))
    return f"the home of {agent.name} is larger than {HOME_BYTES_MAX:,} bytes" if size > HOME_BYTES_MAX else ""


def _copy_home(home: Path, folder: Path, agent: str) -> str:
    target, source = home_of(folder, agent), home_of(home, agent)
    try:
        if not target.exists() and source.is_dir():
            shutil.copytree(source, target, symlinks=True)
    except (OSError, shutil.Error):
        return f"the home of {agent} cannot be copied"
    return ""


async def _session(store: Store, schedule: Schedule, agent: Agent) -> SessionId:
    """Return the schedule's session if it has one, because grants made there apply."""
    origin = Origin(OriginKind.SCHEDULE, f"schedule:{schedule.id}")
    found = await store.read(lambda conn: sessions.by_origin(conn, agent.name, origin))
    return found.id if found is not None else SessionId(derived(schedule.id, "rehearsal"))


def _gates(
    settings: Settings,
    store: Store,
    clock: Clock,
    ids: Ids,
    walls: Sandbox,
    bare: Sandbox,
    *,
    folder: Path,
    environment: Mapping[str, str],
) -> Gates:
    sandbox = replace(settings.sandbox, kind=SandboxKind.BUBBLEWRAP)

    def container(key: str, docker: DockerSettings | None) -> Sandbox:
        return bare

    return Gates(
        store=store,
        clock=clock,
        ids=ids,
        grants=Grants(store, clock),
        confining=Confining(
            settings=lambda: sandbox,
            host=bare,
            bubblewrap=walls,
            container=container,
            homes=folder / "agents",
            is_owner=lambda _scene: False,
            environment=environment,
        ),
        withheld=Withheld(house=folder, person=Path(os.path.realpath(Path.home()))),
        home_of=lambda name: ensure_home(folder, name),
    )
