"""Decides what a command can access in its sandbox: files, network, and resource limits.

If the settings and the request differ, the stricter one applies. This module has no side effects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from retinue.config.sandbox import (
    CommandLimitSettings,
    SandboxSettings,
    WorkspaceAccess,
)
from retinue.domain.permission import AgentRights
from retinue.domain.protected_paths import is_lent_workspace
from retinue.domain.session import OriginKind
from retinue.domain.structs import field_names, replace
from retinue.sandbox.base import MIB, Confinement, NetworkAccess, ResourceLimits
from retinue.sandbox.errors import SandboxPathRefused
from retinue.sandbox.network_rules import filter_allowed

SCRATCH_FOLDER = Path("/tmp")  # working directory if there is no access to the workspace
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
        """Whether the owner uses the session directly, in a terminal or the web app.

        A channel does not count, because other people can write there.
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
    """Reduce a given confinement to what the settings and the permissions of the agent allow."""
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
