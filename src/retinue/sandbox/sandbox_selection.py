"""Chooses the sandbox and confinement of a command from settings and facts, with the reason. Pure.

The stricter of the settings and the request wins. `policy/tools/exec_placement` decides whether a
person must approve leaving the sandbox. This module only tells whether a sandbox is available.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import Struct

from retinue.config.sandbox import LimitSettings, SandboxKind, SandboxMode, SandboxSettings, Scope, WorkspaceAccess
from retinue.domain.decision import Decision, Verdict
from retinue.domain.permission import Rights, is_lent
from retinue.domain.session import OriginKind
from retinue.domain.structs import names, replace
from retinue.sandbox.base import MIB, Confinement, Limits, Network, Probe
from retinue.sandbox.mounts import refused
from retinue.sandbox.network_rules import covered

NOWHERE = Path("/tmp")  # working directory without access to the workspace
_STRICTEST_FIRST = (WorkspaceAccess.NONE, WorkspaceAccess.READ, WorkspaceAccess.WRITE)


class Facts(Struct, frozen=True, kw_only=True):
    """Who runs a command, and where. `agents_directory` contains the agent directories of all
    agents.
    """

    agent: str
    session: str
    origin: OriginKind
    owner: bool  # whether the run works for the owner
    rights: Rights
    home: Path
    homes: Path

    @property
    def main(self) -> bool:
        """Whether the owner uses the session directly. A channel does not count, because others can
        write there.
        """
        return self.owner and self.origin in (OriginKind.TERMINAL, OriginKind.WEB)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The request of a call. It can only reduce what is configured."""

    folder: Path | None = None
    workspace: WorkspaceAccess | None = None
    hosts: tuple[str, ...] | None = None
    seconds: float | None = None
    environment: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


class Choice(Struct, frozen=True, kw_only=True):
    """The sandbox `kind` for a command, if `decision` allows it. `key` identifies the shared
    container.

    If the decision is to ask, `kind` is off: no sandbox works, and a person decides about running
    on the host.
    """

    kind: SandboxKind
    key: str
    confinement: Confinement
    decision: Decision


def choose(
    settings: SandboxSettings, facts: Facts, probes: Mapping[SandboxKind, Probe], asked: Asked | None = None
) -> Choice:
    """Choose a sandbox. `probes` are the test results of sandboxes.

    Raises `SandboxFailed` if a permission names a path of another agent.
    """
    kind, decision = _kind(settings, facts, probes)
    return Choice(
        kind=kind,
        key=scope_key(settings.scope, facts),
        confinement=confinement(settings, facts, asked or Asked()),
        decision=decision,
    )


def _kind(settings: SandboxSettings, facts: Facts, probes: Mapping[SandboxKind, Probe]) -> tuple[SandboxKind, Decision]:
    if settings.kind is SandboxKind.OFF:
        return SandboxKind.OFF, Decision(Verdict.ALLOW, 'the owner chose no sandbox: `sandbox.kind = "off"`')
    if settings.mode is SandboxMode.OFF:
        return SandboxKind.OFF, Decision(Verdict.ALLOW, 'the owner chose no sandbox: `sandbox.mode = "off"`')
    if settings.mode is SandboxMode.NON_MAIN and facts.main:
        because = 'the owner sits before this session, and `sandbox.mode` is "non-main"'
        return SandboxKind.OFF, Decision(Verdict.ALLOW, because)
    probe = probes.get(settings.kind, Probe(False, "it was never tried"))
    if probe.works:
        return settings.kind, Decision(Verdict.ALLOW, f"it is confined by {settings.kind}")
    because = f"{settings.kind} does not work here, so it would run bare: {probe.because}"
    return SandboxKind.OFF, Decision(Verdict.ASK, because)


def scope_key(scope: Scope, facts: Facts) -> str:
    match scope:
        case Scope.SESSION:
            return f"session:{facts.session}"
        case Scope.AGENT:
            return f"agent:{facts.agent}"
        case Scope.SHARED:
            return "shared"


def confinement(settings: SandboxSettings, facts: Facts, asked: Asked) -> Confinement:
    rights, workspace = facts.rights, facts.rights.workspace
    for path in (*rights.writable, *rights.readable):
        _check_own(path, facts)
    access = strictest(settings.workspace, asked.workspace)
    writable, readable = list(rights.write), list(rights.read)
    if access is WorkspaceAccess.WRITE:
        writable.append(workspace)
    else:
        inside = [path for path in writable if path.is_relative_to(workspace)]
        writable = [path for path in writable if path not in inside]
        readable = [path for path in (*readable, *inside) if not path.is_relative_to(workspace)]
        readable += [workspace] if access is WorkspaceAccess.READ else []
    limits = limits_of(settings.limits)
    if asked.seconds is not None:
        limits = replace(limits, seconds=min(limits.seconds, asked.seconds))
    return Confinement(
        folder=asked.folder or (NOWHERE if access is WorkspaceAccess.NONE else workspace),
        writable=tuple(writable),
        readable=tuple(readable),
        network=_network(settings, rights, asked.hosts),
        limits=limits,
        environment=asked.environment,
    )


def tightened(settings: SandboxSettings, facts: Facts, asked: Confinement) -> Confinement:
    """Reduce a confinement built elsewhere to what the settings allow."""
    for path in (*asked.writable, *asked.readable):
        _check_own(path, facts)
    workspace, limits = facts.rights.workspace, limits_of(settings.limits)
    writable, readable, folder = asked.writable, asked.readable, asked.folder
    if settings.workspace is not WorkspaceAccess.WRITE:
        inside = [path for path in (*writable, *readable) if path.is_relative_to(workspace)]
        writable = tuple(path for path in writable if path not in inside)
        readable = tuple(path for path in readable if path not in inside)
        readable += (workspace,) if settings.workspace is WorkspaceAccess.READ and inside else ()
    if settings.workspace is WorkspaceAccess.NONE and folder.is_relative_to(workspace):
        folder = NOWHERE
    hosts = asked.network.hosts if asked.network is not None else ()
    return replace(
        asked,
        folder=folder,
        writable=writable,
        readable=readable,
        network=_network(settings, facts.rights, hosts),
        limits=Limits(**{name: min(getattr(limits, name), getattr(asked.limits, name)) for name in names(limits)}),
    )


def _check_own(path: Path, facts: Facts) -> None:
    workspace = facts.rights.workspace
    lent = path.is_relative_to(workspace) and is_lent(str(workspace), str(facts.homes))
    if path.is_relative_to(facts.homes) and not path.is_relative_to(facts.home) and not lent:
        raise refused(str(path), "it is in the home of another agent", "let that agent send what is needed")


def _network(settings: SandboxSettings, rights: Rights, asked: Sequence[str] | None) -> Network | None:
    hosts = settings.hosts if asked is None else covered(asked, settings.hosts)
    if not rights.web or not hosts:
        return None
    return Network(hosts=tuple(hosts), private_hosts=settings.private_hosts)


def strictest(configured: WorkspaceAccess, asked: WorkspaceAccess | None) -> WorkspaceAccess:
    return min(configured, asked or configured, key=_STRICTEST_FIRST.index)


def limits_of(settings: LimitSettings) -> Limits:
    return Limits(
        seconds=settings.seconds,
        memory_bytes=settings.memory_mib * MIB,
        processes=settings.processes,
        file_bytes=settings.file_mib * MIB,
        disk_bytes=settings.tmp_mib * MIB,
        output_bytes=settings.output_mib * MIB,
    )
