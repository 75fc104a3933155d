"""Runs the gate of a schedule: a command that decides, before any model call, whether the message is sent.

A gate runs like a command of the agent: in the configured sandbox, from the agent directory, and
only with the grants of the occurrence's session. If it exits with code 0, the message is sent.
After any other exit code, a missing permission, a timeout or a broken sandbox, the occurrence is
skipped. The reason is stored in the schedule's history.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from msgspec import Struct

from retinue.config.sandbox import check_allowed_host
from retinue.domain import permission
from retinue.domain.agent import Agent
from retinue.domain.errors import RetinueError
from retinue.domain.ids import RunId, SessionId, short_id
from retinue.domain.permission import (
    WEB_PERMISSION,
    AgentRights,
    Permission,
    PermissionKind,
    add_permissions,
    default_rights,
)
from retinue.domain.ports import Clock, IdSource
from retinue.domain.protected_paths import ProtectedPaths
from retinue.domain.schedule import GateResult, Schedule, ScheduleGate
from retinue.domain.session import OriginKind
from retinue.domain.storable_text import make_storable, truncate_bytes
from retinue.domain.structs import replace
from retinue.domain.trust import Trust
from retinue.domain.value_errors import ScheduleGateInvalid
from retinue.policy.tools.exec_placement import CommandLocation, ExecPolicy
from retinue.policy.tools.grants import find_missing_permissions
from retinue.sandbox.base import CommandExit, Confinement, NetworkAccess, ResourceLimits, RunningCommand
from retinue.schedules.errors import GateFolderMissing, GateSandboxMissing, GateWebDenied
from retinue.store.core.connection import Store
from retinue.text.untrusted_wrapper import wrap_untrusted
from retinue.tools.base import ToolContext
from retinue.tools.files.path_access import find_reachable_paths, locate
from retinue.tools.grants import GrantCache
from retinue.tools.shell.argv import build_argv, build_environment, find_program
from retinue.tools.shell.sandbox_choice import PlacedCommand, SandboxChooser, assess_output_trust

OUTPUT_BYTES_MAX = 1024 * 1024  # bytes of output that are read
SHOWN_BYTES_MAX = 32_768  # bytes of output that a model reads
LIMIT_SLACK_S = 5.0  # the server stops a slow gate; if it cannot, the sandbox does so this much later


class GateRunner(Struct, frozen=True, kw_only=True):
    """Runs the gate of a schedule, and returns whether the message is sent, with the gate's output or a reason."""

    store: Store
    clock: Clock
    ids: IdSource
    grants: GrantCache
    sandbox_choice: SandboxChooser
    withheld: ProtectedPaths
    agent_directory_of: Callable[[str], Path]
    redact: Callable[[str], str] = str

    async def __call__(self, schedule: Schedule, agent: Agent, session: SessionId) -> GateResult:
        gate = schedule.gate
        if gate is None:
            return GateResult(is_open=True)
        try:
            return await self._run(gate, schedule, agent, session)
        except RetinueError as error:
            because = f"{error.sentence}: {error.because}" if error.because else error.sentence
            return GateResult(is_open=False, because=f"gate: {because}")
        except OSError as error:
            return GateResult(
                is_open=False, because=f"gate: it could not be started: {error.strerror or type(error).__name__}"
            )

    async def _run(self, gate: ScheduleGate, schedule: Schedule, agent: Agent, session: SessionId) -> GateResult:
        home = self.agent_directory_of(agent.name)
        held = await self.grants.active_permissions(agent.name, session, OriginKind.SCHEDULE)
        rights = default_rights(home, home)
        if lacks := find_missing_permissions(
            [permission.parse_permission(tag) for tag in gate.permissions], rights, _with_own_directories(held, rights)
        ):
            named = ", ".join(str(each) for each in lacks)
            return GateResult(
                is_open=False, because=f"gate: it needs {named}, which was not granted to session {short_id(session)}"
            )
        scene = ToolContext(
            agent=agent,
            session=session,
            run=RunId(schedule.id),
            call="gate",
            agent_directory=home,
            rights=_requested_rights(gate, rights, held),
            origin=OriginKind.SCHEDULE,
            trust=schedule.trust,
        )
        await self.sandbox_choice.ensure_probed()
        placed, folder = await self._prepare(gate, scene)
        argv = build_argv(gate.command, folder, is_confined=placed.is_confined)
        trust = await assess_output_trust(self.store, self.clock, scene, placed, run=None, untrusted=False)
        child = await placed.sandbox.start(argv, placed.confinement)
        return await self._wait_for_result(gate, child, schedule, trust)

    async def _prepare(self, gate: ScheduleGate, context: ToolContext) -> tuple[PlacedCommand, Path]:
        folder = await asyncio.to_thread(self._working_directory, gate, context)
        reach = await asyncio.to_thread(find_reachable_paths, context, self.withheld)
        writable = tuple(dict.fromkeys(Path(real) for _, real in reach.writable))
        readable = tuple(dict.fromkeys(Path(real) for _, real in reach.readable))
        asked = Confinement(
            folder=folder,
            writable=writable,
            readable=tuple(each for each in readable if each not in writable),
            network=_allowed_network(gate, context),
            limits=ResourceLimits(seconds=gate.timeout_ms / 1000 + LIMIT_SLACK_S, output_bytes=OUTPUT_BYTES_MAX),
        )
        where = self.sandbox_choice.adapt_policy(context, ExecPolicy()).host
        if where is CommandLocation.HOST and context.trust is not Trust.OWNER:
            raise GateSandboxMissing
        placed = await self.sandbox_choice(context, asked, where, find_program(gate.command))
        variables = build_environment(
            reach.workspace,
            folder,
            gate.env,
            server_variables=context.environment,
            pty=False,
            is_confined=placed.is_confined,
        )
        environment = {**variables, **placed.confinement.environment}
        return replace(placed, confinement=replace(placed.confinement, environment=environment)), folder

    def _working_directory(self, gate: ScheduleGate, context: ToolContext) -> Path:
        named = gate.cwd or str(context.rights.workspace)
        folder = Path(locate(named, context, PermissionKind.READ, self.withheld).real)
        if not folder.is_dir():
            raise GateFolderMissing(named)
        return folder

    async def _wait_for_result(
        self, gate: ScheduleGate, child: RunningCommand, schedule: Schedule, trust: Trust
    ) -> GateResult:
        try:
            # In real seconds: a command runs in real time, whatever the server's clock shows.
            async with asyncio.timeout(gate.timeout_ms / 1000):
                child.close_input()
                output = await _read_output(child)
                ended = await child.wait()
        except TimeoutError:
            return GateResult(
                is_open=False, because=f"gate: it took longer than {gate.timeout_ms:,} ms and was stopped"
            )
        finally:
            await child.kill()
        if ended.code != 0:
            return GateResult(is_open=False, because=f"gate: {_describe_end(ended)}")
        shown = truncate_bytes(make_storable(self.redact(output.decode(errors="replace"))).strip(), SHOWN_BYTES_MAX)
        if shown and trust is Trust.UNTRUSTED:
            shown = wrap_untrusted(shown, id=self.ids.new(), source={"gate": schedule.name or short_id(schedule.id)})
        return GateResult(is_open=True, output=shown, trust=trust)


async def _read_output(child: RunningCommand) -> bytes:
    """Read a gate's output to its end, and return the first `OUTPUT_BYTES_MAX` bytes of it."""
    kept = bytearray()
    while data := await child.read():
        kept += data[: OUTPUT_BYTES_MAX - len(kept)]
    return bytes(kept)


def _describe_end(ended: CommandExit) -> str:
    if ended.because:
        return ended.because
    return f"exit {ended.code}" if ended.code is not None else f"signal {ended.signal}"


def _with_own_directories(granted: tuple[Permission, ...], rights: AgentRights) -> tuple[Permission, ...]:
    """Return the grants, and write permissions for the directories that the agent may write without a grant."""
    own = [Permission(PermissionKind.WRITE, os.path.realpath(path)) for path in rights.writable]
    return (*granted, *own, *(Permission(PermissionKind.WRITE, str(path)) for path in rights.writable))


def _requested_rights(gate: ScheduleGate, rights: AgentRights, granted: tuple[Permission, ...]) -> AgentRights:
    """Return the agent's rights, with the gate's `permissions` that were granted."""
    wanted = [permission.parse_permission(tag) for tag in gate.permissions]
    return add_permissions(
        rights, [each for each in wanted if each == WEB_PERMISSION or any(have.covers(each) for have in granted)]
    )


def _allowed_network(gate: ScheduleGate, context: ToolContext) -> NetworkAccess | None:
    if not gate.domains:
        return None
    if not context.rights.web:
        raise GateWebDenied
    for host in gate.domains:
        if wrong := check_allowed_host(host):
            raise ScheduleGateInvalid(
                because=f"the domain {host[:100]!r} {wrong}", try_this="use for example api.example.com in `domains`"
            )
    return NetworkAccess(hosts=gate.domains)
