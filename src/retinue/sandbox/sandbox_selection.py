"""Chooses the sandbox and confinement of a command from settings and facts, with the reason. Pure.

The stricter of the settings and the request wins. `policy/tools/exec_placement` decides whether a person must approve
leaving the sandbox. This module only determines whether a sandbox is available.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from retinue.config.sandbox import (
    CommandLimitSettings,
    SandboxKind,
    SandboxMode,
    SandboxScope,
    SandboxSettings,
    WorkspaceAccess,
)
from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.permission import AgentRights, is_lent_workspace
from retinue.domain.session import OriginKind
from retinue.domain.structs import field_names, replace
from retinue.sandbox.base import MIB, Confinement, NetworkAccess, ResourceLimits, SandboxProbe
from retinue.sandbox.errors import SandboxPathRefused
from retinue.sandbox.network_rules import filter_allowed

SCRATCH_FOLDER = Path("/tmp")  # working directory without access to the workspace
_STRICTEST_FIRST = (WorkspaceAccess.NONE, WorkspaceAccess.READ, WorkspaceAccess.WRITE)


class CommandFacts(Struct, frozen=True, kw_only=True):
    """The facts on which the choice of a sandbox depends: who runs a command, and where.
    `agents_directory` contains the agent directories of all agents.
    """

    agent: str
    session: str
    origin: OriginKind
    is_for_owner: bool  # whether the run works for the owner
    rights: AgentRights
    agent_directory: Path
    agents_directory: Path

    @property
    def is_main(self) -> bool:
        """Whether the owner uses the session directly. A channel does not count, because others can
        write there.
        """
        return self.is_for_owner and self.origin in (OriginKind.TERMINAL, OriginKind.WEB)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedConfinement:
    """What a tool call requests for its command. A request can only reduce the access that is configured."""

    folder: Path | None = None
    workspace: WorkspaceAccess | None = None
    hosts: tuple[str, ...] | None = None
    seconds: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


class SandboxChoice(Struct, frozen=True, kw_only=True):
    """The sandbox `kind` for a command, and the `decision` whether the command may run there.

    `key` identifies the shared container.

    If the decision is to ask, `kind` is off: no sandbox works, and a person decides about running on the host.
    """

    kind: SandboxKind
    key: str
    confinement: Confinement
    decision: Decision


def choose_sandbox(
    settings: SandboxSettings,
    facts: CommandFacts,
    probes: Mapping[SandboxKind, SandboxProbe],
    requested: RequestedConfinement | None = None,
) -> SandboxChoice:
    """Choose the sandbox for a command. `probes` are the test results of all sandboxes.

    Raises `SandboxFailed` if a permission names a path of another agent.
    """
    kind, decision = _choose_kind(settings, facts, probes)
    return SandboxChoice(
        kind=kind,
        key=build_scope_key(settings.scope, facts),
        confinement=build_confinement(settings, facts, requested or RequestedConfinement()),
        decision=decision,
    )


def _choose_kind(
    settings: SandboxSettings, facts: CommandFacts, probes: Mapping[SandboxKind, SandboxProbe]
) -> tuple[SandboxKind, Decision]:
    if settings.kind is SandboxKind.OFF:
        return SandboxKind.OFF, Decision(DecisionKind.ALLOW, 'the owner disabled the sandbox: `sandbox.kind = "off"`')
    if settings.mode is SandboxMode.OFF:
        return SandboxKind.OFF, Decision(DecisionKind.ALLOW, 'the owner disabled the sandbox: `sandbox.mode = "off"`')
    if settings.mode is SandboxMode.NON_MAIN and facts.is_main:
        because = 'the owner follows this session, and `sandbox.mode` is "non-main"'
        return SandboxKind.OFF, Decision(DecisionKind.ALLOW, because)
    probe = probes.get(settings.kind, SandboxProbe(False, "it was not tested yet"))
    if probe.works:
        return settings.kind, Decision(DecisionKind.ALLOW, f"it runs in the sandbox {settings.kind}")
    because = f"{settings.kind} does not work here, so it would run without a sandbox: {probe.because}"
    return SandboxKind.OFF, Decision(DecisionKind.ASK, because)


def build_scope_key(scope: SandboxScope, facts: CommandFacts) -> str:
    match scope:
        case SandboxScope.SESSION:
            return f"session:{facts.session}"
        case SandboxScope.AGENT:
            return f"agent:{facts.agent}"
        case SandboxScope.SHARED:
            return "shared"


def build_confinement(settings: SandboxSettings, facts: CommandFacts, requested: RequestedConfinement) -> Confinement:
    rights, workspace = facts.rights, facts.rights.workspace
    for path in (*rights.writable, *rights.readable):
        _refuse_other_agents_path(path, facts)
    access = strictest(settings.workspace, requested.workspace)
    writable, readable = list(rights.write), list(rights.read)
    if access is WorkspaceAccess.WRITE:
        writable.append(workspace)
    else:
        inside = [path for path in writable if path.is_relative_to(workspace)]
        writable = [path for path in writable if path not in inside]
        readable = [path for path in (*readable, *inside) if not path.is_relative_to(workspace)]
        readable += [workspace] if access is WorkspaceAccess.READ else []
    limits = build_limits(settings.limits)
    if requested.seconds is not None:
        limits = replace(limits, seconds=min(limits.seconds, requested.seconds))
    return Confinement(
        folder=requested.folder or (SCRATCH_FOLDER if access is WorkspaceAccess.NONE else workspace),
        writable=tuple(writable),
        readable=tuple(readable),
        network=_build_network(settings, rights, requested.hosts),
        limits=limits,
        environment=requested.environment,
    )


def tighten_confinement(settings: SandboxSettings, facts: CommandFacts, requested: Confinement) -> Confinement:
    """Reduce a confinement built elsewhere to what the settings allow."""
    for path in (*requested.writable, *requested.readable):
        _refuse_other_agents_path(path, facts)
    workspace, limits = facts.rights.workspace, build_limits(settings.limits)
    writable, readable, folder = requested.writable, requested.readable, requested.folder
    if settings.workspace is not WorkspaceAccess.WRITE:
        inside = [path for path in (*writable, *readable) if path.is_relative_to(workspace)]
        writable = tuple(path for path in writable if path not in inside)
        readable = tuple(path for path in readable if path not in inside)
        readable += (workspace,) if settings.workspace is WorkspaceAccess.READ and inside else ()
    if settings.workspace is WorkspaceAccess.NONE and folder.is_relative_to(workspace):
        folder = SCRATCH_FOLDER
    hosts = requested.network.hosts if requested.network is not None else ()
    return replace(
        requested,
        folder=folder,
        writable=writable,
        readable=readable,
        network=_build_network(settings, facts.rights, hosts),
        limits=ResourceLimits(
            **{name: min(getattr(limits, name), getattr(requested.limits, name)) for name in field_names(limits)}
        ),
    )


def _refuse_other_agents_path(path: Path, facts: CommandFacts) -> None:
    workspace = facts.rights.workspace
    lent = path.is_relative_to(workspace) and is_lent_workspace(str(workspace), str(facts.agents_directory))
    if path.is_relative_to(facts.agents_directory) and not path.is_relative_to(facts.agent_directory) and not lent:
        raise SandboxPathRefused(
            str(path),
            because="it is in the agent directory of another agent",
            try_this="ask that agent to send the file",
        )


def _build_network(
    settings: SandboxSettings, rights: AgentRights, requested: Sequence[str] | None
) -> NetworkAccess | None:
    hosts = settings.hosts if requested is None else filter_allowed(requested, settings.hosts)
    if not rights.web or not hosts:
        return None
    return NetworkAccess(hosts=tuple(hosts), private_hosts=settings.private_hosts)


def strictest(configured: WorkspaceAccess, requested: WorkspaceAccess | None) -> WorkspaceAccess:
    return min(configured, requested or configured, key=_STRICTEST_FIRST.index)


def build_limits(settings: CommandLimitSettings) -> ResourceLimits:
    return ResourceLimits(
        seconds=settings.seconds,
        memory_bytes=settings.memory_mib * MIB,
        processes=settings.processes,
        file_bytes=settings.file_mib * MIB,
        disk_bytes=settings.tmp_mib * MIB,
        output_bytes=settings.output_mib * MIB,
    )
