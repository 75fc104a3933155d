"""Decides who is asked for an approval, who may answer, and how far an approval reaches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.approval import Approval
from retinue.domain.decision import Decision, Verdict
from retinue.domain.grant import GrantScope
from retinue.domain.principal import Principal
from retinue.domain.tool import Call
from retinue.policy.access.permissions import reaches
from retinue.policy.tools.tool_groups import OWNER_DECIDES

LEAST_LEVEL = PermissionLevel.STANDARD  # a guest cannot approve anything


def may_decide(who: Principal, approval: Approval, scope: GrantScope) -> Decision:
    """Decide whether this person's answer counts. A denial by a person who was asked always counts."""
    if who.sees_all:
        return Decision(Verdict.ALLOW, "the owner decides about everything")
    if who.address.kind is not AddressKind.PERSON:
        return Decision(Verdict.DENY, "only people decide")
    if is_owners(approval.calls):
        return Decision(Verdict.DENY, "only the owner decides about settings, agents and people")
    if who.address not in approval.asked_of:
        return Decision(Verdict.DENY, f"{who.address} was not asked")
    if not reaches(who.level, LEAST_LEVEL):
        return Decision(Verdict.DENY, f"it needs {LEAST_LEVEL}, and you have {who.level}")
    if scope is GrantScope.ALWAYS:
        return Decision(Verdict.DENY, "only the owner grants for good")
    return Decision(Verdict.ALLOW, f"{who.address} was asked")


def is_owners(calls: Iterable[Call]) -> bool:
    """Whether only the owner may decide about these calls."""
    return any(call.tool in OWNER_DECIDES for call in calls)


def scope_of(wanted: GrantScope, approval: Approval) -> GrantScope | None:
    """Return the scope of an approval; None if it cannot be that wide because each such call needs its own approval."""
    return wanted if wanted is GrantScope.ONCE or approval.would_grant else None


def next_to_ask(asked: Sequence[Address], line: Sequence[Address]) -> Address | None:
    """Return the next person to ask if there is no answer: the first in the list who was not asked yet."""
    return next((address for address in line if address not in asked), None)
