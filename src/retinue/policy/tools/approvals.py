"""Decides who is asked for an approval, who may answer it, and whether an answer may apply to later calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from retinue.domain.address import Address, AddressKind
from retinue.domain.agent import PermissionLevel
from retinue.domain.approval import Approval
from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.grant import GrantScope
from retinue.domain.principal import Principal
from retinue.domain.tool import Call
from retinue.policy.access.operation_permissions import is_at_least
from retinue.policy.tools.tool_groups import OWNER_DECIDES

APPROVER_LEVEL_MIN = PermissionLevel.STANDARD  # a guest cannot approve anything


def may_decide(principal: Principal, approval: Approval, scope: GrantScope) -> Decision:
    """Decide whether this principal may answer an approval request with this scope."""
    if principal.sees_everything:
        return Decision(DecisionKind.ALLOW, "the owner may answer every request")
    if principal.address.kind is not AddressKind.PERSON:
        return Decision(DecisionKind.DENY, "only people may answer")
    if needs_owner(approval.calls):
        return Decision(DecisionKind.DENY, "only the owner may answer about settings, agents and people")
    if principal.address not in approval.recipients:
        return Decision(DecisionKind.DENY, f"{principal.address} was not asked")
    if not is_at_least(principal.level, APPROVER_LEVEL_MIN):
        return Decision(DecisionKind.DENY, f"a decision needs level {APPROVER_LEVEL_MIN}; you have {principal.level}")
    if scope is GrantScope.ALWAYS:
        return Decision(DecisionKind.DENY, "only the owner may grant permanently")
    return Decision(DecisionKind.ALLOW, f"{principal.address} was asked")


def needs_owner(calls: Iterable[Call]) -> bool:
    """Whether only the owner may answer an approval request for these calls."""
    return any(call.tool in OWNER_DECIDES for call in calls)


def limit_scope(wanted: GrantScope, approval: Approval) -> GrantScope | None:
    """Return the wanted scope, or None if it is too wide.

    An answer to an approval without `grant_permissions` applies only to the calls in that approval. Each
    further call needs another approval.
    """
    return wanted if wanted is GrantScope.ONCE or approval.grant_permissions else None


def find_next_approver(asked: Sequence[Address], approvers: Sequence[Address]) -> Address | None:
    """Return the next person to ask if there is no answer: the first approver who has not been asked yet."""
    return next((address for address in approvers if address not in asked), None)
