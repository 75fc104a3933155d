"""Makes the complete decision on one tool call, from rules, grants, permissions, provenance, sandbox and confirmation.

All interfaces use this decision, and `retinue policy explain` shows it.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.permission import Permission, PermissionKind
from retinue.domain.tool import ToolSpec
from retinue.policy.tools.grants import find_tool_grant
from retinue.policy.tools.tool_policy import LayerFinding, ToolPolicyChain

GRANTS = "grants"
PERMISSIONS = "permissions"
PROVENANCE = "origin"
SANDBOX = "sandbox"
CONFIRMATION = "confirmation"


class ToolDecision(Struct, frozen=True, kw_only=True):
    """The decision on a tool call, with the findings that led to it.

    `would_grant` are the permissions that a lasting approval would grant. It is empty if each call needs a
    separate approval.
    """

    decision: Decision
    findings: tuple[LayerFinding, ...] = ()
    would_grant: tuple[Permission, ...] = ()


def decide_tool_call(
    chain: ToolPolicyChain,
    spec: ToolSpec,
    *,
    held: Sequence[Permission] = (),
    missing: Sequence[Permission] = (),
    provenance: Decision | None = None,
    sandbox: Decision | None = None,
    confirmation: Decision | None = None,
) -> ToolDecision:
    """Decide whether a tool call is allowed, needs approval or is denied.

    `missing` are permissions that the call needs and that were not granted. `provenance`, `sandbox` and `confirmation`
    are the decisions of these checks. None means that a check does not apply.
    """
    findings = list(chain.findings(spec))
    decision = chain.decide(spec)
    would_grant: list[Permission] = []
    if decision.kind is DecisionKind.ASK:
        if (granted := find_tool_grant(held, spec.name)) is not None:
            findings.append(LayerFinding(GRANTS, DecisionKind.ALLOW, f"{granted} was granted", GRANTS))
            decision = Decision(DecisionKind.ALLOW, f"{granted} was granted", GRANTS)
        else:
            would_grant.append(Permission(PermissionKind.TOOL, spec.name))
    if missing:
        named = ", ".join(str(each) for each in missing)
        because = f"it needs {named}, which was not granted"
        findings.append(LayerFinding(PERMISSIONS, DecisionKind.ASK, because, GRANTS))
        would_grant += missing
        if decision.is_allowed:
            decision = Decision(DecisionKind.ASK, because, GRANTS)
    for layer, layer_decision in ((PROVENANCE, provenance), (SANDBOX, sandbox), (CONFIRMATION, confirmation)):
        if layer_decision is None:
            continue
        findings.append(
            LayerFinding(layer, layer_decision.kind, layer_decision.because, layer_decision.setting_key or layer)
        )
        if layer_decision.kind is not DecisionKind.ALLOW:
            would_grant.clear()
            if (layer_decision.is_denied and not decision.is_denied) or decision.is_allowed:
                decision = layer_decision
    if decision.is_denied:
        would_grant.clear()
    return ToolDecision(decision=decision, findings=tuple(findings), would_grant=tuple(would_grant))
