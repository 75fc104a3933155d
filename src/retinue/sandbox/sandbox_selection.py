"""Chooses the sandbox, if any, in which a command runs. `confinement` decides what the command can access there.

The choice depends on the settings, the request, and facts about the command and the machine. If a
command runs without a sandbox, another module decides whether a person must approve it:
`policy/tools/exec_placement`. This module has no side effects.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from retinue.config.sandbox import (
    SandboxKind,
    SandboxMode,
    SandboxScope,
    SandboxSettings,
)
from retinue.domain.decision import Decision, DecisionKind
from retinue.sandbox.base import Confinement, SandboxProbe
from retinue.sandbox.confinement import CommandFacts, RequestedConfinement, build_confinement


class SandboxChoice(Struct, frozen=True, kw_only=True):
    """The sandbox that was chosen for a command, and the decision on whether the command may run in it.

    `key` identifies the container that commands share. If the decision is to ask, `kind` is off:
    the configured sandbox does not work, and a person decides whether the command may run on the
    host.
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
        because = 'the owner uses this session directly, and `sandbox.mode` is "non-main"'
        return SandboxKind.OFF, Decision(DecisionKind.ALLOW, because)
    probe = probes.get(settings.kind, SandboxProbe(False, "it has not been tested yet"))
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
