"""Test the complete decision on one call: each policy layer's part, and what a longer grant would cover."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.config.tools import ToolSettings
from retinue.domain.agent import Agent, ToolRules
from retinue.domain.decision import Decision, DecisionKind
from retinue.domain.permission import WEB_PERMISSION, Permission, PermissionKind
from retinue.domain.tool import ToolSpec
from retinue.policy.tools.tool_decision import decide_tool_call
from retinue.policy.tools.tool_policy import ToolPolicyChain, ToolPolicyContext, build_layers

SPEC = ToolSpec(name="fetch", description="", parameters={})
TOOL = Permission(PermissionKind.TOOL, "fetch")


def make_chain(**lists: Any) -> ToolPolicyChain:
    agent = Agent(name="ada", model="m", tools=ToolRules(**lists))
    return ToolPolicyChain(build_layers(ToolSettings(), agent, ToolPolicyContext()), [SPEC])


def test_the_tool_decision_allows_a_call_without_objections() -> None:
    assert decide_tool_call(make_chain(), SPEC).decision.kind is DecisionKind.ALLOW


def test_the_tool_decision_lets_a_grant_override_an_ask_rule_and_not_a_deny_rule() -> None:
    asks = decide_tool_call(make_chain(ask=("fetch",)), SPEC)
    assert asks.decision.kind is DecisionKind.ASK and asks.would_grant == (TOOL,)
    granted = decide_tool_call(make_chain(ask=("fetch",)), SPEC, held=(TOOL,))
    assert granted.decision.kind is DecisionKind.ALLOW and granted.findings[-1].layer == "grants"
    denied = decide_tool_call(make_chain(deny=("fetch",)), SPEC, held=(TOOL,), missing=(WEB_PERMISSION,))
    assert denied.decision.kind is DecisionKind.DENY and denied.would_grant == ()


def test_the_tool_decision_needs_approval_for_a_missing_permission_which_would_be_granted() -> None:
    lacks = decide_tool_call(make_chain(), SPEC, missing=(WEB_PERMISSION,))
    assert lacks.decision.kind is DecisionKind.ASK and "needs web" in lacks.decision.because
    assert lacks.would_grant == (WEB_PERMISSION,)
    both = decide_tool_call(make_chain(ask=("fetch",)), SPEC, missing=(WEB_PERMISSION,))
    assert both.would_grant == (TOOL, WEB_PERMISSION)
    assert (
        decide_tool_call(make_chain(ask=("fetch",)), SPEC, held=(TOOL,), missing=(WEB_PERMISSION,)).decision.kind
        is DecisionKind.ASK
    )


@pytest.mark.parametrize("layer", ["provenance", "sandbox"])
def test_a_tool_decision_about_arguments_needs_approval_each_time_despite_grants(layer: str) -> None:
    layer_decision: dict[str, Any] = {layer: Decision(DecisionKind.ASK, "these words came from outside")}
    asked = decide_tool_call(make_chain(ask=("fetch",)), SPEC, missing=(WEB_PERMISSION,), **layer_decision)
    assert asked.decision.kind is DecisionKind.ASK and asked.would_grant == ()
    granted = decide_tool_call(make_chain(ask=("fetch",)), SPEC, held=(TOOL,), **layer_decision)
    assert granted.decision.kind is DecisionKind.ASK, "no grant covers arguments"
    denied: dict[str, Any] = {layer: Decision(DecisionKind.DENY, "no")}
    assert decide_tool_call(make_chain(), SPEC, **denied).decision.kind is DecisionKind.DENY
    allowed: dict[str, Any] = {layer: Decision(DecisionKind.ALLOW, "explained")}
    assert decide_tool_call(make_chain(ask=("fetch",)), SPEC, **allowed).decision.kind is DecisionKind.ASK, (
        "a grant does not override a rule"
    )
