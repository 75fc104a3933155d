"""The complete decision on one tool call: rules, grants, permissions, provenance, sandbox and confirmation.

Pure. Every interface decides here, and `retinue policy explain` shows the result.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from retinue.domain.decision import Decision, Verdict
from retinue.domain.permission import Access, Permission
from retinue.domain.tool import ToolSpec
from retinue.policy.tools.grants import lets_use
from retinue.policy.tools.tools import Chain, Finding

GRANTS = "grants"
PERMISSIONS = "permissions"
ORIGIN = "origin"
SANDBOX = "sandbox"
CONFIRMATION = "confirmation"


class Judgement(Struct, frozen=True, kw_only=True):
    """A decision with everything that led to it.

    `would_grant` is what an approval for longer than once would grant. It is empty if each call
    needs its own approval: approving these arguments says nothing about others.
    """

    decision: Decision
    findings: tuple[Finding, ...] = ()
    would_grant: tuple[Permission, ...] = ()


def judge(
    chain: Chain,
    spec: ToolSpec,
    *,
    held: Sequence[Permission] = (),
    missing: Sequence[Permission] = (),
    origin: Decision | None = None,
    sandbox: Decision | None = None,
    confirmation: Decision | None = None,
) -> Judgement:
    """Decide about a call.

    `missing` are permissions that the call needs and were not granted. `provenance`, `sandbox` and
    `confirmation` are the decisions of those checks; None if they have nothing to decide.
    """
    findings = list(chain.findings(spec))
    decision = chain.decide(spec)
    would_grant: list[Permission] = []
    if decision.verdict is Verdict.ASK:
        if (granted := lets_use(held, spec.name)) is not None:
            findings.append(Finding(GRANTS, Verdict.ALLOW, f"{granted} was granted", GRANTS))
            decision = Decision(Verdict.ALLOW, f"{granted} was granted", GRANTS)
        else:
            would_grant.append(Permission(Access.TOOL, spec.name))
    if missing:
        named = ", ".join(str(each) for each in missing)
        because = f"it needs {named}, which was not granted"
        findings.append(Finding(PERMISSIONS, Verdict.ASK, because, GRANTS))
        would_grant += missing
        if decision.allowed:
            decision = Decision(Verdict.ASK, because, GRANTS)
    for layer, said in ((ORIGIN, origin), (SANDBOX, sandbox), (CONFIRMATION, confirmation)):
        if said is None:
            continue
        findings.append(Finding(layer, said.verdict, said.because, said.key or layer))
        if said.verdict is not Verdict.ALLOW:
            would_grant.clear()
            if (said.denied and not decision.denied) or decision.allowed:
                decision = said
    if decision.denied:
        would_grant.clear()
    return Judgement(decision=decision, findings=tuple(findings), would_grant=tuple(would_grant))
