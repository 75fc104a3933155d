"""The whole verdict on one call: what each layer says, and what a yes for longer would grant."""

from __future__ import annotations

from typing import Any

import pytest

from retinue.config.tools import ToolSettings
from retinue.domain.agent import Agent, ToolRules
from retinue.domain.decision import Decision, Verdict
from retinue.domain.permission import WEB, Access, Permission
from retinue.domain.tool import ToolSpec
from retinue.policy.tools.tool_decision import judge
from retinue.policy.tools.tools import Chain, Circumstances, layers_for

SPEC = ToolSpec(name="fetch", description="", parameters={})
TOOL = Permission(Access.TOOL, "fetch")


def chain(**lists: Any) -> Chain:
    agent = Agent(name="ada", model="m", tools=ToolRules(**lists))
    return Chain(layers_for(ToolSettings(), agent, Circumstances()), [SPEC])


def test_a_call_that_nothing_speaks_against_is_allowed() -> None:
    assert judge(chain(), SPEC).decision.verdict is Verdict.ALLOW


def test_what_a_rule_asks_about_a_grant_allows_and_a_denial_stands() -> None:
    asks = judge(chain(ask=("fetch",)), SPEC)
    assert asks.decision.verdict is Verdict.ASK and asks.would_grant == (TOOL,)
    granted = judge(chain(ask=("fetch",)), SPEC, held=(TOOL,))
    assert granted.decision.verdict is Verdict.ALLOW and granted.findings[-1].layer == "grants"
    denied = judge(chain(deny=("fetch",)), SPEC, held=(TOOL,), missing=(WEB,))
    assert denied.decision.verdict is Verdict.DENY and denied.would_grant == ()


def test_what_a_call_lacks_is_asked_for_and_would_be_granted() -> None:
    lacks = judge(chain(), SPEC, missing=(WEB,))
    assert lacks.decision.verdict is Verdict.ASK and "needs web" in lacks.decision.because
    assert lacks.would_grant == (WEB,)
    both = judge(chain(ask=("fetch",)), SPEC, missing=(WEB,))
    assert both.would_grant == (TOOL, WEB)
    assert judge(chain(ask=("fetch",)), SPEC, held=(TOOL,), missing=(WEB,)).decision.verdict is Verdict.ASK


@pytest.mark.parametrize("layer", ["origin", "sandbox"])
def test_what_depends_on_the_arguments_is_asked_about_each_time(layer: str) -> None:
    said: dict[str, Any] = {layer: Decision(Verdict.ASK, "these words came from outside")}
    asked = judge(chain(ask=("fetch",)), SPEC, missing=(WEB,), **said)
    assert asked.decision.verdict is Verdict.ASK and asked.would_grant == ()
    granted = judge(chain(ask=("fetch",)), SPEC, held=(TOOL,), **said)
    assert granted.decision.verdict is Verdict.ASK, "no grant speaks for arguments"
    denied: dict[str, Any] = {layer: Decision(Verdict.DENY, "no")}
    assert judge(chain(), SPEC, **denied).decision.verdict is Verdict.DENY
    allowed: dict[str, Any] = {layer: Decision(Verdict.ALLOW, "explained")}
    assert judge(chain(ask=("fetch",)), SPEC, **allowed).decision.verdict is Verdict.ASK, "nor does it undo a rule"
